//! Counts of what a server holds, for tests that look for leaks.

use crate::links::Link;
use crate::server::Server;
use crate::stdio::Stdio;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub sessions: usize,
    pub calls: usize,
    pub streams: usize,
    pub links: usize,
    pub operations: usize,
    /// Requests that are with stdio servers, or queued for them.
    pub at_stdio: usize,
    pub held: usize,
    pub open: usize,
    pub open_bytes: usize,
    pub kept_bytes: usize,
    pub retained_runs: usize,
    pub loading: usize,
    pub recovered: usize,
}

impl Server {
    #[doc(hidden)]
    pub fn usage(&self) -> Usage {
        Usage {
            sessions: self.sessions.len(),
            calls: self.calls.len(),
            streams: self.streams.len(),
            links: self.links.len(),
            operations: self.operations.len(),
            at_stdio: self.links.values().filter_map(Link::as_stdio).map(Stdio::load).sum(),
            held: self.held,
            open: self.open,
            open_bytes: self.open_bytes,
            kept_bytes: self.kept_bytes,
            retained_runs: self.retained_runs.len(),
            loading: self.loading.len(),
            recovered: self.recovered.len(),
        }
    }
}
