//! The registry on a fake engine.

mod entries;
mod session_runs;

use std::time::Duration;

use mainstay_core::{Cause, ContainerSpec, SessionRunKey, Status, Workload};
use mainstay_engine::{Engine, RemoteEngine};
use mainstay_testkit::fake_engine::{FakeEngine, HOST};
use mainstay_testkit::samples::{key, spec};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::engines::Engines;
use crate::entries::Clients;
use crate::gateway::Gateway;
use crate::listen::{Access, Sockets};
use crate::run_requests::{self, RunRequestSender};
use crate::run_session::SessionFiles;
use crate::state::event_log::EventLog;
use crate::state::session_store::SessionStore;
use crate::state::store::Store;

/// Longer than anything here takes in the test's time.
const LIMIT: Duration = Duration::from_secs(3600);

struct World {
    engine: FakeEngine,
    registry: Registry,
    store: Store,
    event_log: EventLog,
    gateway: Gateway,
    requests: RunRequestSender,
    tasks: [JoinHandle<()>; 2],
    dir: Arc<TempDir>,
}

impl World {
    fn new() -> Self {
        Self::after(FakeEngine::default(), Arc::new(tempfile::tempdir().unwrap()))
    }

    /// The world of a daemon that comes after another one.
    fn after(engine: FakeEngine, dir: Arc<TempDir>) -> Self {
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let event_log = EventLog::open(&dir.path().join("events.db")).unwrap();
        let (sessions, kept) =
            SessionStore::open(&dir.path().join("sessions.db"), &dir.path().join("streams"), 1);
        let (sender, requests) = run_requests::channel();
        let gateway = Gateway::new(
            event_log.clone(),
            Arc::new(sessions),
            kept,
            mainstay_proxy::SessionIds::new(&[0; 32], 0),
            sender.clone(),
        );
        let clients = Clients::of_nobody(dir.path(), &store, &event_log);
        let context = Context {
            engines: Engines {
                process: Arc::new(RemoteEngine::default()),
                container: Arc::new(engine.clone()),
                remote: Arc::new(RemoteEngine::default()),
            },
            store: store.clone(),
            event_log: event_log.clone(),
            session_files: SessionFiles::open(dir.path().join("sessions")).unwrap(),
            servers: Arc::clone(&gateway.servers),
            clients,
            sockets: Sockets(None),
            access: Access::default(),
            daemon: 1,
            is_successor: false,
            boot: "this boot".into(),
        };
        let opened = gateway.clone();
        let open_server: OpenServer =
            Arc::new(move |name, settings, driver| opened.add(name, settings, driver));
        let (registry, ended) = Registry::new(context, open_server, HashMap::new());
        let running = tokio::spawn(registry.clone().run(requests, ended));
        let (mut coming, told) = (engine.watch(), registry.clone());
        let news = tokio::spawn(async move {
            while let Ok(news) = coming.recv().await {
                told.news(news).await;
            }
        });
        let (requests, tasks) = (sender, [running, news]);
        Self { engine, registry, store, event_log, gateway, requests, tasks, dir }
    }

    async fn runs(&self, name: &ServerName) {
        let mut view = self.registry.get(name).unwrap().view;
        let running = view.wait_for(|shown| shown.info().status == Status::Running);
        drop(timeout(LIMIT, running).await.expect("it comes to that").expect("it is driven"));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn own(server: &ServerName, session: &str) -> SessionRunKey {
    SessionRunKey { server: server.clone(), session: session.into() }
}

fn container() -> ServerSpec {
    let image: ContainerSpec = serde_json::from_value(json!({ "image": "time" })).unwrap();
    ServerSpec { workload: Workload::Container(image), ..spec("time") }
}

impl Registry {
    /// As [`Registry::apply`], where only the names matter.
    async fn describe(
        &self,
        specs: Vec<ServerSpec>,
        replace: bool,
        around: &Around,
    ) -> Result<Vec<ServerName>, ApiError> {
        let applied = self.apply(specs, replace, around).await?;
        Ok(applied.into_iter().map(|(name, _)| name).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_engine_decides_about_a_server_is_stored() {
    let world = World::new();
    world.registry.describe(vec![container()], false, &Around::default()).await.unwrap();
    let stored = world.store.load().unwrap();
    let Workload::Container(stored) = &stored[0].spec.workload else { panic!("{stored:?}") };
    assert_eq!(stored.host.as_deref(), Some(HOST));
}

#[tokio::test(start_paused = true)]
async fn a_missing_image_is_an_error_of_its_own_kind() {
    let world = World::new();
    world.engine.lack_images();
    let error =
        world.registry.describe(vec![container()], false, &Around::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoImage);
    assert_eq!(error.message, "`time`: the image `time:latest` is not there");
    assert_eq!(world.store.load().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_somebody_removed_is_let_go_of_with_the_runs_of_single_sessions() {
    let world = World::new();
    let name = world
        .registry
        .describe(vec![container()], false, &Around::default())
        .await
        .unwrap()
        .remove(0);
    world.runs(&name).await;
    let session = "0123456789abcdef";
    let own = own(&name, session);
    world.registry.handle_session_run(mainstay_core::session_runs::Event::Start(own.clone()));
    let own = own.run_name();
    let mut view = world.registry.state().session_drivers[&own].view.clone();
    drop(timeout(LIMIT, view.wait_for(|shown| shown.session.is_some())).await.unwrap().unwrap());

    world.engine.end_by(&key("time", 1), Cause::Removed);
    let driven = async {
        while !world.registry.everything().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, driven).await.unwrap();
    assert_eq!(world.registry.get(&name).unwrap_err().kind, ErrorKind::NoSuchServer);
    assert!(world.engine.alive().is_empty());
    let forgotten = world.engine.forgotten();
    assert!(forgotten.contains(&name) && forgotten.contains(&own));

    // The same name may be used again, and no run number is.
    world.registry.describe(vec![container()], false, &Around::default()).await.unwrap();
    world.runs(&name).await;
    assert_eq!(world.engine.starts().last().unwrap().0, key("time", 2));
}

#[test]
fn an_engine_that_must_not_be_used_is_not_to_be_started() {
    let help = |error| unprepared(&"time".parse().unwrap(), &error).help.unwrap();
    let (kind, tried) = (None, Vec::new());
    let denied = help(StartError::EngineDenied { kind, tried: tried.clone() });
    assert!(
        denied.contains("the group that owns the engine's socket (often `docker`)"),
        "{denied}"
    );
    let refused = help(StartError::NoEngine { kind, tried });
    assert!(refused.contains("start a container engine"), "{refused}");
}

#[test]
fn a_similar_name_is_suggested() {
    let check = |name: &str, expected: Option<&str>| {
        assert_eq!(similar(name, ["filesystem", "time", "web"].into_iter()), expected, "{name}");
    };
    check("tiem", Some("time"));
    check("fs", None);
    check("file", Some("filesystem"));
    check("wbe", Some("web"));
    check("github", None);
}
