//! The engine of servers that run elsewhere. The conformance suite is about workloads that an engine
//! runs itself; what remains of it here are the guarantees about runs.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_core::{Cause, Exit, RemoteSpec, ServerSpec, Workload};
use mainstay_engine::{
    Engine as _, EngineError, Found, FoundState, LogRange, News, RemoteEngine, StartError, Started,
};
use mainstay_testkit::samples::{key, spec};

fn remote() -> ServerSpec {
    let url = "https://example.com/mcp".parse().unwrap();
    let workload =
        Workload::Remote(RemoteSpec { url, headers: BTreeMap::new(), variables: BTreeMap::new() });
    ServerSpec { workload, ..spec("api") }
}

#[tokio::test]
async fn a_run_is_listed_until_its_end_which_is_reported_once() {
    let engine = RemoteEngine::default();
    let mut news = engine.watch();
    let key = key("api", 1);
    assert_eq!(engine.start(&key, &remote()).await.unwrap(), Started::default());
    let found = engine.list().await.unwrap();
    assert_eq!((found.len(), &found[0].key), (1, &key));
    assert!(matches!(found[0].state, FoundState::Alive { pid: None, .. }));
    engine.stop(&key, Duration::from_secs(1)).await.unwrap();
    engine.stop(&key, Duration::from_secs(1)).await.unwrap();
    engine.kill(&key).await.unwrap();
    let exit = Exit::code(0);
    let exited = News::Exited { key: key.clone(), exit, stderr: Vec::new() };
    assert_eq!(news.recv().await.unwrap(), exited);
    assert_eq!(news.recv().await.unwrap(), News::Gone { key, cause: Cause::Exited(exit) });
    assert!(news.is_empty());
    assert_eq!(engine.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn runs_of_an_earlier_engine_are_resumed() {
    let (key, age) = (key("api", 7), Duration::from_secs(60));
    let engine = RemoteEngine::resumed([(key.clone(), age)]);
    let found = engine.list().await.unwrap();
    let state = FoundState::Alive { pid: None, container: None, age };
    assert_eq!(found, [Found { key: key.clone(), state }]);
    engine.kill(&key).await.unwrap();
    assert_eq!(engine.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_local_process_is_refused() {
    let engine = RemoteEngine::default();
    assert!(engine.prepare(&remote()).await.is_ok());
    let refused = engine.start(&key("time", 1), &spec("time")).await;
    assert!(matches!(refused, Err(StartError::OtherEngine { engine: "process" })));
    assert_eq!(engine.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_remote_run_has_no_streams_port_or_log() {
    let engine = RemoteEngine::default();
    let key = key("api", 1);
    assert!(matches!(engine.attach(&key).await, Err(EngineError::NoSuchRun(_))));
    assert!(matches!(engine.stderr_tail(&key).await, Err(EngineError::NoSuchRun(_))));
    engine.start(&key, &remote()).await.unwrap();
    assert!(matches!(engine.attach(&key).await, Err(EngineError::Elsewhere(_))));
    assert!(matches!(engine.endpoint(&key, 80).await, Err(EngineError::Elsewhere(_))));
    assert_eq!(engine.stderr_tail(&key).await.unwrap(), b"");
    let range = LogRange { follow: true, ..LogRange::default() };
    assert_eq!(engine.logs(&key.server, range).await.unwrap().recv().await, None);
}
