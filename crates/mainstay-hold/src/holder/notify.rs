//! Notifications to a service manager, in the protocol of systemd.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Daemons do not get these variables: the manager expects notifications from the holder.
pub(super) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    pub(super) fn from_env() -> Self {
        let [socket, every, pid] = VARIABLES.map(variable);
        let to = socket.and_then(|name| open(&name));
        let watchdog = to.as_ref().and_then(|_| watchdog(every, pid));
        Self { to, watchdog }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.to.is_some()
    }

    /// How often its watchdog is reset: twice as often as necessary.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    pub(super) fn ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}", std::process::id()));
    }

    /// Another holder serves, so the service is up.
    pub(super) fn waiting(&self, pid: Option<u32>) {
        let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        self.send(&format!("READY=1\nSTATUS=waiting for the one that runs already{pid}"));
    }

    /// Clears the status of [`waiting`](Self::waiting).
    pub(super) fn starting(&self) {
        self.send("STATUS=");
    }

    pub(super) fn pulse(&self) {
        self.send("WATCHDOG=1");
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.to {
            // There is nothing to do about a manager that does not listen.
            let _lost = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a service manager passes its socket in the environment"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn open(name: &OsString) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    Some((socket.ok()?, address.ok()?))
}

fn watchdog(every: Option<OsString>, pid: Option<OsString>) -> Option<Duration> {
    let ours = pid.is_none_or(|pid| pid.to_str() == Some(&std::process::id().to_string()));
    let micros: u64 = every?.to_str()?.parse().ok().filter(|micros| *micros > 0)?;
    ours.then(|| Duration::from_micros(micros) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_for_another_process_is_ignored() {
        let check = |every: &str, pid: Option<&str>, expected: Option<u64>| {
            let found = watchdog(Some(every.into()), pid.map(Into::into));
            assert_eq!(found, expected.map(Duration::from_millis), "{every} {pid:?}");
        };
        check("30000000", None, Some(15_000));
        check("30000000", Some(&std::process::id().to_string()), Some(15_000));
        check("30000000", Some("1"), None);
        check("0", None, None);
        check("soon", None, None);
        assert_eq!(watchdog(None, None), None);
    }
}
