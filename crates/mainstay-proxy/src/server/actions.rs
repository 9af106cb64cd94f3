//! Executing the actions of the state machine.

use mainstay_session::{Action, Report};

use super::operation::Operation;
use super::{ServerHandle, State, Transport, http};
use crate::catch_panic;

/// What has to be done when the server is unlocked.
#[derive(Default)]
pub(super) struct Outside {
    pub(super) reports: Vec<Report>,
    /// The last operation that was started. The others are performed by tasks.
    pub(super) operation: Option<Operation>,
}

impl ServerHandle {
    /// Executes what can be done at once.
    pub(super) fn execute(&self, state: &mut State) -> Outside {
        let mut outside = Outside::default();
        while let Some(action) = state.machine.next_action() {
            match action {
                Action::SendLine(link, text) => {
                    if let Some(Transport::Stdio(io)) = transport(state, link)
                        && io.send(text)
                    {
                        state.machine.link_full(link);
                        self.await_room(link, state);
                    }
                }
                Action::ConfirmLines(link, count) => {
                    if let Some(Transport::Stdio(io)) = transport(state, link) {
                        io.confirm(count);
                    }
                }
                Action::LogLine(link, text) => {
                    if let Some(Transport::Stdio(io)) = transport(state, link) {
                        io.log(text);
                    }
                }
                Action::Attached(link, result) => {
                    let attached = state.links.get_mut(&link).and_then(|io| io.attached.take());
                    if let Some(attached) = attached {
                        // The caller may have given up.
                        attached.send(result).ok();
                    }
                }
                Action::Closed(link) => {
                    if let Some(io) = state.links.get(&link) {
                        io.closed.send_replace(true);
                    }
                }
                Action::DropLink(link) => drop(state.links.remove(&link)),
                Action::Http(key, link, operation) => {
                    if let Some(Transport::Http(client)) = transport(state, link) {
                        let (io, operation) =
                            Operation::start(self, key, client.clone(), operation);
                        state.insert_operation(io);
                        if let Some(earlier) = outside.operation.replace(operation) {
                            earlier.spawn();
                        }
                    } else {
                        state.machine.http_done(super::now(), key, http::unsent());
                    }
                }
                Action::AbortHttp(key) => {
                    if let Some(io) = state.remove_operation(key) {
                        state.keep_closed(&io);
                        io.abort();
                    }
                }
                Action::RenewConnections(link) => {
                    if let Some(Transport::Http(client)) = transport(state, link) {
                        *client = client.renewed();
                    }
                }
                Action::CloseIdleConnections(link) => {
                    if let Some(Transport::Http(client)) = transport(state, link) {
                        client.close_idle();
                    }
                }
                Action::ResumeHttp(key) => {
                    if let Some(io) = state.operation(key) {
                        io.resume();
                    }
                }
                Action::Wake(stream) => state.wake(stream),
                Action::AwaitWritten(call) => {
                    let (written, server) = (self.inner.ports.store.written(), self.downgrade());
                    catch_panic::spawn(async move {
                        written.await;
                        if let Some(inner) = server.upgrade() {
                            Self { inner }.enter(|machine, now| machine.record_written(now, call));
                        }
                    });
                }
                Action::ReadLastLine(call, owner) => {
                    let line = (self.inner.ports.last_line)(owner);
                    let server = self.downgrade();
                    catch_panic::spawn(async move {
                        let line = line.await;
                        if let Some(inner) = server.upgrade() {
                            let server = Self { inner };
                            server.enter(|machine, _| machine.last_line(call, line.as_deref()));
                        }
                    });
                }
                Action::Report(report) => outside.reports.push(report),
            }
        }
        outside
    }
}

fn transport(state: &mut State, link: mainstay_session::LinkKey) -> Option<&mut Transport> {
    state.links.get_mut(&link).map(|io| &mut io.transport)
}
