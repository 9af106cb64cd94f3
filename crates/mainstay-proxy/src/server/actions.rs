//! Executing the actions of the state machine.

use mainstay_session::{Action, Report};

use super::{Server, State, Transport, http};
use crate::catch_panic;

impl Server {
    /// Returns what has to be reported when the server is unlocked.
    pub(super) fn execute(&self, state: &mut State) -> Vec<Report> {
        let mut reports = Vec::new();
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
                        let io = http::start(self, key, client.clone(), operation);
                        state.operations.insert(key, io);
                    } else {
                        state.machine.http_done(super::now(), key, http::unsent());
                    }
                }
                Action::AbortHttp(key) => drop(state.operations.remove(&key)),
                Action::ResumeHttp(key) => {
                    if let Some(io) = state.operations.get(&key) {
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
                Action::Report(report) => reports.push(report),
            }
        }
        reports
    }
}

fn transport(state: &mut State, link: mainstay_session::LinkKey) -> Option<&mut Transport> {
    state.links.get_mut(&link).map(|io| &mut io.transport)
}
