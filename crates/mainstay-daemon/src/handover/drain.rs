//! Executes the steps of an ending.

use std::path::Path;
use std::sync::Arc;

use mainstay_hold::holder::HolderChannel;
use mainstay_hold::limits::{FINISH_REQUESTS, FLUSH, LAST_HOLDER, REPORT, SETTLE};
use mainstay_proxy::RelayedCall;
use mainstay_proxy::front::http;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::relay;
use super::{Ending, Step};
use crate::holder_client::HolderClient;
use crate::listen::Listener;
use crate::{Daemon, RunError};

/// A daemon that ends.
pub(crate) struct Drain {
    daemon: Daemon,
    ending: Ending,
    /// When the ending was decided.
    since: Instant,
    /// Steps that continue while others begin.
    background: JoinSet<()>,
    /// The calls that only this daemon can finish.
    relayed: Vec<RelayedCall>,
}

impl Daemon {
    /// Executes the steps of this ending.
    pub(crate) async fn drain(self, ending: Ending, since: Instant) -> Result<(), RunError> {
        if ending == Ending::Superseded {
            return Err(RunError::Superseded);
        }
        tracing::info!(?ending, "daemon ends");
        let (background, relayed) = (JoinSet::new(), Vec::new());
        let mut drain = Drain { daemon: self, ending, since, background, relayed };
        drain.daemon.service.gateway.save_last_used();
        for step in ending.steps() {
            let begun = Instant::now();
            drain.execute(*step).await?;
            tracing::debug!(?step, took = ?begun.elapsed(), "step of the ending done");
        }
        Ok(())
    }
}

impl Drain {
    async fn execute(&mut self, step: Step) -> Result<(), RunError> {
        let service = Arc::clone(&self.daemon.service);
        let holder = service.holder.clone();
        let (servers, registry) = (&service.gateway.servers, &service.registry);
        let is_hand_over = self.ending == Ending::HandOver;
        match step {
            Step::CloseIntake => {
                let how = if is_hand_over { http::Drain::HandOver } else { http::Drain::Leave };
                holder.close_intake(how);
            }
            Step::ReleaseListeners => {
                let mut listeners = Vec::new();
                if self.ending == Ending::StopServers {
                    listeners = std::mem::take(&mut self.daemon.listeners);
                }
                // They stop accepting now. A slow holder must not delay the next steps.
                let closing: Vec<_> = listeners.into_iter().map(Listener::close).collect();
                self.background.spawn(async move {
                    holder.ending().await;
                    for closed in closing {
                        closed.await;
                    }
                });
            }
            Step::FinishRequests => {
                let _late = timeout(FINISH_REQUESTS, servers.answered()).await;
                while self.background.join_next().await.is_some() {}
            }
            Step::SettleAndFreeze => self.relayed = servers.hand_over(is_hand_over, SETTLE).await,
            Step::PassConnections => {
                for listener in self.daemon.listeners.drain(..) {
                    listener.drained().await;
                }
            }
            // A change that waits for a disk that does not respond is not waited for.
            Step::RefuseChanges => drop(timeout_at(self.flushed_by(), registry.close()).await),
            Step::StopServers => registry.retire().await,
            Step::FinishCommands => self.finish_commands().await,
            Step::Flush => self.flush().await,
            Step::Report => {
                registry.abandon();
                service.context.engines.abandon();
                // The new daemon has to know of these calls before it serves.
                if !self.relayed.is_empty() {
                    let mark = relay::set_mark(&service.instance.run_dir);
                    let mark = mark.inspect_err(|error| {
                        tracing::warn!(%error, "cannot mark the calls that this daemon finishes; their answers are lost");
                    });
                    self.daemon.relay_mark = mark.ok();
                }
                report(&holder, &self.daemon.exe).await?;
                holder.close_copies();
            }
            Step::Relay => {
                let mut term =
                    signal(SignalKind::terminate()).expect("the runtime handles signals");
                let socket = service.instance.socket();
                tokio::select! {
                    () = relay::finish(&socket, std::mem::take(&mut self.relayed)) => {}
                    _ = term.recv() => {}
                }
            }
        }
        Ok(())
    }

    /// No command is accepted any more. In a hand-over, commands repeat their request with the next daemon.
    async fn finish_commands(&mut self) {
        self.daemon.messengers.abort_all();
        self.daemon.requests.take();
        let limit = self.flushed_by();
        let commands = &mut self.daemon.command_tasks;
        if self.ending == Ending::HandOver {
            self.daemon.service.limits.all_disconnected().await;
            commands.abort_all();
        }
        let ended = async { while commands.join_next().await.is_some() {} };
        if timeout_at(limit, ended).await.is_err() {
            tracing::debug!("some commands have not ended");
        }
        while self.background.join_next().await.is_some() {}
    }

    /// Until when one of the last things may be written. In a hand-over none of them may delay the report.
    fn flushed_by(&self) -> Instant {
        match self.ending {
            Ending::HandOver => self.since + REPORT,
            Ending::KeepServers | Ending::StopServers | Ending::Superseded => {
                Instant::now() + FLUSH
            }
        }
    }

    async fn flush(&self) {
        let context = &self.daemon.service.context;
        context.clients.end().await;
        let left = self.flushed_by().saturating_duration_since(Instant::now());
        if !context.session_files.finish(left).await {
            tracing::warn!("the disk does not respond; upstream sessions may be opened again");
        }
        let (event_log, sessions) = (context.event_log.clone(), self.daemon.sessions.clone());
        let closed = tokio::task::spawn_blocking(move || {
            event_log.close();
            sessions.close();
        });
        if timeout_at(self.flushed_by(), closed).await.is_err() {
            tracing::warn!("the disk does not respond; the last events may be lost");
        }
    }
}

/// Reports that everything is released, so that the new daemon serves.
///
/// If the holder has died, the new daemon may or may not have been asked to serve. So it is killed, long before it could
/// serve and start its own holder. Then a new holder gets all listeners from this daemon, and starts a daemon when this
/// one has exited. If the new daemon cannot be killed, it may serve, and no holder is started: there are never two.
async fn report(holder: &HolderClient, exe: &Path) -> Result<(), RunError> {
    let Err(error) = holder.request(HolderChannel::handed_over).await else { return Ok(()) };
    tracing::warn!(%error, "the holder has died during the hand-over");
    holder.request(HolderChannel::kill_successor).await.map_err(RunError::Holder)?;
    let replaced = timeout(LAST_HOLDER, holder.replace_holder(exe)).await;
    replaced.map_err(|elapsed| RunError::Holder(elapsed.into()))
}
