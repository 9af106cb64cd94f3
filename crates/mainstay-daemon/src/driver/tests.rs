//! A driver on a fake engine, with time in the test's hands.

mod containers;
mod silent;

use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::ServerInfo;
use mainstay_core::supervisor::RunDetails;
use mainstay_core::{
    Cause, Exit, OnStop, RestartPolicy, RunId, ServerSpec, Status, Wanted, WorkloadKind,
};
use mainstay_engine::{Engine, RemoteEngine};
use mainstay_proxy::ServerHandle;
use mainstay_testkit::fake_engine::{Delay, FakeEngine, Manner};
use mainstay_testkit::samples::{key, spec};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::gateway::Gateway;
use crate::listen::{Access, Sockets};
use crate::state::event_log::{self, Part};
use crate::state::session_store::SessionStore;
use crate::{registry, run_requests};

/// Longer than anything here takes in the test's time.
const LIMIT: Duration = Duration::from_secs(3600);

/// A driver and all that it needs.
struct World {
    engine: FakeEngine,
    handle: Handle,
    driver: JoinHandle<DriverEnd>,
    news: JoinHandle<()>,
    store: Store,
    event_log: EventLog,
    server: ServerHandle,
    access: Access,
    dir: TempDir,
}

impl World {
    fn new(policy: RestartPolicy) -> Self {
        Self::after(FakeEngine::default(), policy, &Inherited::default())
    }

    fn after(engine: FakeEngine, policy: RestartPolicy, inherited: &Inherited) -> Self {
        Self::with(engine, stored(policy), inherited)
    }

    fn with(engine: FakeEngine, stored: Stored, inherited: &Inherited) -> Self {
        let (dir, access) = (tempfile::tempdir().unwrap(), Access::default());
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let event_log = EventLog::open(&dir.path().join("events.db")).unwrap();
        let clients = Clients::of_nobody(dir.path(), &store, &event_log);
        let context = Context {
            engines: Engines {
                process: Arc::new(engine.clone()),
                container: Arc::new(engine.clone()),
                remote: Arc::new(RemoteEngine::default()),
            },
            store: store.clone(),
            event_log: event_log.clone(),
            session_files: SessionFiles::open(dir.path().join("sessions")).unwrap(),
            servers: Arc::default(),
            clients,
            sockets: Sockets(None),
            access: access.clone(),
            daemon: 1,
            is_successor: false,
            boot: "this boot".into(),
        };
        let (sessions, kept) =
            SessionStore::open(&dir.path().join("sessions.db"), &dir.path().join("streams"), 1);
        let gateway = Gateway::new(
            event_log.clone(),
            Arc::new(sessions),
            kept,
            mainstay_proxy::SessionIds::new(&[0; 32], 0),
            run_requests::channel().0,
        );
        let (sender, inbox) = inbox();
        let settings = registry::settings(&stored.spec);
        let server = gateway.add(&stored.spec.name, settings, sender.clone());
        let scope = Scope::AllSessions(server.clone());
        let (mut driver, handle) = Driver::new(context, scope, (sender, inbox), stored, inherited);
        let (mut coming, sender) = (engine.watch(), handle.clone());
        let news = tokio::spawn(async move {
            while let Ok(news) = coming.recv().await {
                sender.send(Event::News(news)).await;
            }
        });
        let driver = tokio::spawn(async move { driver.run().await });
        Self { engine, handle, driver, news, store, event_log, server, access, dir }
    }

    async fn send(&self, message: impl Into<Message>) {
        self.handle.send(message).await;
    }

    /// Waits until the server shows what is asked for.
    async fn until(&mut self, what: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let shown = timeout(LIMIT, self.handle.view.wait_for(|shown| what(shown))).await;
        shown.expect("it comes to that").expect("the driver lives").clone()
    }

    async fn status(&mut self, status: Status) -> Snapshot {
        self.until(|shown| shown.info().status == status).await
    }

    /// The present run dies, once it is ready.
    async fn die(&mut self, run: u64) {
        self.until(|shown| shown.info().generation == run && shown.session.is_some()).await;
        self.engine.die(&key("time", run), Exit::code(1));
    }
}

fn stored(policy: RestartPolicy) -> Stored {
    let spec = ServerSpec { restart: policy, ..spec("time") };
    Stored { spec, wanted: Wanted::On, created_at: Timestamp::UNIX_EPOCH }
}

impl Drop for World {
    fn drop(&mut self) {
        self.driver.abort();
        self.news.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_keeps_to_the_schedule_and_is_given_up() {
    let mut world = World::new(RestartPolicy::default());
    for run in 1..=11 {
        world.die(run).await;
    }
    let shown = world.status(Status::Error).await;
    assert_eq!((shown.info().restarts, shown.info().generation), (10, 11));
    assert_eq!(shown.last_stderr.as_deref(), Some(b"last words\n".as_slice()));
    let starts = world.engine.starts();
    let waits = starts.windows(2).map(|pair| pair[1].1 - pair[0].1);
    for (wait, nominal) in waits.zip([0, 5, 10, 20, 40, 60, 60, 60, 60, 60]) {
        let nominal = Duration::from_secs(nominal);
        // The timer's grain is a millisecond.
        let most = nominal + nominal / 10 + Duration::from_millis(10);
        assert!((nominal..=most).contains(&wait), "{wait:?} for {nominal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_a_long_backoff_acts_at_once() {
    let policy = RestartPolicy { initial: LIMIT, cap: LIMIT, ..RestartPolicy::default() };
    let mut world = World::new(policy);
    world.die(1).await;
    world.die(2).await;
    world.until(|shown| shown.info().next_restart_at.is_some()).await;
    let before = tokio::time::Instant::now();
    world.send(Event::Want(Wanted::Off)).await;
    world.status(Status::Stopped).await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(world.engine.starts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_death_that_was_not_told_is_found_in_the_list() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    world.engine.lose_news();
    world.engine.die(&key("time", 1), Exit::code(1));
    tokio::time::advance(Duration::from_secs(1)).await;
    world.send(Event::Listed { begun: clock::now(), found: Vec::new() }).await;
    world.engine.started(2).await;
    let shown = world.until(|shown| shown.info().generation == 2).await;
    assert_eq!(shown.info().last_exit.unwrap().cause, "exited");
}

#[tokio::test(start_paused = true)]
async fn a_list_begun_before_the_start_proves_nothing() {
    let begun = clock::now();
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut world = World::new(RestartPolicy::default());
    let before = world.status(Status::Running).await.revision;
    world.send(Event::Listed { begun, found: Vec::new() }).await;
    world.send(Event::HostResumed).await;
    world.until(|shown| shown.revision > before).await;
    assert_eq!(world.engine.alive(), [key("time", 1)]);
    assert_eq!(world.engine.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_not_ours_any_more_is_ended() {
    let mut world = World::new(RestartPolicy::default());
    world.die(1).await;
    world.until(|shown| shown.info().generation == 2 && shown.session.is_some()).await;
    world.engine.plant(key("time", 1));
    let alive = FoundState::Alive { pid: None, container: None, age: Duration::ZERO };
    let found = [1, 2].map(|run| (WorkloadKind::Process, RunId::new(run), alive.clone())).to_vec();
    world.send(Event::Listed { begun: clock::now(), found }).await;
    let mut news = world.engine.watch();
    timeout(LIMIT, async { while news.recv().await.unwrap().run() != Some(RunId::new(1)) {} })
        .await
        .unwrap();
    assert_eq!(world.engine.alive(), [key("time", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_ended_in_time_and_charged() {
    let mut world = World::new(RestartPolicy::default());
    world.engine.set_manner(Manner::Silent);
    let begun = tokio::time::Instant::now();
    // The first run was asked before it fell silent, or falls silent too.
    world.engine.started(2).await;
    let shown = world.until(|shown| shown.info().restarts == 1).await;
    assert!(begun.elapsed() >= Duration::from_secs(120));
    assert_eq!(shown.info().last_exit.unwrap().cause, "not-ready");
}

#[tokio::test(start_paused = true)]
async fn a_refused_handshake_counts_as_not_ready() {
    let mut world = World::new(RestartPolicy { max: 0, ..RestartPolicy::default() });
    world.engine.set_manner(Manner::Refuses);
    let shown = world.status(Status::Error).await;
    let exit = shown.info().last_exit.unwrap();
    assert_eq!(exit.cause, "not-ready");
    assert!(exit.detail.contains("not today"), "{}", exit.detail);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_start_is_an_error_until_it_is_asked_for_again() {
    let mut world = World::new(RestartPolicy::default());
    world.engine.refuse_starts("no such thing");
    world.send(Event::Restart).await;
    let shown = world.status(Status::Error).await;
    assert!(shown.info().reason.contains("no such thing"), "{}", shown.info().reason);
    let starts = world.engine.starts().len();
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(world.engine.starts().len(), starts);
}

#[tokio::test(start_paused = true)]
async fn what_ignores_a_stop_is_killed_in_the_end() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    world.engine.ignore_stops();
    world.send(Event::Want(Wanted::Off)).await;
    world.status(Status::Stopped).await;
    assert_eq!(world.engine.stops(), [key("time", 1)]);
    assert_eq!(world.engine.kills(), [key("time", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_overtakes_the_start_is_not_lost() {
    let mut world = World::new(RestartPolicy::default());
    world.engine.delay_starts(Delay::BeforeItExists);
    world.engine.started(1).await;
    world.send(Event::Want(Wanted::Off)).await;
    world.status(Status::Stopping).await;
    let before = tokio::time::Instant::now();
    world.engine.delay_starts(Delay::None);
    world.status(Status::Stopped).await;
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(world.engine.alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_removed_server_is_forgotten_on_disk_too() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    world.send(Event::Want(Wanted::Gone)).await;
    let end = timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(end, DriverEnd::ServerRemoved(RunId::new(1)));
    assert_eq!(world.store.load().unwrap(), []);
    assert_eq!(world.engine.alive(), []);
}

#[tokio::test(start_paused = true)]
async fn a_driver_does_not_wait_for_the_disk() {
    let policy = RestartPolicy { on_stop: OnStop::Respect, ..Default::default() };
    let mut world = World::new(policy.clone());
    world.store.put(vec![stored(policy)]).await.unwrap();
    world.status(Status::Running).await;
    let other = rusqlite::Connection::open(world.dir.path().join("state.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    world.engine.end_by(&key("time", 1), Cause::StoppedBySomeone);
    world.status(Status::Stopped).await;
    other.execute_batch("ROLLBACK").unwrap();
    world.send(Event::Retire).await;
    timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(world.store.load().unwrap()[0].wanted, Wanted::Off, "saved before the end");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_driver_that_forgets_its_server() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    let token_guard = world.access.token_lock.clone().lock_owned().await;
    world.send(Event::Want(Wanted::Gone)).await;
    timeout(LIMIT, world.handle.inbox.closed()).await.unwrap();
    for _ in 0..2 * INBOX {
        world.send(Event::HostResumed).await;
    }
    assert!(!world.driver.is_finished());
    drop(token_guard);
    let end = timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(end, DriverEnd::ServerRemoved(RunId::new(1)));
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_ends_takes_the_server_along_but_keeps_the_intent() {
    let mut world = World::new(RestartPolicy { on_stop: OnStop::Respect, ..Default::default() });
    world.status(Status::Running).await;
    world.send(Event::Retire).await;
    let end = timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(end, DriverEnd::DaemonStops);
    assert_eq!(world.engine.alive(), []);
    assert_eq!(world.handle.view.borrow().wanted, Wanted::On);
}

#[tokio::test(start_paused = true)]
async fn nothing_brings_a_server_back_when_the_daemon_ends() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    world.engine.ignore_stops();
    world.send(Event::Retire).await;
    world.send(Event::Want(Wanted::On)).await;
    world.send(Event::Restart).await;
    world.send(Message::Replace(Box::new(stored(RestartPolicy::default())))).await;
    let end = timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(end, DriverEnd::DaemonStops);
    assert_eq!(world.engine.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_failed_is_started_once_when_it_is_described_anew() {
    let mut world = World::new(RestartPolicy::default());
    world.engine.refuse_starts("no such thing");
    world.send(Event::Restart).await;
    world.status(Status::Error).await;
    let starts = world.engine.starts().len();
    world.engine.allow_starts();
    world.send(Message::Replace(Box::new(stored(RestartPolicy::default())))).await;
    world.status(Status::Running).await;
    assert_eq!(world.engine.starts().len(), starts + 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_an_earlier_daemon_left_is_kept() {
    let engine = FakeEngine::default();
    engine.plant(key("time", 7));
    let age = Duration::from_secs(60);
    let alive = InheritedRun {
        run: RunId::new(7),
        age,
        ready_for: None,
        details: RunDetails { pid: Some(77), container: None },
        is_assumed: false,
    };
    let alive = Some((WorkloadKind::Process, alive));
    let inherited = Inherited { last: RunId::new(7), alive, ..Inherited::default() };
    let mut world = World::after(engine, RestartPolicy::default(), &inherited);
    let shown = world.status(Status::Running).await;
    assert_eq!((shown.details.pid, shown.info().generation), (Some(77), 7));
    assert_eq!(world.engine.starts(), []);
    world.die(7).await;
    assert_eq!(world.engine.started(1).await, key("time", 8));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_saw_is_told_and_not_charged() {
    let inherited = Inherited {
        last: RunId::new(3),
        ended: Some((RunId::new(3), Exit::signal(9))),
        ..Inherited::default()
    };
    let mut world = World::after(FakeEngine::default(), RestartPolicy::default(), &inherited);
    let info = world.status(Status::Running).await.info();
    assert_eq!((info.generation, info.restarts), (4, 0));
    let exit = info.last_exit.unwrap();
    assert_eq!((exit.signal, exit.detail.contains("no daemon")), (Some(9), true));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_dead_run_is_shown_as_the_next_one_s() {
    let mut world = World::new(RestartPolicy::default());
    world.until(|shown| shown.session.is_some() && shown.details.pid == Some(1001)).await;
    world.engine.set_manner(Manner::Silent);
    world.die(1).await;
    let shown = world.until(|shown| shown.details.pid == Some(1002)).await;
    assert!(shown.session.is_none() && shown.times.ready_at.is_none());
    assert_eq!(shown.info().status, Status::Restarting);
}

#[tokio::test(start_paused = true)]
async fn a_death_that_overtakes_its_start_is_told_after_it() {
    let mut world = World::new(RestartPolicy { max: 0, ..RestartPolicy::default() });
    world.engine.delay_starts(Delay::BeforeItIsTold);
    world.engine.exists(&key("time", 1)).await;
    world.engine.die(&key("time", 1), Exit::code(3));
    world.engine.delay_starts(Delay::None);
    world.status(Status::Error).await;
    let events = world.event_log.read(None, Part::After(0)).await;
    let told: Vec<&str> = events.iter().map(|(_, event)| event.event.as_str()).collect();
    assert_eq!(told, ["starting", "started", "ended", "gave-up"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_runs_as_described_is_left_alone() {
    let mut world = World::new(RestartPolicy::default());
    world.until(|shown| shown.session.is_some()).await;
    let later = Timestamp::from_second(1).unwrap();
    let same = Stored { created_at: later, ..stored(RestartPolicy::default()) };
    world.send(Message::Replace(Box::new(same))).await;
    let shown = world.until(|shown| shown.created_at == later).await;
    assert_eq!(shown.info().status, Status::Running);
    assert_eq!((world.engine.starts().len(), world.engine.stops().len()), (1, 0));
}

/// What the log knows of the server, and no run of it is left.
fn left(world: &World) -> Inherited {
    world.event_log.close();
    let known = event_log::earlier_runs(&world.dir.path().join("events.db"));
    let (mut inherited, _) = crate::startup::inherited::sort_out(known, Vec::new());
    inherited.remove(&"time".parse().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_goes_on_under_the_next_daemon() {
    let mut world = World::new(RestartPolicy::default());
    for run in 1..=4 {
        world.die(run).await;
    }
    let before = world.until(|shown| shown.info().restarts == 4).await.info();
    let mut next = World::after(FakeEngine::default(), RestartPolicy::default(), &left(&world));
    let after = next.handle.view.borrow().info();
    assert_eq!((after.restarts, after.restarts_total), (4, before.restarts_total));
    assert_eq!((after.status, after.generation), (Status::Restarting, 4));
    assert_eq!(after.last_exit.as_ref().unwrap().code, Some(1));
    let apart = |of: fn(&ServerInfo) -> Option<Timestamp>| {
        of(&after).unwrap().duration_since(of(&before).unwrap()).abs().as_secs()
    };
    assert_eq!(apart(|info| info.next_restart_at), 0);
    assert_eq!(apart(|info| info.last_restart_at), 0);
    assert!(after.reason.contains("restart 4 of 10 in"), "{}", after.reason);
    for run in 5..=11 {
        next.die(run).await;
    }
    next.status(Status::Error).await;

    let mut third = World::after(FakeEngine::default(), RestartPolicy::default(), &left(&next));
    let info = third.status(Status::Error).await.info();
    assert_eq!((info.generation, third.engine.starts().len()), (11, 0));
    assert!(info.reason.starts_with("gave up after 10 restarts"), "{}", info.reason);
}

#[tokio::test(start_paused = true)]
async fn another_server_of_the_same_name_has_a_past_of_its_own() {
    let mut world = World::new(RestartPolicy { max: 0, ..RestartPolicy::default() });
    world.die(1).await;
    world.status(Status::Error).await;
    let other = Stored {
        created_at: Timestamp::from_second(1).unwrap(),
        ..stored(RestartPolicy::default())
    };
    let mut next = World::with(FakeEngine::default(), other, &left(&world));
    let info = next.status(Status::Running).await.info();
    assert_eq!((info.generation, info.restarts, info.last_exit.is_none()), (2, 0, true));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_of_a_server_that_was_removed() {
    let mut world = World::new(RestartPolicy::default());
    world.die(1).await;
    world.until(|shown| shown.info().generation == 2).await;
    world.send(Event::Want(Wanted::Gone)).await;
    timeout(LIMIT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(left(&world).progress, None);
}
