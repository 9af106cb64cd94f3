//! Periodic work of a daemon, until it is dropped.

use std::convert::Infallible;
use std::time::Duration;

use mainstay_engine::News;
use mainstay_hold::heap::HeapTrimmer;
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::engines::Engines;
use crate::entries::EntryRequest;
use crate::gateway::Gateway;
use crate::listen::ListenerState;
use crate::registry::Registry;

/// How often unused sessions are ended.
const SWEEP: Duration = Duration::from_secs(30);

/// After this many sweeps, the last uses are saved to disk.
const SWEEPS_PER_SAVE: u32 = 20;

/// How often the heap is checked for free memory.
const TRIM: Duration = Duration::from_secs(15);

/// How often entries are removed that belong to no server.
const SWEEP_ENTRIES: Duration = Duration::from_secs(10);

/// How often the clocks are compared; a jump between them is a host that slept.
const CLOCK_CHECK: Duration = Duration::from_secs(2);

/// After this many checks, runs are compared with the lists of the engines, so that a change without an event is noticed
/// within 10 seconds.
const RECONCILE: u32 = 4;

/// The host slept if the clocks moved apart by more than this.
const SLEPT: Duration = Duration::from_secs(1);

/// Passes news of an engine to the drivers. If some were missed, runs are compared with a list instead.
pub(crate) async fn pass_on_news(
    engines: Engines,
    mut news: broadcast::Receiver<News>,
    registry: Registry,
) {
    loop {
        match news.recv().await {
            Ok(news) => registry.news(news).await,
            Err(broadcast::error::RecvError::Lagged(_)) => reconcile(&engines, &registry).await,
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Compares runs with the lists of the engines, periodically and when the host has slept.
pub(crate) async fn keep_watch(engines: &Engines, registry: &Registry) -> Infallible {
    let mut check = interval(CLOCK_CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut slept = clock::slept();
    let mut count = 0;
    loop {
        check.tick().await;
        count += 1;
        let resumed = clock::slept().saturating_sub(slept) > SLEPT;
        if resumed {
            slept = clock::slept();
            tracing::info!("the host slept");
            registry.host_resumed().await;
        }
        if resumed || count % RECONCILE == 0 {
            reconcile(engines, registry).await;
        }
    }
}

/// Updates the entries in clients' files at the start and when the address changes, and retries failed removals.
pub(crate) async fn keep_entries(
    registry: &Registry,
    mut listen: watch::Receiver<ListenerState>,
    sessions_lost: bool,
) -> Infallible {
    if sessions_lost {
        registry.lose_sessions().await;
    }
    registry.register_all(EntryRequest::Keep).await;
    let mut pulse = interval(SWEEP_ENTRIES);
    loop {
        tokio::select! {
            _ = pulse.tick() => drop(registry.sweep_entries().await),
            changed = listen.changed() => match changed {
                Ok(()) => drop(registry.register_all(EntryRequest::Keep).await),
                Err(_) => return std::future::pending().await,
            },
        }
    }
}

/// Ends unused sessions, and saves when the others were used.
pub(crate) async fn sweep(gateway: &Gateway) -> Infallible {
    loop {
        for _ in 0..SWEEPS_PER_SAVE {
            tokio::time::sleep(SWEEP).await;
            gateway.sweep();
        }
        gateway.save_last_used();
    }
}

/// Returns free memory to the system after a peak.
pub(crate) async fn trim_heap() -> Infallible {
    let mut trimmer = HeapTrimmer::default();
    loop {
        if let Some(bytes) = trimmer.trim() {
            tracing::debug!(bytes, "returned free memory to the system");
        }
        tokio::time::sleep(TRIM).await;
    }
}

async fn reconcile(engines: &Engines, registry: &Registry) {
    let begun = clock::now();
    match engines.list().await {
        Ok(found) => registry.listed(begun, found).await,
        Err(error) => tracing::error!(%error, "cannot list the runs"),
    }
}
