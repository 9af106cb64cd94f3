//! How many clients of each kind are served at the same time, given the limit of file descriptors.
//!
//! Each kind has its own share, so that none can starve another: with the maximum of HTTP connections and
//! followers, commands are still answered and servers are still started.

use mainstay_api::Request;

/// Descriptors that are reserved for the store, shims, engines and starts.
const RESERVED: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// HTTP connections of all listeners.
    pub(crate) http: usize,
    /// HTTP connections of `mainstay connect`, and clients of `mainstay connect` 0.1.0.
    pub(crate) connected: usize,
    /// Commands that follow a log or the events.
    pub(crate) followers: usize,
    /// Commands that may take long.
    pub(crate) long: usize,
    /// Commands that are answered immediately.
    pub(crate) quick: usize,
    /// Control connections that have not sent a request yet.
    pub(crate) pending: usize,
}

impl Capacity {
    /// The shares for a process with this limit of descriptors.
    pub(crate) fn of(descriptors: u64) -> Self {
        let share = |most: u64, part: u64| most.min(descriptors / part).max(8);
        let others =
            [share(4096, 4), share(128, 16), share(512, 8), share(256, 16), share(256, 16)];
        let taken = others.iter().sum::<u64>() + share(RESERVED, 8).max(128);
        let http = descriptors.saturating_sub(taken).clamp(64, 16_384);
        let count = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        let [connected, followers, long, quick, pending] = others.map(count);
        Self { http: count(http), connected, followers, long, quick, pending }
    }

    /// The shares for this process.
    pub(crate) fn of_this_process() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self::of(limit.current.unwrap_or(u64::MAX))
    }
}

/// How a request is limited, and whether it ends with its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Lasts until its client disconnects.
    Follow,
    /// May take as long as a server, an engine or a slow reader.
    Long,
    /// Like `Long`, but is completed even if its client disconnects.
    Change,
    /// Answered immediately.
    Quick,
    /// Ends or replaces the daemon. Unlimited, and completed like a change.
    Lifecycle,
    /// Keeps the connection, and has its own limit.
    Connection,
}

impl RequestKind {
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::Logs { follow: true, .. } | Request::Events { follow: true, .. } => {
                Self::Follow
            }
            Request::Logs { .. }
            | Request::Events { .. }
            | Request::Pull { .. }
            | Request::Settle { .. }
            | Request::Tools { .. }
            | Request::Call { .. }
            | Request::Clients { .. }
            | Request::Tokens => Self::Long,
            Request::Run { .. }
            | Request::Import { .. }
            | Request::Start { .. }
            | Request::Stop { .. }
            | Request::Restart { .. }
            | Request::Remove { .. }
            | Request::ChooseClients { .. }
            | Request::DropClients { .. }
            | Request::CreateToken { .. }
            | Request::RemoveToken { .. } => Self::Change,
            Request::Export { .. }
            | Request::List
            | Request::Status { .. }
            | Request::Why { .. }
            | Request::Daemon => Self::Quick,
            Request::Reload { .. } | Request::Shutdown { .. } => Self::Lifecycle,
            Request::Http { .. } | Request::Connect { .. } | Request::Relay { .. } => {
                Self::Connection
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_leave_descriptors_for_servers() {
        for descriptors in [1024, 2048, 4096, 20_000, 65_536, 1 << 20] {
            let Capacity { http, connected, followers, long, quick, pending } =
                Capacity::of(descriptors);
            let all = http + connected + followers + long + quick + pending;
            assert!(all as u64 + 128 <= descriptors, "{all} of {descriptors}");
        }
    }

    #[test]
    fn usual_limits() {
        let of = |descriptors| {
            let it = Capacity::of(descriptors);
            (it.http, it.connected, it.followers)
        };
        assert_eq!(of(1024), (320, 256, 64));
        assert_eq!(of(65_536), (16_384, 4096, 128));
        assert_eq!(of(u64::MAX), (16_384, 4096, 128));
        assert_eq!(of(256), (64, 64, 16));
    }
}
