//! All engines, and which of them runs which workload.

use std::sync::Arc;

use mainstay_core::{ServerName, Workload};
use mainstay_engine::{Engine, EngineError, Found, News};
use tokio::sync::broadcast;

/// The engine on which a run lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// A process on this machine.
    Process,
    /// A container.
    Container,
    /// Somewhere else, reached by a URL.
    Remote,
}

impl Home {
    const ALL: [Self; 3] = [Self::Process, Self::Container, Self::Remote];

    pub(crate) fn of(workload: &Workload) -> Self {
        match workload {
            Workload::Process(_) => Self::Process,
            Workload::Container(_) => Self::Container,
            Workload::Remote(_) => Self::Remote,
        }
    }
}

/// All engines. Clones share them.
#[derive(Clone)]
pub(crate) struct Engines {
    pub(crate) process: Arc<dyn Engine>,
    pub(crate) container: Arc<dyn Engine>,
    pub(crate) remote: Arc<dyn Engine>,
}

impl Engines {
    /// The engine on which runs of that home live.
    pub(crate) fn at(&self, home: Home) -> &Arc<dyn Engine> {
        match home {
            Home::Process => &self.process,
            Home::Container => &self.container,
            Home::Remote => &self.remote,
        }
    }

    /// The engine that runs such a workload.
    pub(crate) fn of(&self, workload: &Workload) -> &Arc<dyn Engine> {
        self.at(Home::of(workload))
    }

    /// Aborts the background tasks of all engines, because another daemon has taken over.
    pub(crate) fn abandon(&self) {
        for home in Home::ALL {
            self.at(home).abandon();
        }
    }

    /// All runs of this instance. Fails if one engine cannot list, because missing runs count as gone.
    pub(crate) async fn list(&self) -> Result<Vec<(Home, Found)>, EngineError> {
        let mut all = Vec::new();
        for home in Home::ALL {
            let found = self.at(home).list().await?;
            all.extend(found.into_iter().map(|found| (home, found)));
        }
        Ok(all)
    }

    /// The news of each engine from now on.
    pub(crate) fn watch(&self) -> Vec<broadcast::Receiver<News>> {
        Home::ALL.map(|home| self.at(home).watch()).into()
    }

    /// Removes a server from all engines: it may have moved from one to another.
    pub(crate) async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        for home in Home::ALL {
            self.at(home).forget(server).await?;
        }
        Ok(())
    }
}
