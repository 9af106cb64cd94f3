//! Servers in containers, and what others do to those and to their engine.

use mainstay_core::{Cause, ContainerSpec, Workload, WorkloadKind};
use mainstay_proxy::{AttachedRun, Local};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use crate::state::event_log::EarlierRuns as Known;

const WHY: &str = "docker does not answer at unix:///nowhere: connection refused";

/// Longer than any pause between two attempts at a healthy server.
const MOMENT: Duration = Duration::from_secs(3);

fn contained(policy: RestartPolicy) -> Stored {
    let image: ContainerSpec = serde_json::from_value(json!({ "image": "time" })).unwrap();
    let mut stored = stored(policy);
    stored.spec.workload = Workload::Container(image);
    stored
}

impl World {
    fn container() -> Self {
        Self::container_with(RestartPolicy::default())
    }

    fn container_with(policy: RestartPolicy) -> Self {
        Self::with(FakeEngine::default(), contained(policy), &Inherited::default())
    }

    /// Waits until there is a session with that run.
    async fn speaks(&mut self, run: u64) -> Snapshot {
        let up = |shown: &Snapshot| {
            let info = shown.info();
            info.status == Status::Running && info.generation == run && shown.session.is_some()
        };
        self.until(up).await
    }

    /// A user of the server, without an MCP client.
    async fn user(&self) -> Local {
        self.server.local(&crate::gateway::identity()).await.unwrap()
    }

    async fn events(&self) -> Vec<String> {
        let events = self.event_log.read(None, Part::After(0)).await;
        events.into_iter().map(|(_, event)| event.event).collect()
    }

    /// The server is forgotten, by everybody.
    async fn ends_forgotten(mut self, last: u64) {
        let end = timeout(LIMIT, &mut self.driver).await.unwrap().unwrap();
        assert_eq!(end, DriverEnd::ServerRemoved(RunId::new(last)));
        assert_eq!(self.store.load().unwrap(), []);
        assert!(self.engine.forgotten().iter().any(|server| server.as_str() == "time"));
        let refused = self.server.local(&crate::gateway::identity()).await.unwrap_err();
        assert!(refused.to_string().contains("removed"), "{refused}");
    }
}

/// A request that is with the server.
fn asks(mut user: Local) -> JoinHandle<(Local, bool)> {
    tokio::spawn(async move {
        let answered = user.ask("time/now", None).await.is_ok();
        (user, answered)
    })
}

fn run(shown: &Snapshot) -> AttachedRun {
    shown.session.as_ref().unwrap().run.clone()
}

#[tokio::test(start_paused = true)]
async fn a_restart_by_someone_that_looked_like_an_exit_does_not_count() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.die(&key("time", 1), Exit::code(137));
    assert_eq!(world.until(|shown| shown.info().generation == 2).await.info().restarts, 1);
    world.engine.amend(&key("time", 1), Cause::RestartedBySomeone);
    world.until(|shown| shown.info().restarts == 0).await;
    let info = world.speaks(2).await.info();
    assert_eq!((info.restarts, info.last_exit.unwrap().cause.as_str()), (0, "restarted"));
    assert!(world.events().await.contains(&"amended".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_restart_by_someone_is_adopted_while_the_server_is_up() {
    let mut world = World::container();
    let before = world.speaks(1).await;
    let user = world.user().await;
    world.engine.restart_by_someone(&key("time", 1));
    let after = world.speaks(2).await;
    assert!(!Arc::ptr_eq(&run(&before).run, &run(&after).run));
    assert_eq!(
        (after.details.pid, after.details.container.as_deref()),
        (Some(1002), Some("time-container"))
    );
    let info = after.info();
    assert_eq!((info.restarts, info.last_exit.unwrap().cause.as_str()), (0, "restarted"));
    assert!(info.started_at.is_some());
    let note = run(&after).after.as_ref().map(|why| why.text.clone()).unwrap();
    assert!(note.starts_with("restarted by someone else"), "{note}");
    assert!(asks(user).await.unwrap().1);
    assert_eq!(world.engine.starts().len(), 1);
    assert_eq!(world.events().await[3..], ["adopted", "ready"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_no_news_told_is_found_in_the_list() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.plant(key("time", 2));
    let alive = FoundState::Alive { pid: Some(7), container: None, age: Duration::ZERO };
    let found = vec![(WorkloadKind::Container, RunId::new(2), alive)];
    world.send(Event::Listed { begun: clock::now(), found }).await;
    assert_eq!(world.speaks(2).await.details.pid, Some(7));
    assert_eq!((world.engine.starts().len(), world.engine.kills().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_starts_during_a_delay_is_adopted() {
    let mut world = World::container();
    world.die(1).await;
    world.die(2).await;
    world.until(|shown| shown.info().next_restart_at.is_some()).await;
    world.engine.restart_by_someone(&key("time", 2));
    let info = world.speaks(3).await.info();
    assert_eq!((info.restarts, info.next_restart_at), (1, None));
    assert_eq!(world.engine.starts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_starts_although_it_is_stopped_is_stopped_again() {
    let mut world = World::container();
    world.speaks(1).await;
    world.send(Event::Want(Wanted::Off)).await;
    world.status(Status::Stopped).await;
    let new = world.engine.restart_by_someone(&key("time", 1));
    world.until(|shown| shown.info().generation == 2).await;
    world.status(Status::Stopped).await;
    assert_eq!((world.engine.stops().last(), world.engine.alive()), (Some(&new), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_removal_forgets_the_server_whatever_it_does() {
    let mut up = World::container();
    up.speaks(1).await;
    up.engine.end_by(&key("time", 1), Cause::Removed);
    up.ends_forgotten(1).await;

    let mut resting = World::container();
    resting.die(1).await;
    resting.die(2).await;
    resting.until(|shown| shown.info().next_restart_at.is_some()).await;
    resting.engine.end_by(&key("time", 2), Cause::Removed);
    resting.ends_forgotten(2).await;

    let mut given_up = World::container_with(RestartPolicy { max: 0, ..Default::default() });
    given_up.die(1).await;
    given_up.status(Status::Error).await;
    given_up.engine.end_by(&key("time", 1), Cause::Removed);
    given_up.ends_forgotten(1).await;

    let mut stopped = World::container();
    stopped.speaks(1).await;
    stopped.send(Event::Want(Wanted::Off)).await;
    stopped.status(Status::Stopped).await;
    stopped.engine.end_by(&key("time", 1), Cause::Removed);
    stopped.ends_forgotten(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_requests_and_keeps_the_session() {
    let mut world = World::container();
    let before = world.speaks(1).await;
    let user = world.user().await;
    world.engine.pause(&key("time", 1));
    let info = world.status(Status::Waiting).await.info();
    assert_eq!(info.reason, "paused by someone else");
    let asked = asks(user);
    sleep(Duration::from_secs(30)).await;
    assert!(!asked.is_finished());
    world.engine.unpause(&key("time", 1));
    assert!(asked.await.unwrap().1);
    assert!(Arc::ptr_eq(&run(&before).run, &run(&world.speaks(1).await).run));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_lives_through_an_outage_keeps_its_session() {
    let mut world = World::container();
    let before = world.speaks(1).await;
    let user = world.user().await;
    world.engine.go_away(WHY);
    let info = world.status(Status::Waiting).await.info();
    assert!(info.reason.starts_with(WHY), "{}", info.reason);
    let asked = asks(user);
    sleep(Duration::from_secs(30)).await;
    let unknown = vec![(WorkloadKind::Container, RunId::new(1), FoundState::Unknown)];
    world.send(Event::Listed { begun: clock::now(), found: unknown }).await;
    assert!(!asked.is_finished());
    world.engine.come_back();
    assert!(asked.await.unwrap().1);
    let after = world.speaks(1).await;
    assert!(Arc::ptr_eq(&run(&before).run, &run(&after).run));
    assert_eq!((after.info().restarts, world.engine.starts().len()), (0, 1));
    assert_eq!(world.events().await[3..], ["engine-away", "engine-back", "request"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_an_outage_takes_is_started_again_soon_after_it() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.go_away(WHY);
    world.engine.end_by(&key("time", 1), Cause::EngineAway);
    sleep(Duration::from_secs(600)).await;
    let info = world.handle.view.borrow().info();
    assert_eq!(info.status, Status::Waiting);
    assert!(info.reason.ends_with("; started when it is back"), "{}", info.reason);
    let back = Instant::now();
    world.engine.come_back();
    assert_eq!(world.engine.started(2).await, key("time", 2));
    assert!(back.elapsed() <= MOMENT, "{:?}", back.elapsed());
    assert_eq!(world.speaks(2).await.info().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_an_outage_cuts_is_taken_up_again() {
    let mut world = World::container();
    let before = world.speaks(1).await;
    world.engine.go_away(WHY);
    world.status(Status::Waiting).await;
    world.engine.cut(&key("time", 1));
    run(&before).closed().await;
    sleep(MOMENT).await;
    world.engine.come_back();
    let other = |shown: &Snapshot| {
        shown
            .session
            .as_ref()
            .is_some_and(|session| !Arc::ptr_eq(&session.run.run, &run(&before).run))
    };
    world.until(other).await;
    sleep(MOMENT).await;
    assert_eq!(world.speaks(1).await.info().restarts, 0);
    assert_eq!((world.engine.starts().len(), world.engine.kills().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_start_for_which_there_is_no_engine_waits_for_it() {
    let engine = FakeEngine::default();
    engine.go_away(WHY);
    let policy = RestartPolicy { max: 0, ..RestartPolicy::default() };
    let mut world = World::with(engine, contained(policy), &Inherited::default());
    world.engine.started(1).await;
    let info = world.status(Status::Waiting).await.info();
    assert!(info.reason.starts_with(WHY), "{}", info.reason);
    sleep(LIMIT / 2).await;
    assert_eq!(world.engine.starts().len(), 1);
    world.engine.come_back();
    assert_eq!(world.speaks(2).await.info().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn the_return_of_an_engine_does_not_overtake_the_start_that_failed_without_it() {
    let engine = FakeEngine::default();
    engine.go_away(WHY);
    engine.delay_starts(Delay::BeforeItIsTold);
    let stored = contained(RestartPolicy::default());
    let mut world = World::with(engine, stored, &Inherited::default());
    world.engine.started(1).await;
    sleep(MOMENT).await;
    world.engine.come_back();
    sleep(MOMENT).await;
    world.engine.delay_starts(Delay::None);
    assert_eq!(world.speaks(2).await.info().restarts, 0);
    let events = world.events().await;
    let told: Vec<&str> = events.iter().map(String::as_str).collect();
    assert_eq!(told[..4], ["starting", "engine-away", "ended", "engine-back"]);
}

#[tokio::test(start_paused = true)]
async fn a_container_is_removed_when_the_server_is_run_otherwise() {
    let other = || Message::Replace(Box::new(stored(RestartPolicy::default())));
    let released = |world: &World| world.engine.released().len();
    let mut up = World::container();
    up.speaks(1).await;
    up.send(other()).await;
    assert_eq!((up.engine.started(2).await, released(&up)), (key("time", 2), 1));
    up.speaks(2).await;
    up.send(Event::Restart).await;
    up.speaks(3).await;
    assert_eq!((released(&up), up.engine.forgotten()), (1, Vec::new()), "its log stays");

    let mut off = World::container();
    off.speaks(1).await;
    off.send(Event::Want(Wanted::Off)).await;
    off.status(Status::Stopped).await;
    off.send(other()).await;
    off.until(|shown| matches!(shown.spec.workload, Workload::Process(_))).await;
    sleep(MOMENT).await;
    assert_eq!((released(&off), off.engine.starts().len()), (1, 1));
    off.send(Event::Want(Wanted::On)).await;
    off.speaks(2).await;
    assert_eq!(released(&off), 1);

    let mut changed = World::container();
    changed.speaks(1).await;
    let policy = RestartPolicy { max: 3, ..RestartPolicy::default() };
    changed.send(Message::Replace(Box::new(contained(policy)))).await;
    changed.speaks(2).await;
    assert_eq!(released(&changed), 0, "its engine decides what becomes of the container");
}

#[tokio::test(start_paused = true)]
async fn a_newer_run_is_adopted_only_where_the_server_runs() {
    let mut world = World::new(RestartPolicy::default());
    world.speaks(1).await;
    let alive = FoundState::Alive { pid: None, container: None, age: Duration::ZERO };
    let of = |home, run, state| (home, RunId::new(run), state);
    let found =
        vec![of(WorkloadKind::Process, 1, alive.clone()), of(WorkloadKind::Container, 2, alive)];
    world.engine.plant(key("time", 2));
    world.send(Event::Listed { begun: clock::now(), found }).await;
    sleep(MOMENT).await;
    assert_eq!(world.speaks(1).await.info().restarts, 0);
    assert_eq!(world.engine.kills(), [key("time", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_by_someone_is_respected_by_the_next_daemon_too() {
    let policy = RestartPolicy { on_stop: OnStop::Respect, ..RestartPolicy::default() };
    let mut world = World::container_with(policy.clone());
    world.store.put(vec![contained(policy)]).await.unwrap();
    world.speaks(1).await;
    world.engine.end_by(&key("time", 1), Cause::StoppedBySomeone);
    let before = world.status(Status::Stopped).await.info();
    let kept = || world.store.load().unwrap().remove(0);
    while kept().wanted != Wanted::Off {
        sleep(MOMENT).await;
    }

    let mut next = World::with(FakeEngine::default(), kept(), &left(&world));
    let after = next.status(Status::Stopped).await.info();
    assert_eq!((&after.reason, after.generation), (&before.reason, 1));
    assert!(after.reason.starts_with("stopped by someone else"), "{}", after.reason);
    assert_eq!(next.engine.starts(), []);
    next.send(Event::Want(Wanted::On)).await;
    next.speaks(2).await;
}

#[tokio::test(start_paused = true)]
async fn every_reaction_is_in_the_log() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let file = Arc::new(log.reopen().unwrap());
    let listener = tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(file);
    // A lone listener is not asked about what another thread says first, and never hears it then.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _listening = tracing::subscriber::set_default(listener.finish());

    let policy = RestartPolicy { on_stop: OnStop::Respect, max: 0, ..RestartPolicy::default() };
    let mut world = World::container_with(policy.clone());
    world.speaks(1).await;
    world.send(Event::News(News::Unhealthy { key: key("time", 1) })).await;
    world.status(Status::Unhealthy).await;
    world.send(Event::News(News::Healthy { key: key("time", 1) })).await;
    world.speaks(1).await;
    world.engine.end_by(&key("time", 1), Cause::StoppedBySomeone);
    world.status(Status::Stopped).await;
    for manner in [Manner::Silent, Manner::Refuses] {
        let engine = FakeEngine::default();
        engine.set_manner(manner);
        let mut world = World::with(engine, contained(policy.clone()), &Inherited::default());
        world.status(Status::Error).await;
    }

    let log = std::fs::read_to_string(log.path()).unwrap();
    let told = |level: &str, what: &str| {
        let line = |line: &str| line.trim_start().starts_with(level) && line.contains(what);
        assert!(log.lines().any(line), "{level} {what}: {log}");
    };
    told("WARN", "server unhealthy");
    told("INFO", "server healthy again");
    told("INFO", "server left stopped");
    told("WARN", "server not ready in time");
    told("WARN", "server hangs");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_removed_meanwhile_cannot_be_started() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.lose_containers();
    world.engine.die(&key("time", 1), Exit::code(1));
    world.ends_forgotten(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_starts_without_an_engine_takes_runs_for_alive() {
    let engine = FakeEngine::default();
    engine.plant(key("time", 7));
    engine.go_away(WHY);
    let found = engine.list().await.unwrap();
    let found = found.into_iter().map(|found| (WorkloadKind::Container, found)).collect();
    let (mut inherited, _) = crate::startup::inherited::sort_out(Known::default(), found);
    let inherited = inherited.remove(&key("time", 7).server).unwrap();
    let mut world = World::with(engine, contained(RestartPolicy::default()), &inherited);
    let shown = world.status(Status::Waiting).await;
    assert_eq!((shown.info().generation, shown.info().started_at), (7, None));
    sleep(LIMIT / 2).await;
    world.engine.go_away(WHY);
    world.until(|shown| shown.info().reason.starts_with(WHY)).await;
    world.engine.come_back();
    world.speaks(7).await;
    assert_eq!(world.engine.starts(), []);
    let (age, container) = (Duration::from_secs(60), Some("c".to_owned()));
    let alive = FoundState::Alive { pid: None, container, age };
    let found = vec![(WorkloadKind::Container, RunId::new(7), alive)];
    let listed = Instant::now();
    world.send(Event::Listed { begun: clock::now(), found }).await;
    let shown = world.until(|shown| shown.details.container.is_some()).await;
    assert!(shown.info().started_at.is_some());
    assert!(listed.elapsed() <= MOMENT, "shown after {:?}", listed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_removal_does_not_wait_for_an_engine_that_is_away() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.go_away(WHY);
    world.status(Status::Waiting).await;
    world.send(Event::Want(Wanted::Gone)).await;
    assert_eq!((world.engine.stops().len(), world.engine.kills().len()), (0, 0));
    world.ends_forgotten(1).await;
}

#[tokio::test(start_paused = true)]
async fn nor_does_the_end_of_the_daemon() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.go_away(WHY);
    world.status(Status::Waiting).await;
    world.send(Event::Retire).await;
    let end = timeout(MOMENT, &mut world.driver).await.unwrap().unwrap();
    assert_eq!(end, DriverEnd::DaemonStops);
    assert_eq!(world.engine.alive(), [key("time", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_to_run_elsewhere_does_not_wait_for_its_old_engine() {
    let mut world = World::container();
    world.speaks(1).await;
    world.engine.go_away(WHY);
    world.engine.end_by(&key("time", 1), Cause::EngineAway);
    world.until(|shown| shown.info().reason.contains("started when it is back")).await;
    world.engine.answer_quietly();
    world.send(Message::Replace(Box::new(stored(RestartPolicy::default())))).await;
    world.speaks(2).await;
}
