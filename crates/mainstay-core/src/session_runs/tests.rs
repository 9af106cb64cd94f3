//! Stories of runs of single sessions, and what holds for every script of events.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> ServerName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn key(server: &str, session: u8) -> SessionRunKey {
    SessionRunKey { server: name(server), session: format!("{session:016x}").into() }
}

fn a() -> SessionRunKey {
    key("time", 10)
}

fn started(key: SessionRunKey, last: u64) -> [Action; 1] {
    [Action::Start { key, last: RunId::new(last) }]
}

fn ended(key: &SessionRunKey, last: u64) -> Event {
    Event::Ended { name: key.run_name(), last: Some(RunId::new(last)) }
}

fn end(key: &SessionRunKey, why: SessionRunEnd) -> [Action; 1] {
    [Action::End(key.run_name(), why)]
}

#[test]
fn a_run_that_is_needed_again_while_it_ends_is_followed_by_another() {
    let mut runs = SessionRuns::default();
    assert_eq!(runs.handle(Event::Start(a())), started(a(), 0));
    assert_eq!(runs.handle(Event::Start(a())), [Action::Publish(a().run_name())]);
    assert_eq!(runs.of(&name("time")).count(), 1);
    let idle = SessionRunEnd::Idle;
    assert_eq!(runs.handle(Event::Stop(a(), idle)), end(&a(), idle));
    assert_eq!(runs.of(&name("time")).count(), 0);
    assert_eq!(runs.handle(Event::Start(a())), []);
    assert_eq!(runs.handle(ended(&a(), 3)), started(a(), 3));
}

#[test]
fn a_session_that_ends_needs_no_other_run() {
    let mut runs = SessionRuns::default();
    runs.handle(Event::Start(a()));
    runs.handle(Event::Stop(a(), SessionRunEnd::Idle));
    runs.handle(Event::Start(a()));
    assert_eq!(runs.handle(Event::Stop(a(), SessionRunEnd::SessionEnded)), []);
    assert_eq!(runs.handle(ended(&a(), 3)), []);
    assert_eq!(runs.handle(Event::Start(a())), started(a(), 0), "its number is free again");
}

#[test]
fn numbers_continue_while_the_session_exists() {
    let mut runs = SessionRuns::new(HashMap::from([(a().run_name(), RunId::new(7))]));
    assert_eq!(runs.handle(Event::Start(a())), started(a(), 7));
    runs.handle(Event::Stop(a(), SessionRunEnd::Shared));
    assert_eq!(runs.handle(ended(&a(), 8)), []);
    assert_eq!(runs.handle(Event::Start(a())), started(a(), 8));
    // Someone else removes its container.
    assert_eq!(runs.handle(ended(&a(), 9)), [Action::ReportGone(a())]);
    assert_eq!(runs.handle(Event::Start(a())), started(a(), 9));
}

#[test]
fn the_runs_of_a_removed_server_are_removed_and_none_follows() {
    let mut runs = SessionRuns::default();
    let (b, other) = (key("time", 11), key("web", 10));
    for key in [a(), b.clone(), other.clone()] {
        runs.handle(Event::Start(key));
    }
    runs.handle(Event::Stop(b.clone(), SessionRunEnd::Idle));
    runs.handle(Event::Start(b.clone()));
    let removed = Event::ServerRemoved(name("time"));
    assert_eq!(runs.handle(removed), [Action::Remove(a().run_name())]);
    assert_eq!(runs.handle(ended(&a(), 1)), []);
    assert_eq!(runs.handle(ended(&b, 1)), []);
    assert_eq!(runs.of(&name("web")).collect::<Vec<_>>(), [&other.run_name()]);
}

#[test]
fn no_run_starts_when_the_daemon_stops() {
    let mut runs = SessionRuns::default();
    runs.handle(Event::Start(a()));
    runs.handle(Event::Stop(a(), SessionRunEnd::Idle));
    runs.handle(Event::Start(a()));
    assert_eq!(runs.handle(Event::Ended { name: a().run_name(), last: None }), []);
}

#[test]
fn a_request_replaces_what_it_makes_pointless() {
    let mut requests = Requests::default();
    let b = key("time", 11);
    for _ in 0..1000 {
        requests.start(a());
        requests.stop(b.clone(), SessionRunEnd::SessionEnded);
        requests.stop(a(), SessionRunEnd::Idle);
        requests.start(a());
    }
    assert_eq!((requests.order.len(), requests.entries.len()), (2, 2));
    let of_a: Vec<_> = requests.take_next().into_iter().flatten().collect();
    assert_eq!(of_a, [Event::Stop(a(), SessionRunEnd::Idle), Event::Start(a())]);
    let of_b: Vec<_> = requests.take_next().into_iter().flatten().collect();
    assert_eq!(of_b, [Event::Stop(b, SessionRunEnd::SessionEnded)]);
    assert!(requests.take_next().is_none());
}

/// One step of a random script.
#[derive(Debug, Clone)]
enum Step {
    Start(SessionRunKey),
    Stop(SessionRunKey, SessionRunEnd),
    /// The requests of one session are handled.
    Handle,
    /// A run ends, by itself or because it was told to.
    End(SessionRunKey),
    RemoveServer(ServerName),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || (prop::sample::select(vec!["time", "web"]), 0..2_u8).prop_map(|(s, n)| key(s, n));
    let why = prop::sample::select(vec![
        SessionRunEnd::Idle,
        SessionRunEnd::Shared,
        SessionRunEnd::SessionEnded,
    ]);
    prop_oneof![
        6 => keys().prop_map(Step::Start),
        5 => (keys(), why).prop_map(|(key, why)| Step::Stop(key, why)),
        10 => Just(Step::Handle),
        6 => keys().prop_map(Step::End),
        1 => Just(Step::RemoveServer(name("time"))),
    ]
}

/// Executes actions, and checks the guarantees.
#[derive(Default)]
struct World {
    requests: Requests,
    runs: SessionRuns,
    /// The runs that exist, with their generations.
    alive: BTreeMap<ServerName, (SessionRunKey, RunId)>,
    told_to_end: BTreeSet<ServerName>,
    /// The sessions that want a run.
    wanting: BTreeSet<SessionRunKey>,
    /// The highest generation of each session that exists.
    highest: BTreeMap<SessionRunKey, RunId>,
}

impl World {
    fn tell(&mut self, event: Event) {
        for action in self.runs.handle(event) {
            match action {
                Action::Start { key, last } => {
                    assert!(self.wanting.contains(&key), "{key:?} needs none");
                    let highest = self.highest.get(&key).copied().unwrap_or_default();
                    assert!(last >= highest, "run {last} of {key:?} once more");
                    let run = last.next();
                    self.highest.insert(key.clone(), run);
                    let before = self.alive.insert(key.run_name(), (key, run));
                    assert_eq!(before, None, "two runs of a session");
                }
                Action::Publish(name) => assert!(self.alive.contains_key(&name)),
                Action::End(name, _) | Action::Remove(name) => {
                    assert!(self.alive.contains_key(&name));
                    assert!(self.told_to_end.insert(name), "told twice");
                }
                Action::ReportGone(key) => {
                    self.wanting.remove(&key);
                }
            }
        }
        let kept = |name: &&ServerName| !self.told_to_end.contains(*name);
        for server in ["time", "web"].map(name) {
            let own = self.alive.iter().filter(|(_, (key, _))| key.server == server);
            assert!(own.map(|(name, _)| name).filter(kept).eq(self.runs.of(&server)));
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Start(key) => {
                if self.wanting.insert(key.clone()) {
                    self.requests.start(key);
                }
            }
            Step::Stop(key, why) => {
                self.wanting.remove(&key);
                if why == SessionRunEnd::SessionEnded {
                    self.highest.remove(&key);
                }
                self.requests.stop(key, why);
            }
            Step::Handle => {
                self.handle_next();
            }
            Step::End(key) => self.end(&key.run_name()),
            Step::RemoveServer(server) => {
                // Its sessions end with it, so that nothing asks for them any more.
                self.requests = std::mem::take(&mut self.requests).without(&server);
                self.wanting.retain(|key| key.server != server);
                self.highest.retain(|key, _| key.server != server);
                self.tell(Event::ServerRemoved(server));
            }
        }
    }

    fn handle_next(&mut self) -> bool {
        let Some(events) = self.requests.take_next() else { return false };
        events.for_each(|event| self.tell(event));
        true
    }

    /// A session hears of an end only after its requests were handled.
    fn end(&mut self, name: &ServerName) {
        while self.handle_next() {}
        if let Some((_, run)) = self.alive.remove(name) {
            self.told_to_end.remove(name);
            self.tell(Event::Ended { name: name.clone(), last: Some(run) });
        }
    }
}

impl Requests {
    fn without(mut self, server: &ServerName) -> Self {
        self.order.retain(|key| key.server != *server);
        self.entries.retain(|key, _| key.server != *server);
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_script_keeps_the_guarantees_and_ends_as_wanted(script in vec(step(), 0..120)) {
        let mut world = World::default();
        for step in script {
            world.play(step);
        }
        // In the end all requests are handled, and all runs end that were told to.
        while world.handle_next() {}
        while let Some(name) = world.told_to_end.first().cloned() {
            world.end(&name);
        }
        let alive: BTreeSet<_> = world.alive.values().map(|(key, _)| key.clone()).collect();
        prop_assert_eq!(alive, world.wanting);
    }
}
