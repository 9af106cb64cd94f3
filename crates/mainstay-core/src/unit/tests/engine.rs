//! A simulated engine around one unit: it honours actions, has moods, delivers news late, out of
//! order and twice, and checks after every event what must always hold.

use std::time::{Duration, Instant};

use super::super::{Action, Event, Found, LoggedEvent, Unit, UnitHistory};
use super::world::{origin, secs};
use crate::{Cause, Exit, Jitter, RestartPolicy, RunId, Status, Wanted};

/// How the engine behaves from now on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mood {
    pub(super) starts: Starts,
    pub(super) runs_get_ready: bool,
    pub(super) runs_heed_stop: bool,
    pub(super) news_takes: Duration,
}

/// What becomes of starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starts {
    Succeed,
    FailForNow,
    FailForGood,
}

const KIND: Mood = Mood {
    starts: Starts::Succeed,
    runs_get_ready: true,
    runs_heed_stop: true,
    news_takes: Duration::ZERO,
};

/// What happens next in a script.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Wait(Duration),
    Mood(Mood),
    /// Something that concerns the unit as a whole.
    Tell(Event),
    /// Something that the present run does, if there is one.
    News(fn(RunId) -> Event),
    Dies(Cause),
    /// The present run exits and is gone so much later; with no time given, once it is killed.
    Exits(Cause, Option<Duration>),
    /// Why the last run ended turns out to be this.
    Amended(Cause),
    RestartedBySomeone,
    /// The daemon dies, and the next one takes up what is left.
    NewDaemon,
    /// Old news once more.
    StartReason(usize),
}

pub(super) struct Engine {
    now: Instant,
    pub(super) unit: Unit,
    policy: RestartPolicy,
    mood: Mood,
    alive: Option<RunId>,
    /// The last run whose exit was told.
    exited: Option<RunId>,
    away: bool,
    forgotten: bool,
    mail: Vec<(Instant, Event)>,
    delivered: Vec<Event>,
    scheduled: Option<(Instant, Duration)>,
    chance: Jitter,
}

impl Engine {
    pub(super) fn new(policy: RestartPolicy, seed: u64) -> Self {
        Self {
            now: origin(),
            unit: Unit::new(policy.clone(), seed),
            policy,
            mood: KIND,
            alive: None,
            exited: None,
            away: false,
            forgotten: false,
            mail: Vec::new(),
            delivered: Vec::new(),
            scheduled: None,
            chance: Jitter::new(seed),
        }
    }

    /// An engine with what the daemon finds at its start.
    pub(super) fn resumed(
        policy: RestartPolicy,
        seed: u64,
        wanted: Wanted,
        found: Option<Found>,
    ) -> Self {
        let engine = Self::new(policy.clone(), seed);
        let past = UnitHistory { last: RunId::new(4), ..UnitHistory::default() };
        let unit = Unit::resume(engine.now, policy, seed, wanted, found, past);
        assert_eq!(unit.deadline(), Some(engine.now));
        Self { unit, alive: found.map(|found| found.run), ..engine }
    }

    pub(super) fn play(&mut self, step: Step) {
        match step {
            Step::Wait(time) => self.passes(time),
            Step::Mood(mood) => self.mood = mood,
            Step::Tell(event) => self.tell(event),
            Step::News(news) => {
                if let Some(run) = self.alive {
                    self.post(news(run));
                }
            }
            Step::Dies(cause) => self.dies(cause),
            Step::Exits(cause, lingers) => {
                if let Some(run) = self.alive {
                    self.post(Event::Exited { run });
                    let gone = Event::Gone { run, cause };
                    self.mail.extend(lingers.map(|lingers| (self.now + lingers, gone)));
                }
            }
            Step::Amended(cause) => {
                let run = self.unit.view(self.now).last_end.map(|end| end.run);
                if let Some(run) = run {
                    self.post(Event::Amended { run, cause });
                }
            }
            Step::RestartedBySomeone => self.restarted_by_someone(),
            Step::NewDaemon => self.new_daemon(),
            Step::StartReason(which) => {
                if !self.delivered.is_empty() {
                    let event = self.delivered[which % self.delivered.len()].clone();
                    self.tell(event);
                }
            }
        }
    }

    /// With or without the last run having been reported gone, and told at once.
    fn restarted_by_someone(&mut self) {
        let last = self.unit.last_run();
        let known = self.alive.map_or(last != RunId::default(), |alive| alive == last);
        if known && !self.forgotten && self.unit.run().is_none_or(|run| Some(run) == self.alive) {
            let new = last.next();
            self.alive = Some(new);
            self.tell(Event::Adopted { old: last, new });
        }
    }

    /// Failures are not forgotten, and nothing is known of the run but that it is there.
    fn new_daemon(&mut self) {
        if self.forgotten {
            return;
        }
        let found = self.alive.map(|run| Found { run, age: Duration::ZERO, ready_for: None });
        let (policy, past) = (self.policy.clone(), self.unit.history());
        let failures = past.failures;
        self.unit = Unit::resume(self.now, policy, 1, self.unit.wanted(), found, past);
        assert_eq!(self.unit.history().failures, failures);
        self.exited = None;
        self.tell(if self.away {
            Event::EngineAway { why: "its engine does not answer".to_owned() }
        } else {
            Event::Tick
        });
    }

    /// With a kind engine and a slow reconcile, the world comes to match the intent.
    pub(super) fn converges(&mut self) {
        self.mood = KIND;
        self.tell(Event::EngineBack);
        self.reconciles_for(secs(600));
        if self.unit.wanted() == Wanted::On && !self.forgotten {
            if self.unit.view(self.now).status == Status::Error {
                assert_eq!(self.alive, None);
                self.tell(Event::Restart);
                self.reconciles_for(secs(600));
            }
            assert_eq!(self.unit.view(self.now).status, Status::Running, "{:?}", self.unit);
            assert!(self.alive.is_some());
        } else {
            assert_eq!(self.alive, None, "{:?}", self.unit);
        }
        assert_eq!(self.unit.run(), self.alive);
        assert!(self.forgotten || self.unit.wanted() != Wanted::Gone);
    }

    fn reconciles_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            match (self.unit.run(), self.alive) {
                (Some(run), Some(alive)) if run == alive => {
                    self.tell(Event::Unpaused { run });
                    self.tell(Event::Healthy { run });
                }
                (Some(run), None) if self.mail.is_empty() => {
                    self.tell(Event::Gone { run, cause: Cause::Exited(Exit::UNKNOWN) });
                }
                (Some(_) | None, _) => {}
            }
            self.passes(secs(10));
        }
    }

    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let tick = self.unit.deadline().filter(|&at| at <= end);
            let first = (0..self.mail.len()).min_by_key(|&i| self.mail[i].0);
            let first = first.filter(|&i| self.mail[i].0 <= end);
            match (tick, first) {
                (Some(tick), first) if first.is_none_or(|i| tick <= self.mail[i].0) => {
                    self.now = self.now.max(tick);
                    self.tell(Event::Tick);
                }
                (_, Some(i)) => {
                    let (at, event) = self.mail.remove(i);
                    self.now = self.now.max(at);
                    self.tell(event.clone());
                    self.delivered.push(event);
                }
                (_, None) => break,
            }
        }
        self.now = end;
    }

    fn tell(&mut self, event: Event) {
        match &event {
            Event::EngineAway { .. } => self.away = true,
            Event::EngineBack => self.away = false,
            Event::Replaced(policy) if !self.forgotten => self.policy = policy.clone(),
            Event::Gone { run, .. } if self.alive == Some(*run) => self.alive = None,
            _ => {}
        }
        let stale = self.is_stale(&event);
        if let Event::Exited { run } = event {
            self.exited = Some(run);
        }
        let before = stale.then(|| self.unit.clone());
        let action = self.unit.handle(self.now, event);
        if let Some(before) = before {
            assert_eq!((action, &self.unit), (None, &before), "stale news changed something");
        } else {
            let ahead = self.unit.deadline().is_none_or(|at| at > self.now);
            assert!(ahead, "the deadline is not ahead: {:?}", self.unit);
        }
        self.check_notes();
        let view = self.unit.view(self.now);
        assert!(view.restarts <= self.policy.max && !view.reason.is_empty());
        if let Some(action) = action {
            self.act(action);
        }
    }

    /// Whether this is news of another run, or of one of which nothing but its end matters.
    fn is_stale(&self, event: &Event) -> bool {
        let present = self.unit.run();
        let removed = matches!(event, Event::Gone { cause: Cause::Removed, .. });
        let lost = matches!(event, Event::Gone { cause: Cause::CannotStart(_), .. });
        let ends =
            matches!(event, Event::Gone { .. } | Event::StartFailed { .. } | Event::Adopted { .. });
        let adopted = matches!(event, Event::Adopted { new, .. } if *new > self.unit.last_run());
        if let Event::Amended { run, .. } = event {
            let last_end = self.unit.view(self.now).last_end;
            return last_end.is_none_or(|end| end.run != *run || !end.cause.charged());
        }
        event.subject().is_some_and(|run| match present {
            Some(present) => run != present || (self.exited == Some(run) && !ends),
            None if removed => run > self.unit.last_run(),
            None => !((lost || adopted) && run == self.unit.last_run()),
        })
    }

    fn check_notes(&mut self) {
        for note in self.unit.take_logged_events() {
            match note {
                LoggedEvent::Scheduled { attempt, delay, .. } => {
                    let nominal = self.policy.delay(attempt);
                    assert!((nominal..=nominal + nominal / 10).contains(&delay), "{delay:?}");
                    self.scheduled = Some((self.now, delay));
                }
                LoggedEvent::Starting { attempt: 1.., .. } => {
                    let (at, delay) = self.scheduled.take().expect("it was scheduled");
                    assert!(self.now - at >= delay, "{:?} is early for {delay:?}", self.now - at);
                }
                _ => {}
            }
        }
    }

    fn act(&mut self, action: Action) {
        assert!(!self.forgotten, "{action:?} after the end");
        assert!(!self.away || action == Action::Forget, "{action:?} during an outage");
        match action {
            Action::Start(run) => {
                assert_eq!(self.alive, None, "two runs at once");
                self.start(run);
            }
            Action::Stop(run) | Action::Kill(run) => {
                if self.alive.is_none() {
                    self.post(Event::Gone { run, cause: Cause::Exited(Exit::UNKNOWN) });
                } else if self.mood.runs_heed_stop || action == Action::Kill(run) {
                    self.dies(Cause::Exited(Exit::signal(15)));
                }
            }
            Action::Forget => {
                // An engine that is away ends it when it is back.
                let ended = self.alive.take_if(|_| self.away);
                assert_eq!(self.alive, None, "a live run was forgotten besides {ended:?}");
                self.forgotten = true;
            }
        }
    }

    fn start(&mut self, run: RunId) {
        let why = "bad mood".to_owned();
        match self.mood.starts {
            Starts::Succeed => {
                self.alive = Some(run);
                self.post(Event::Started { run });
                if self.mood.runs_get_ready {
                    self.post(Event::Ready { run });
                }
            }
            Starts::FailForNow => self.post(Event::Gone { run, cause: Cause::NotStarted(why) }),
            Starts::FailForGood => self.post(Event::StartFailed { run, why }),
        }
    }

    fn dies(&mut self, cause: Cause) {
        if let Some(run) = self.alive.take() {
            self.post(Event::Gone { run, cause });
        }
    }

    fn post(&mut self, event: Event) {
        let at = self.now + self.chance.up_to(self.mood.news_takes);
        self.mail.push((at, event));
    }
}
