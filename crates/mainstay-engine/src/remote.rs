//! Remote servers. Nothing is started or stopped: a run is the time during which a server
//! is wanted, and this engine only keeps the list of runs.
//!
//! No run outlives the engine: the next one is given the list. A
//! remote server has no log here, and is reached by its URL, not through the engine.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::{Cause, Exit, ServerName, ServerSpec, Workload};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;

use crate::{
    Endpoint, Engine, EngineError, Found, FoundState, LogLine, LogRange, News, RunKey, StartError,
    Started, Stdio,
};

/// News that is kept for a slow receiver.
const NEWS: usize = 256;

/// The engine of remote servers.
#[derive(Debug)]
pub struct RemoteEngine {
    /// When each run began.
    runs: Mutex<HashMap<RunKey, Instant>>,
    news: broadcast::Sender<News>,
}

impl Default for RemoteEngine {
    fn default() -> Self {
        Self { runs: Mutex::default(), news: broadcast::channel(NEWS).0 }
    }
}

impl RemoteEngine {
    /// An engine with the runs of an earlier daemon and their ages.
    pub fn resumed(runs: impl IntoIterator<Item = (RunKey, Duration)>) -> Self {
        let now = Instant::now();
        let since = |age| now.checked_sub(age).unwrap_or(now);
        let runs = runs.into_iter().map(|(key, age)| (key, since(age))).collect();
        Self { runs: Mutex::new(runs), ..Self::default() }
    }

    fn end(&self, key: &RunKey) {
        if self.runs().remove(key).is_none() {
            return;
        }
        let exit = Exit::code(0);
        let exited = News::Exited { key: key.clone(), exit, stderr: Vec::new() };
        for news in [exited, News::Gone { key: key.clone(), cause: Cause::Exited(exit) }] {
            // Without a receiver, the next list shows it.
            self.news.send(news).ok();
        }
    }

    /// The error for a request that needs a process on this machine.
    fn refuse(&self, key: &RunKey) -> EngineError {
        if self.runs().contains_key(key) {
            EngineError::Elsewhere(key.clone())
        } else {
            EngineError::NoSuchRun(key.clone())
        }
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunKey, Instant>> {
        mainstay_core::lock(&self.runs)
    }
}

#[async_trait]
impl Engine for RemoteEngine {
    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        match &spec.workload {
            Workload::Remote(_) => Ok(spec.clone()),
            Workload::Process(_) | Workload::Container(_) => {
                Err(StartError::OtherEngine { engine: spec.workload.engine() })
            }
        }
    }

    async fn start(&self, key: &RunKey, spec: &ServerSpec) -> Result<Started, StartError> {
        self.prepare(spec).await?;
        self.runs().insert(key.clone(), Instant::now());
        Ok(Started::default())
    }

    async fn stop(&self, key: &RunKey, _grace: Duration) -> Result<(), EngineError> {
        self.end(key);
        Ok(())
    }

    async fn kill(&self, key: &RunKey) -> Result<(), EngineError> {
        self.end(key);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        let alive = |since: &Instant| FoundState::Alive {
            pid: None,
            container: None,
            age: since.elapsed(),
        };
        let found = |(key, since): (&RunKey, _)| Found { key: key.clone(), state: alive(since) };
        Ok(self.runs().iter().map(found).collect())
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// An empty log that ends at once, also with `follow`.
    async fn logs(
        &self,
        _server: &ServerName,
        _range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError> {
        Ok(mpsc::channel(1).1)
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        Err(self.refuse(key))
    }

    async fn endpoint(&self, key: &RunKey, _port: u16) -> Result<Endpoint, EngineError> {
        Err(self.refuse(key))
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        if self.runs().contains_key(key) {
            Ok(Vec::new())
        } else {
            Err(EngineError::NoSuchRun(key.clone()))
        }
    }

    async fn forget(&self, _server: &ServerName) -> Result<(), EngineError> {
        Ok(())
    }
}
