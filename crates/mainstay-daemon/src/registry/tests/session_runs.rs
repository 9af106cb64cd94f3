//! Runs that belong to single sessions.

use mainstay_api::{EventRecord, Which};
use mainstay_core::supervisor::SessionRunEnd;
use mainstay_core::{Cause, Exit, ProxySettings};
use mainstay_engine::RunKey;
use mainstay_proxy::frame::Parsed;
use mainstay_proxy::{Arrival, Session};

use super::*;
use crate::state::event_log::Part;

const MINUTE: Duration = Duration::from_secs(60);

fn isolated_container() -> ServerSpec {
    let proxy = ProxySettings { isolate: true, ..ProxySettings::default() };
    ServerSpec { proxy, ..container() }
}

/// A world with an isolated server.
async fn isolated() -> (World, ServerName) {
    let world = World::new();
    let described = vec![isolated_container()];
    let described = world.registry.describe(described, false, &Around::default()).await;
    let name = described.unwrap().remove(0);
    world.runs(&name).await;
    (world, name)
}

impl World {
    /// A session whose own run is up, and that run.
    async fn session(&self, name: &ServerName) -> (Session, RunKey) {
        let session = self.gateway.servers.open(name.as_str()).unwrap();
        let info = json!({"name": "tester", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let message = Parsed::read(message.to_string().into()).unwrap();
        let mut answer = session.request(message, Arrival::New);
        assert!(timeout(LIMIT, answer.next()).await.unwrap().unwrap().is_answer);
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        session.post(&Parsed::read(initialized.to_string().into()).unwrap());
        let own = own(name, session.id()).run_name();
        self.own_run_is_up(&own).await;
        (session, key(own.as_str(), 1))
    }

    /// Waits until the run of this name is up.
    async fn own_run_is_up(&self, own: &ServerName) {
        let is_up = async {
            loop {
                let view = self.registry.state().session_drivers.get(own).map(|it| it.view.clone());
                if view.is_some_and(|view| view.borrow().session.is_some()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, is_up).await.unwrap();
    }

    /// Ends a session as its client does.
    fn close(&self, name: &ServerName, session: &Session) {
        self.gateway.servers.close(name.as_str(), session.id()).unwrap();
    }

    fn is_alive(&self, run: &RunKey) -> bool {
        self.engine.alive().contains(run)
    }

    fn starts_of(&self, run: &RunKey) -> usize {
        self.engine.starts().iter().filter(|(started, _)| started.server == run.server).count()
    }

    /// Waits, for less than a minute, until no run of a single session is left.
    async fn until_none_is_left(&self) {
        let ended = async {
            while !self.registry.state().session_drivers.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(MINUTE / 2, ended).await.unwrap();
    }

    /// What the event log has about runs of single sessions, from the wish to end one on.
    async fn ends_told(&self) -> Vec<String> {
        let events = self.event_log.read(None, Part::After(0)).await;
        let events = events.into_iter().map(|(_, event)| event);
        let is_told = |event: &EventRecord| {
            matches!(event.event.as_str(), "wanted" | "session-run-ended" | "removed")
        };
        let told = events.filter(is_told).map(|event| {
            let detail = event.detail.split_once(" (for session ").unwrap().0.to_owned();
            format!("{}: {detail}", event.event)
        });
        told.collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_stopped_a_minute_after_the_end_of_its_session() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    world.close(&name, &session);
    tokio::time::sleep(MINUTE.saturating_sub(Duration::from_secs(1))).await;
    assert!(world.is_alive(&run));
    let (_other, another) = world.session(&name).await;
    assert_ne!(another.server, run.server, "another session has another run");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!world.is_alive(&run) && world.is_alive(&another));
    assert!(world.engine.forgotten().contains(&run.server));
    let told = world.ends_told().await;
    assert_eq!(
        told,
        [
            "wanted: asked to stop: its session has ended",
            "session-run-ended: stopped because its session has ended",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_run_of_an_ended_session_ends_with_its_server() {
    for change in ["stop", "restart", "rm", "daemon stop"] {
        let (world, name) = isolated().await;
        let (session, run) = world.session(&name).await;
        world.close(&name, &session);
        assert!(world.is_alive(&run));
        let which = || Which::Names(vec![name.clone()]);
        match change {
            "stop" => drop(world.registry.stop(which()).await.unwrap()),
            "restart" => drop(world.registry.restart(which()).await.unwrap()),
            "rm" => drop(world.registry.remove(which()).await.unwrap()),
            _ => world.registry.retire().await,
        }
        world.until_none_is_left().await;
        assert!(!world.is_alive(&run), "{change}");
        if change == "stop" {
            world.registry.start(which()).await.unwrap();
            world.runs(&name).await;
            assert_eq!(world.starts_of(&run), 1, "it does not come back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_exits_after_the_end_of_its_session_is_given_up() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    world.close(&name, &session);
    world.engine.die(&run, Exit::code(1));
    world.until_none_is_left().await;
    assert_eq!(world.engine.alive(), [key("time", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_start_brings_no_run_back_that_is_being_stopped() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    world.engine.ignore_stops();
    world.requests.stop(own(&name, session.id()), SessionRunEnd::SessionEnded);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(world.is_alive(&run), "it is still being stopped");
    world.registry.start(Which::Names(vec![name.clone()])).await.unwrap();
    world.until_none_is_left().await;
    assert_eq!(world.engine.alive(), [key("time", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_arrives_late_brings_no_run_back() {
    for change in ["start", "stop", "restart", "describe"] {
        let (world, name) = isolated().await;
        let (session, run) = world.session(&name).await;
        let (_, driver) = world.registry.session_drivers_of(&name).remove(0);
        world.engine.ignore_stops();
        world.requests.stop(own(&name, session.id()), SessionRunEnd::SessionEnded);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(world.is_alive(&run), "it is still being stopped");
        let message = match change {
            "start" => Event::Want(Wanted::On).into(),
            "stop" => Event::Want(Wanted::Off).into(),
            "restart" => Event::Restart.into(),
            _ => {
                let spec = ServerSpec { name: run.server.clone(), ..isolated_container() };
                let created_at = clock::wall();
                Message::Replace(Box::new(Stored { spec, wanted: Wanted::On, created_at }))
            }
        };
        driver.send(message).await;
        world.until_none_is_left().await;
        assert_eq!(world.engine.alive(), [key("time", 1)], "{change}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_run_is_not_reported_as_removed() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    tokio::time::sleep(MINUTE * 30).await;
    world.gateway.sweep();
    world.until_none_is_left().await;
    assert!(!world.is_alive(&run));
    assert!(world.gateway.servers.session(name.as_str(), session.id()).is_ok());
    assert_eq!(
        world.ends_told().await,
        [
            "wanted: asked to stop: its client is idle",
            "session-run-ended: stopped; the next request of its client starts another run",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_session_is_paused_and_followed_by_another_one() {
    let world = World::new();
    let described = world.registry.describe(vec![container()], false, &Around::default()).await;
    let name = described.unwrap().remove(0);
    world.runs(&name).await;
    let session = world.gateway.servers.open(name.as_str()).unwrap();
    let id = session.id();
    let own_key = own(&name, id);
    let own = own_key.run_name();
    for run in 1..=2 {
        // The second is wanted while the first is being ended.
        world.requests.start(own_key.clone());
        // The first one shows as up until it has ended.
        while run > 1 && world.registry.session_drivers_of(&name).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.own_run_is_up(&own).await;
        assert_eq!(world.engine.starts().last().unwrap().0, key(own.as_str(), run));
        world.requests.stop(own_key.clone(), SessionRunEnd::Idle);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.requests.stop(own_key, SessionRunEnd::SessionEnded);
    let ended = async {
        while !world.registry.state().session_drivers.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, ended).await.unwrap();
    assert_eq!(world.engine.alive(), [key("time", 1)]);
}

impl World {
    /// Whether the next request of a session has a result.
    async fn is_served(&self, session: &Session) -> bool {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "time/now"});
        let message = Parsed::read(message.to_string().into()).unwrap();
        let mut answer = session.request(message, Arrival::New);
        let answer = timeout(LIMIT, answer.next()).await.unwrap().unwrap();
        std::str::from_utf8(&answer.message).unwrap().contains("\"result\"")
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_while_an_idle_run_is_stopped_is_served_by_the_next_run() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    world.engine.ignore_stops();
    tokio::time::sleep(MINUTE * 30).await;
    world.gateway.sweep();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(world.is_alive(&run), "it is still being stopped");
    assert!(world.is_served(&session).await);
    assert_eq!(world.starts_of(&run), 2);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_container_someone_removed_gets_another_run() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    world.engine.end_by(&run, Cause::Removed);
    world.until_none_is_left().await;
    assert!(world.is_served(&session).await);
    assert_eq!(world.starts_of(&run), 2);
}

#[tokio::test(start_paused = true)]
async fn runs_of_single_sessions_stop_when_sessions_share_one() {
    let (world, name) = isolated().await;
    let (session, run) = world.session(&name).await;
    let (ended, retained) = world.session(&name).await;
    world.close(&name, &ended);
    world.registry.describe(vec![container()], true, &Around::default()).await.unwrap();
    world.until_none_is_left().await;
    assert!(!world.is_alive(&run) && !world.is_alive(&retained));
    assert!(world.is_served(&session).await);
    assert_eq!((world.starts_of(&run), world.engine.alive()), (1, vec![key("time", 2)]));
    let told = world.ends_told().await;
    assert!(told.iter().any(|it| it.contains("all sessions share one run now")), "{told:?}");
}
