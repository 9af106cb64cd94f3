//! Containers: Docker, and what speaks its language, such as Podman.

#[allow(dead_code, reason = "used by the engine that comes next")]
pub(crate) mod body;
#[allow(dead_code, reason = "used by the engine that comes next")]
pub(crate) mod discover;
#[allow(dead_code, unused_imports, reason = "used by the engine that comes next")]
pub(crate) mod noticing;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::{ContainerSpec, ServerName, ServerSpec};
use tokio::sync::{broadcast, mpsc};

use crate::{Engine, EngineError, Found, LogRange, News, RunKey, StartError, Started, Stdio};

/// What the engine of containers needs to know.
#[derive(Debug)]
pub struct DockerConfig {
    /// Which instance of Mainstay this is. Only what bears its label is ever touched.
    pub instance: String,
    /// The servers there are. What is left of others is swept.
    pub wanted: BTreeSet<ServerName>,
    /// Where it is written down which run is which.
    pub records_dir: PathBuf,
    /// Where servers' logs are written.
    pub logs_dir: PathBuf,
    /// The environment in which engines are looked for.
    pub env: Vec<(OsString, OsString)>,
    /// When a log is rotated.
    pub log_max_bytes: u64,
    /// How many rotated logs are kept.
    pub log_keep: u32,
}

/// The engine of containers.
#[derive(Debug)]
pub struct DockerEngine {
    news: broadcast::Sender<News>,
}

/// A step of a pull, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// So much of what is known to be needed has arrived.
    Bytes {
        /// Bytes that are here.
        done: u64,
        /// Bytes that are known to be needed, so far.
        total: u64,
    },
    /// The image is here.
    Done,
    /// It cannot be had; the text says why.
    Failed(String),
}

impl DockerEngine {
    /// Opens the engine. That succeeds whether a container engine answers or not.
    pub async fn open(_config: DockerConfig) -> Result<Self, EngineError> {
        Ok(Self { news: broadcast::channel(256).0 })
    }

    /// Pulls the image of such a server. The channel closes after the end.
    pub async fn pull(
        &self,
        _container: &ContainerSpec,
    ) -> Result<mpsc::Receiver<Pulled>, StartError> {
        Err(StartError::NoEngine { tried: Vec::new() })
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn prepare(&self, _spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        Err(StartError::NoEngine { tried: Vec::new() })
    }

    async fn start(&self, _key: &RunKey, _spec: &ServerSpec) -> Result<Started, StartError> {
        Err(StartError::NoEngine { tried: Vec::new() })
    }

    async fn stop(&self, _key: &RunKey, _grace: Duration) -> Result<(), EngineError> {
        Ok(())
    }

    async fn kill(&self, _key: &RunKey) -> Result<(), EngineError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        Ok(Vec::new())
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    async fn logs(
        &self,
        _server: &ServerName,
        _range: LogRange,
    ) -> Result<mpsc::Receiver<String>, EngineError> {
        Ok(mpsc::channel(1).1)
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        Err(EngineError::NoSuchRun(key.clone()))
    }

    async fn endpoint(&self, key: &RunKey, _port: u16) -> Result<Vec<SocketAddr>, EngineError> {
        Err(EngineError::NoSuchRun(key.clone()))
    }

    async fn stderr_tail(&self, key: &RunKey) -> Result<Vec<u8>, EngineError> {
        Err(EngineError::NoSuchRun(key.clone()))
    }

    async fn forget(&self, _server: &ServerName) -> Result<(), EngineError> {
        Ok(())
    }
}
