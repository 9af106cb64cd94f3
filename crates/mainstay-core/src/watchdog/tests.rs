//! Stories about single runs whose real behaviour is known.

mod observations;
mod properties;

use super::*;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A model of a run, and of its clients, in virtual time.
#[derive(Debug)]
struct World {
    start: Instant,
    now: Instant,
    limits: WatchLimits,
    watchdog: Watchdog,
    behaviour: Behaviour,
    can_observe: bool,
    /// How many of the next observations fail.
    failures: u8,
    answers_ping: bool,
    answered_ping: bool,
    messages: Vec<Message>,
    switches: u64,
    last_message: Option<Instant>,
    last_answer: Option<Instant>,
    /// When the run last read or sent anything, and when it was last scheduled.
    last_read: Instant,
    last_scheduled: Instant,
    /// When a client last waited for a call that the run has read.
    last_awaited: Option<Instant>,
    /// How long the run was not suspended since it last read anything.
    lived: Duration,
    actions: Vec<(Duration, WatchAction)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Message {
    kind: Kind,
    sent: Instant,
    is_read: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call { is_awaited: bool },
    Probe(Probe),
}

/// What a run does with its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// Reads and answers.
    Healthy,
    /// Reads, and answers probes only.
    LosesAnswers,
    /// Reads, and answers nothing.
    ReadsOnly,
    /// Computes.
    Spinning,
    /// Waits for a disk.
    SlowDisk,
    /// Sleeps, and wakes up this often without reading.
    Timer(u64),
    /// Sends a message this often, without reading.
    Sends(u64),
    /// Sends messages and answers probes, but does not read one connection.
    OneUnread,
    /// Waits for something that never happens.
    Deadlocked,
    /// Stopped by a signal.
    Suspended,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "virtual time needs some origin")]
    fn new(limits: WatchLimits) -> Self {
        let start = Instant::now();
        Self {
            start,
            now: start,
            watchdog: Watchdog::new(start, limits.clone(), false),
            limits,
            behaviour: Behaviour::Healthy,
            can_observe: true,
            failures: 0,
            answers_ping: true,
            answered_ping: false,
            messages: Vec::new(),
            switches: 0,
            last_message: None,
            last_answer: None,
            last_read: start,
            last_scheduled: start,
            last_awaited: None,
            lived: Duration::ZERO,
            actions: Vec::new(),
        }
    }

    fn call(&mut self) {
        let kind = Kind::Call { is_awaited: true };
        self.messages.push(Message { kind, sent: self.now, is_read: false });
        self.behave();
    }

    /// A client calls, and the run reads that before it behaves in another way.
    fn call_that_is_read(&mut self) {
        self.call();
        self.messages.iter_mut().for_each(|message| message.is_read = true);
        (self.last_read, self.lived) = (self.now, Duration::ZERO);
        self.last_scheduled = self.now;
        self.switches += 1;
    }

    fn give_up(&mut self) {
        if self.messages.iter().any(|message| message.is_read && is_awaited(message)) {
            self.last_awaited = Some(self.now);
        }
        for message in &mut self.messages {
            if let Kind::Call { is_awaited } = &mut message.kind {
                *is_awaited = false;
            }
        }
    }

    /// Time passes in which Mainstay does not run.
    fn pause(&mut self, time: Duration) {
        self.now += time;
        if self.behaviour != Behaviour::Suspended {
            self.lived += time;
        }
    }

    /// One moment of the run's life.
    fn behave(&mut self) {
        let is_scheduled = match self.behaviour {
            Behaviour::Healthy | Behaviour::LosesAnswers | Behaviour::ReadsOnly => {
                !self.messages.is_empty()
            }
            Behaviour::Spinning | Behaviour::OneUnread => true,
            Behaviour::Timer(period) | Behaviour::Sends(period) => {
                self.now.duration_since(self.last_scheduled) >= seconds(period)
            }
            Behaviour::SlowDisk | Behaviour::Deadlocked | Behaviour::Suspended => false,
        };
        if is_scheduled {
            self.switches += 1;
            self.last_scheduled = self.now;
        }
        match self.behaviour {
            Behaviour::Healthy | Behaviour::LosesAnswers | Behaviour::ReadsOnly => self.read(),
            Behaviour::Sends(_) if is_scheduled => self.last_message = Some(self.now),
            Behaviour::OneUnread => {
                self.last_message = Some(self.now);
                let before = self.messages.len();
                self.messages.retain(|message| !matches!(message.kind, Kind::Probe(_)));
                if self.messages.len() < before {
                    (self.last_answer, self.answered_ping) = (Some(self.now), true);
                }
            }
            Behaviour::Spinning
            | Behaviour::SlowDisk
            | Behaviour::Timer(_)
            | Behaviour::Sends(_)
            | Behaviour::Deadlocked
            | Behaviour::Suspended => {}
        }
    }

    fn read(&mut self) {
        if self.messages.iter().any(|message| !message.is_read) {
            (self.last_read, self.lived) = (self.now, Duration::ZERO);
        }
        let (behaviour, answers_ping) = (self.behaviour, self.answers_ping);
        let is_answered = |message: &Message| match (behaviour, message.kind) {
            (Behaviour::ReadsOnly, _) => false,
            (_, Kind::Probe(Probe::Ping)) => answers_ping,
            (_, Kind::Probe(Probe::List)) => true,
            (behaviour, Kind::Call { .. }) => behaviour == Behaviour::Healthy,
        };
        for message in std::mem::take(&mut self.messages) {
            if is_answered(&message) {
                (self.last_message, self.last_answer) = (Some(self.now), Some(self.now));
                self.answered_ping |= message.kind == Kind::Probe(Probe::Ping);
            } else {
                self.messages.push(Message { is_read: true, ..message });
            }
        }
    }

    fn evidence(&self) -> Evidence {
        let request = |message: &Message| OpenRequest { what: "t".to_owned(), sent: message.sent };
        let is_open = |message: &&Message| {
            is_awaited(message) || (!message.is_read && matches!(message.kind, Kind::Call { .. }))
        };
        let calls = || self.messages.iter().filter(is_open);
        let overdue = |message: &&Message| self.now >= message.sent + self.limits.overdue();
        let unread = self.messages.iter().find(|message| !message.is_read);
        let can_observe = self.can_observe && self.failures == 0;
        Evidence {
            oldest: calls().next().map(request),
            overdue: calls().filter(overdue).count(),
            being_handled: calls().find(|message| message.is_read).map(request),
            unawaited: self
                .last_awaited
                .map(|since| UnawaitedRequest { what: "t".to_owned(), since }),
            unanswered_since: None,
            last_message: self.last_message,
            last_answer: self.last_answer,
            answered_ping: self.answered_ping,
            input: match unread {
                _ if !can_observe => Input::Unknown,
                Some(message) => Input::Unread { since: message.sent, bytes: 1 },
                None => Input::Read,
            },
            processes: can_observe.then_some(Processes {
                switches: self.switches,
                is_active: matches!(self.behaviour, Behaviour::Spinning | Behaviour::SlowDisk),
                suspended: (self.behaviour == Behaviour::Suspended).then_some(7),
                waits_for: None,
            }),
        }
    }

    /// Passes one second, in which the run and the watchdog act.
    fn pass_second(&mut self) {
        self.pause(seconds(1));
        self.behave();
        if self.watchdog.deadline() <= self.now {
            self.observe();
        }
    }

    fn observe(&mut self) {
        if self.now > self.watchdog.deadline() + seconds(3) {
            self.watchdog.discard_before(self.now);
        }
        let evidence = self.evidence();
        self.failures = self.failures.saturating_sub(1);
        for action in self.watchdog.observe(self.now, &evidence) {
            if let WatchAction::Probe(probe) = action {
                let kind = Kind::Probe(probe);
                self.messages.push(Message { kind, sent: self.now, is_read: false });
                self.answered_ping &= probe != Probe::Ping;
            }
            if let WatchAction::Kill(_) = action {
                self.check_kill();
            }
            self.actions.push((self.now - self.start, action));
        }
        self.behave();
    }

    fn check_kill(&self) {
        let limit = match self.watchdog.verdict() {
            Verdict::Hung { .. } => return self.check_hang(),
            Verdict::Busy { .. } => self.limits.busy_limit,
            Verdict::Blocked { .. } => self.limits.block_limit,
            verdict => panic!("killed although {verdict:?}: {self:?}"),
        };
        assert!(limit.is_some_and(|it| self.has_lived(it)), "killed too early: {self:?}");
    }

    /// What happens before the first observation and between two is not seen.
    fn has_lived(&self, limit: Duration) -> bool {
        self.lived + self.limits.overdue() + INTERVAL + seconds(3) >= limit
    }

    /// A kill for a hang is proven by what really happened.
    fn check_hang(&self) {
        let limit = self.limits.hang_after.expect("there is a limit");
        assert!(self.can_observe, "killed without evidence: {self:?}");
        assert_ne!(self.behaviour, Behaviour::Suspended, "killed while suspended: {self:?}");
        assert!(self.now >= self.last_read + limit, "killed although it reads: {self:?}");
        let is_silent = self.last_message.is_none_or(|at| self.now >= at + limit);
        assert!(is_silent, "killed although it sends: {self:?}");
        let observed = limit.saturating_sub(BASELINE.min(limit / 2));
        assert!(self.now >= self.last_scheduled + observed, "killed although it runs: {self:?}");
        assert_ne!(self.behaviour, Behaviour::SlowDisk, "killed in a disk wait: {self:?}");
        let handled = |message: &Message| message.is_read && is_awaited(message);
        assert!(!self.messages.iter().any(handled), "killed inside a call: {self:?}");
        assert!(self.has_lived(limit), "suspended time counted: {self:?}");
        let awaited = self.last_awaited.is_some_and(|at| self.now < at + limit);
        assert!(!awaited, "killed although a client waited a moment ago: {self:?}");
        let waiting = |message: &Message| !message.is_read && self.now >= message.sent + limit;
        assert!(self.messages.iter().any(waiting), "killed without a request: {self:?}");
        let probes = |message: &Message| matches!(message.kind, Kind::Probe(_));
        assert!(self.messages.iter().any(probes), "killed without a probe: {self:?}");
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.pass_second();
        }
    }

    fn killed_after(&self) -> Option<Duration> {
        let kill = |(at, action): &(Duration, WatchAction)| {
            matches!(action, WatchAction::Kill(_)).then_some(*at)
        };
        self.actions.iter().find_map(kill)
    }

    #[track_caller]
    fn shows(&self, expected: &str) {
        assert_eq!(self.watchdog.verdict().describe(self.now).to_string(), expected, "{self:?}");
    }

    fn begin_call(&mut self) {
        self.call();
        self.observe();
    }
}

fn is_awaited(message: &Message) -> bool {
    message.kind == Kind::Call { is_awaited: true }
}

/// A call that is not read, to a run that behaves like this, with the default limits.
fn unread_call(behaviour: Behaviour) -> World {
    let mut world = World::new(WatchLimits::default());
    world.behaviour = behaviour;
    world.begin_call();
    world
}

#[test]
fn a_deadlock_is_killed_after_the_limit() {
    let mut world = unread_call(Behaviour::Deadlocked);
    world.pass(seconds(40));
    world.shows("1 call overdue: no answer to `t` for 40 s; it has read nothing for 40 s");
    world.pass(seconds(30));
    assert_eq!(world.killed_after(), Some(seconds(60)));
}

#[test]
fn a_run_that_computes_is_busy_and_is_killed_only_by_its_own_limit() {
    let mut world = unread_call(Behaviour::Spinning);
    world.pass(seconds(3600));
    world.shows("it is working, and has read nothing for 1 h");
    assert_eq!(world.killed_after(), None);

    let limits = WatchLimits { busy_limit: Some(seconds(600)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Spinning;
    world.begin_call();
    world.pass(seconds(620));
    assert_eq!(world.killed_after(), Some(seconds(600)));
}

#[test]
fn a_run_inside_a_call_is_blocked() {
    let mut world = World::new(WatchLimits::default());
    world.behaviour = Behaviour::Deadlocked;
    world.call_that_is_read();
    world.observe();
    world.call();
    world.pass(seconds(180));
    world.shows("blocked in `t` for 3 min; it reads nothing else");
    assert_eq!(world.killed_after(), None);
    // When the client gives up, nobody waits for what the run is doing. From then on the time counts.
    world.give_up();
    world.call();
    world.pass(seconds(59));
    assert_eq!(world.killed_after(), None);
    world.pass(seconds(3));
    assert!(world.killed_after().is_some());
}

#[test]
fn a_blocked_run_is_killed_by_its_limit() {
    let limits = WatchLimits { block_limit: Some(seconds(100)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Deadlocked;
    world.call_that_is_read();
    world.observe();
    world.pass(seconds(150));
    // The time counts from the first request that it has not read: the ping after 30 s.
    assert_eq!(world.killed_after(), Some(seconds(130)));
    let why = "blocked in `t` for more than 1 min 40 s (--block-limit)".to_owned();
    assert_eq!(world.actions.last(), Some(&(seconds(130), WatchAction::Kill(why))));
}

#[test]
fn each_limit_counts_only_the_time_in_which_it_applies() {
    for before in [Behaviour::Spinning, Behaviour::Suspended] {
        let mut world = World::new(WatchLimits::default());
        world.behaviour = before;
        world.call_that_is_read();
        world.begin_call();
        world.pass(seconds(20 * 60));
        world.behaviour = Behaviour::Deadlocked;
        world.pass(seconds(14 * 60));
        assert_eq!(world.watchdog.verdict().as_str(), "blocked", "{before:?}");
        assert_eq!(world.killed_after(), None, "{before:?}");
        world.pass(seconds(2 * 60));
        assert!(world.killed_after().is_some(), "{before:?}");
    }
    let limits = WatchLimits { busy_limit: Some(seconds(600)), ..WatchLimits::default() };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Deadlocked;
    world.call_that_is_read();
    world.begin_call();
    world.pass(seconds(700));
    world.behaviour = Behaviour::Spinning;
    world.pass(seconds(590));
    assert_eq!((world.watchdog.verdict().as_str(), world.killed_after()), ("busy", None));
    world.pass(seconds(20));
    assert!(world.killed_after().is_some());
}

#[test]
fn a_run_that_answers_other_requests_is_running() {
    let mut world = unread_call(Behaviour::LosesAnswers);
    world.pass(seconds(200));
    world.shows("1 call overdue: no answer to `t` for 3 min 20 s");
    assert!(!world.watchdog.verdict().holds_requests());
}

#[test]
fn a_run_that_reads_and_answers_nothing_is_not_killed() {
    let mut world = unread_call(Behaviour::ReadsOnly);
    world.pass(seconds(1000));
    world.shows("1 call overdue: no answer to `t` for 16 min 40 s");
    assert_eq!(world.killed_after(), None);
}

#[test]
fn a_suspended_run_is_never_killed_and_continues() {
    let mut world = unread_call(Behaviour::Suspended);
    world.pass(seconds(3600));
    world.shows(
        "process 7 is stopped (SIGSTOP, a debugger or a frozen cgroup); a request waits for 1 h",
    );
    world.behaviour = Behaviour::Healthy;
    world.pass(seconds(5));
    world.shows("no request is overdue");
    assert_eq!(world.killed_after(), None);
}

#[test]
fn a_run_that_cannot_be_observed_is_unresponsive() {
    let mut world = World::new(WatchLimits::default());
    world.can_observe = false;
    world.behaviour = Behaviour::Deadlocked;
    world.begin_call();
    world.pass(seconds(80));
    world.shows("it accepts requests and has sent nothing for 1 min 20 s");
    world.pass(seconds(3600));
    assert_eq!(world.killed_after(), None);
    let renewals = |world: &World| {
        let all = world.actions.iter();
        all.filter(|(_, action)| *action == WatchAction::Renew).count()
    };
    assert_eq!(renewals(&world), 121);
    // It recovers by itself.
    world.behaviour = Behaviour::Healthy;
    world.pass(seconds(60));
    world.shows("no request is overdue");
    assert_eq!(renewals(&world), 121);
}

#[test]
fn an_idle_run_that_hangs_is_found() {
    let mut world = World::new(WatchLimits::default());
    world.pass(seconds(10));
    world.behaviour = Behaviour::Deadlocked;
    world.pass(IDLE_PROBE + seconds(40));
    world.shows("it has read nothing for 50 s");
    world.pass(seconds(22));
    assert!(world.killed_after().is_some(), "{world:?}");
}

#[test]
fn time_in_which_mainstay_did_not_run_does_not_count() {
    for observed_for in [0, 40] {
        let mut world = unread_call(Behaviour::Deadlocked);
        world.pass(seconds(observed_for));
        world.now += seconds(8 * 3600);
        world.pass(seconds(50));
        assert_eq!(world.killed_after(), None);
        world.pass(seconds(20));
        assert!(world.killed_after().is_some());
    }
}

#[test]
fn a_limit_can_be_turned_off() {
    let limits = WatchLimits { hang_after: None, busy_limit: None, block_limit: None };
    let mut world = World::new(limits);
    world.behaviour = Behaviour::Deadlocked;
    world.begin_call();
    world.pass(seconds(4000));
    assert_eq!(world.killed_after(), None);
}
