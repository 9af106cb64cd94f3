//! Connections to a daemon that may be killed, replaced or stopped at any time.
//!
//! If there is neither a daemon nor a holder that would restart it, a daemon is started at once, unless the user has
//! stopped it. A service manager gets some time to start it first.

use std::time::Duration;

use mainstay_api::is_transient;
use mainstay_core::{ServerName, with_causes};
use mainstay_hold::limits::START_RETRY;
use mainstay_proxy::client::{ConnectError, Connecting, Connector};
use rustix::io::Errno;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::remote::{GRACE, Remote};
use crate::ui::Ui;

/// Delay between attempts while the daemon keeps failing.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The daemon, for the client of one server.
pub(crate) struct Daemon {
    name: ServerName,
    remote: Remote,
    /// The connection that [`Self::connect_first`] made.
    first: std::sync::Mutex<Option<UnixStream>>,
    /// Locked while a connection is made.
    absence: Mutex<Absence>,
}

/// What is known while there is no daemon.
#[derive(Default)]
struct Absence {
    since: Option<Instant>,
    /// Until then no daemon is started.
    start_after: Option<Instant>,
    /// Why the last one could not be started.
    not_started: Option<String>,
    is_reported: bool,
}

impl Daemon {
    pub(crate) fn new(name: ServerName, remote: Remote) -> Self {
        Self { name, remote, first: std::sync::Mutex::default(), absence: Mutex::default() }
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }

    /// Waits for the daemon, which is started if necessary. Fails if the server does not exist, so that a client gets the
    /// error before its first message.
    pub(super) async fn connect_first(&self) -> Result<(), CliError> {
        let deadline = Instant::now() + GRACE.total;
        let mut is_reported = false;
        loop {
            match self.remote.http(&self.name).await {
                Ok(stream) => {
                    *mainstay_core::lock(&self.first) = Some(stream);
                    return Ok(());
                }
                // It is being replaced.
                Err(
                    CliError::Cut { .. }
                    | CliError::Unsent { .. }
                    | CliError::OutdatedDaemon { .. },
                ) if Instant::now() < deadline => sleep(GRACE.every).await,
                Err(error @ CliError::Failing { .. }) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        report(&with_causes(&error));
                    }
                    sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn connect(&self) -> Result<UnixStream, ConnectError> {
        if let Some(stream) = mainstay_core::lock(&self.first).take() {
            return Ok(stream);
        }
        let mut absence = self.absence.lock().await;
        let now = Instant::now();
        let since = *absence.since.get_or_insert(now);
        let mut connected = self.remote.http_if_running(&self.name).await;
        if is_absent(&connected) && absence.start_after.is_none_or(|after| after <= now) {
            connected = self.remote.http_or_start(&self.name, since.elapsed()).await;
            if let Err(error @ CliError::NotStarted { .. }) = &connected {
                absence.start_after = Some(Instant::now() + START_RETRY);
                absence.not_started = Some(with_causes(error));
            }
        }
        let error = match connected {
            Ok(stream) => {
                *absence = Absence::default();
                return Ok(stream);
            }
            Err(error) if error.may_pass() || is_out_of_descriptors(&error) => error,
            Err(error) => return Err(ConnectError::Final(error.into())),
        };
        if since.elapsed() >= GRACE.total && !absence.is_reported {
            absence.is_reported = true;
            report(&absence.not_started.take().unwrap_or_else(|| with_causes(&error)));
        }
        match error {
            CliError::Stopped => Err(ConnectError::Stopped),
            _ => Err(ConnectError::Absent),
        }
    }
}

impl Connector for Daemon {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(self.connect())
    }
}

fn report(why: &str) {
    Ui::new().message(format!("{why}; waiting for it"));
}

/// Whether the process or the system has no free descriptor, which may change.
fn is_out_of_descriptors(error: &CliError) -> bool {
    let full = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    matches!(error, CliError::Unreachable { source, .. } if full.contains(&source.raw_os_error()))
}

/// Whether no process listens at the socket, so that no holder will restart the daemon.
fn is_absent(connected: &Result<UnixStream, CliError>) -> bool {
    matches!(connected, Err(CliError::Unreachable { source, .. }) if is_transient(source.kind()))
}
