//! All engines, and which of them runs which workload.

use std::sync::Arc;

use mainstay_core::{ServerName, Workload, WorkloadKind};
use mainstay_engine::{Engine, EngineError, Found, News};
use tokio::sync::broadcast;

/// All engines. Clones share them.
#[derive(Clone)]
pub(crate) struct Engines {
    pub(crate) process: Arc<dyn Engine>,
    pub(crate) container: Arc<dyn Engine>,
    pub(crate) remote: Arc<dyn Engine>,
}

impl Engines {
    /// The engine of a kind of workload.
    pub(crate) fn at(&self, kind: WorkloadKind) -> &Arc<dyn Engine> {
        match kind {
            WorkloadKind::Process => &self.process,
            WorkloadKind::Container => &self.container,
            WorkloadKind::Remote => &self.remote,
        }
    }

    /// The engine that runs such a workload.
    pub(crate) fn of(&self, workload: &Workload) -> &Arc<dyn Engine> {
        self.at(workload.kind())
    }

    /// Aborts the background tasks of all engines, because another daemon has taken over.
    pub(crate) fn abandon(&self) {
        for kind in WorkloadKind::ALL {
            self.at(kind).abandon();
        }
    }

    /// All runs of this instance. Fails if one engine cannot list, because missing runs count as gone.
    pub(crate) async fn list(&self) -> Result<Vec<(WorkloadKind, Found)>, EngineError> {
        let mut all = Vec::new();
        for kind in WorkloadKind::ALL {
            let found = self.at(kind).list().await?;
            all.extend(found.into_iter().map(|found| (kind, found)));
        }
        Ok(all)
    }

    /// The news of each engine from now on.
    pub(crate) fn watch(&self) -> Vec<broadcast::Receiver<News>> {
        WorkloadKind::ALL.map(|kind| self.at(kind).watch()).into()
    }

    /// Removes a server from all engines: it may have moved from one to another.
    pub(crate) async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        for kind in WorkloadKind::ALL {
            self.at(kind).forget(server).await?;
        }
        Ok(())
    }
}
