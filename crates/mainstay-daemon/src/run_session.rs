//! The MCP session between the daemon and a run.
//!
//! A run is ready when it has answered `initialize`. The answer is saved, so that a later daemon that finds the run alive
//! resumes the session instead of opening a second one.

use std::error::Error as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::supervisor::SessionFailure;
use mainstay_core::{
    RemoteSpec, RunId, ServerSpec, Transport, Workload, WorkloadKind, human_duration,
};
use mainstay_engine::{Engine, EngineError, RunKey};
use mainstay_proxy::client::{BadTarget, SendError, Target};
use mainstay_proxy::{Hello, LineLink, RunInfo, ServerHandle, UpstreamError, UpstreamTransport};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::blocking::BlockingPool;
use crate::snapshot::Session;

/// How long a remote server may take to answer `initialize`, its connection included.
const REMOTE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long saving a session may take.
const SAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The run cannot be reached.
    #[error("it cannot be reached: {0}")]
    Engine(#[source] EngineError),
    /// Another server listens where the run should.
    #[error("{0}")]
    PortTaken(#[source] EngineError),
    /// Its address cannot be used.
    #[error("it cannot be used: {0}")]
    Target(#[from] BadTarget),
    /// The remote server did not answer in time.
    #[error("it did not answer within {}", human_duration(*.0))]
    Late(Duration),
    /// The remote server requires authorization.
    #[error(
        "it answered with HTTP status {status}{}; `--header NAME=VALUE` sends what it asks for",
        quoted(.body)
    )]
    Refused { status: u16, body: String },
    /// No connection to the remote server could be made.
    #[error("{}{}", .0, because(.0))]
    Unreachable(#[source] SendError),
    /// The run answered wrongly.
    #[error("the handshake failed: {0}")]
    Upstream(#[from] UpstreamError),
}

impl SessionError {
    /// What this means for the supervisor.
    pub(crate) fn failure(&self, workload: &Workload) -> SessionFailure {
        if let Workload::Remote(remote) = workload {
            let address = remote.url.without_query();
            match self {
                Self::Late(_)
                | Self::Unreachable(_)
                | Self::Upstream(
                    UpstreamError::Closed { .. }
                    | UpstreamError::Connect { .. }
                    | UpstreamError::Http { status: 429 | 502..=504, .. },
                ) => {
                    let why = format!("{address} cannot be reached: {self}");
                    return SessionFailure::Unreachable(why);
                }
                Self::Refused { .. } => {
                    let why = format!("{address} refused the request: {self}");
                    return SessionFailure::Refused(why);
                }
                Self::Target(_) => return SessionFailure::Refused(format!("{address}: {self}")),
                Self::Engine(_) | Self::PortTaken(_) | Self::Upstream(_) => {}
            }
        }
        match self {
            Self::Engine(error) if error.is_temporary() => SessionFailure::Local,
            Self::Engine(_) | Self::Upstream(UpstreamError::Closed { .. }) => {
                SessionFailure::Ending
            }
            other => SessionFailure::Faulty(other.to_string()),
        }
    }
}

impl From<EngineError> for SessionError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::PortTaken { .. } => Self::PortTaken(error),
            other => Self::Engine(other),
        }
    }
}

/// A session that a later daemon can resume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedSession {
    version: u32,
    pub(crate) ready_at: Timestamp,
    pub(crate) hello: Hello,
    /// Whether the server is remote, so that no engine lists the run.
    #[serde(default)]
    elsewhere: bool,
    /// Whether a daemon was killed that may have sent requests to the run without recording them.
    #[serde(default)]
    pub(crate) has_unrecorded: bool,
}

impl SavedSession {
    /// The version of the format. A session in another version is not resumed, which costs a second `initialize`.
    const VERSION: u32 = 1;

    pub(crate) fn new(ready_at: Timestamp, hello: &Hello, kind: WorkloadKind) -> Self {
        let elsewhere = kind == WorkloadKind::Remote;
        let (version, hello) = (Self::VERSION, hello.clone());
        Self { version, ready_at, hello, elsewhere, has_unrecorded: false }
    }
}

/// The saved sessions, a file each.
#[derive(Debug, Clone)]
pub(crate) struct SessionFiles {
    dir: PathBuf,
    /// One thread, so that files are changed in order, and no driver waits for the disk.
    pool: BlockingPool,
}

impl SessionFiles {
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir, pool: BlockingPool::new(1) })
    }

    pub(crate) fn load(&self, key: &RunKey) -> Option<SavedSession> {
        let found: SavedSession = serde_json::from_slice(&fs::read(self.path(key)).ok()?).ok()?;
        (found.version == SavedSession::VERSION).then_some(found)
    }

    /// The runs of remote servers, and since when each is ready.
    pub(crate) fn remote_runs(&self) -> Vec<(RunKey, Timestamp)> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let keys = files.filter_map(|file| key_of(file.file_name().to_str()?));
        let known = keys.filter_map(|key| {
            let ready_at = self.load(&key).filter(|saved| saved.elsewhere)?.ready_at;
            Some((key, ready_at))
        });
        known.collect()
    }

    /// A failure costs a restart of the server when the daemon is next replaced, not more. So a disk that does not answer
    /// is not waited for.
    pub(crate) async fn save(&self, key: &RunKey, session: SavedSession) {
        let path = self.path(key);
        let written = timeout(SAVE_TIMEOUT, self.pool.run(move || write(&path, &session)));
        if let Err(error) = written.await.unwrap_or_else(|late| Err(late.into())) {
            tracing::warn!(server = %key.server, run = %key.run, %error,
                "the session cannot be saved");
        }
    }

    pub(crate) fn remove(&self, key: &RunKey) {
        let path = self.path(key);
        self.pool.spawn(move || {
            if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "a saved session cannot be removed");
            }
        });
    }

    /// Waits until everything is on disk, for the next daemon. False if that takes too long.
    pub(crate) async fn finish(&self, limit: Duration) -> bool {
        self.pool.finish(limit).await
    }

    fn path(&self, key: &RunKey) -> PathBuf {
        self.dir.join(format!("{}.{}.json", key.server, key.run))
    }
}

/// The run whose session a file is about.
fn key_of(file_name: &str) -> Option<RunKey> {
    let (server, run) = file_name.strip_suffix(".json")?.rsplit_once('.')?;
    Some(RunKey::new(server.parse().ok()?, RunId::new(run.parse().ok()?)))
}

fn write(path: &Path, session: &SavedSession) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file =
        File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(session)?)?;
    fs::rename(&new, path)
}

/// Opens a session with a run, or resumes the one that an earlier daemon had.
pub(crate) async fn establish(
    engine: &dyn Engine,
    key: &RunKey,
    spec: &ServerSpec,
    server: &ServerHandle,
    info: RunInfo,
) -> Result<Session, SessionError> {
    let transport = match &spec.workload {
        Workload::Process(process) => &process.transport,
        Workload::Container(container) => &container.transport,
        Workload::Remote(remote) => {
            // Before the supervisor considers it hung: it may be slow to reach.
            let limit = REMOTE_TIMEOUT.min(spec.restart.start_timeout * 9 / 10);
            return reach(remote, limit, server, info).await;
        }
    };
    let mut owner = None;
    let link = match transport {
        Transport::Stdio => {
            let stdio = engine.attach(key).await?;
            UpstreamTransport::Lines(LineLink {
                to_server: stdio.to_server,
                from_server: stdio.from_server,
                other_output: stdio.junk,
                written: stdio.written,
                consumed: stdio.consumed,
                earlier_output: stdio.earlier_output,
                interruptions: stdio.interruptions,
            })
        }
        Transport::StreamableHttp { port, path } => {
            let endpoint = engine.endpoint(key, *port).await?;
            owner = endpoint.owner;
            UpstreamTransport::Http(Target::local(endpoint.addrs, path)?)
        }
    };
    Ok(Session { run: server.attach_run(link, info).await?, owner })
}

/// Opens a session with a remote server, in one attempt.
async fn reach(
    remote: &RemoteSpec,
    limit: Duration,
    server: &ServerHandle,
    info: RunInfo,
) -> Result<Session, SessionError> {
    let headers = remote.headers.iter().map(|(name, value)| (name.as_str(), value.reveal()));
    let target = Target::remote(remote.url.as_str(), headers)?;
    let entered = timeout(limit, server.attach_run(UpstreamTransport::Remote(target), info)).await;
    match entered.map_err(|_| SessionError::Late(limit))? {
        Ok(run) => Ok(Session { run, owner: None }),
        Err(UpstreamError::Connect { source, .. }) => Err(SessionError::Unreachable(source)),
        Err(UpstreamError::Http { status: status @ (401 | 403), body, .. }) => {
            Err(SessionError::Refused { status, body })
        }
        Err(error) => Err(error.into()),
    }
}

fn because(error: &SendError) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

fn quoted(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(" (it says: {body})") }
}

#[cfg(test)]
mod tests {
    use std::io;

    use mainstay_testkit::samples::key;

    use super::*;

    #[tokio::test]
    async fn remote_runs_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = SessionFiles::open(dir.path().to_owned()).unwrap();
        let hello = serde_json::json!({
            "protocol_version": "2025-06-18", "server_name": null, "server_version": null,
            "result": {}, "http_session": "s1",
        });
        let hello: Hello = serde_json::from_value(hello).unwrap();
        let save = async |key: &RunKey, seconds: i64, kind| {
            let at = Timestamp::from_second(seconds).unwrap();
            files.save(key, SavedSession::new(at, &hello, kind)).await;
        };
        save(&key("far-away", 12), 1, WorkloadKind::Remote).await;
        save(&key("here", 2), 2, WorkloadKind::Process).await;
        save(&key("gone", 3), 3, WorkloadKind::Remote).await;
        files.remove(&key("gone", 3));
        assert!(files.finish(Duration::from_secs(10)).await);
        fs::write(dir.path().join("odd.4.json"), "{}").unwrap();
        fs::write(dir.path().join("odd.new"), "{}").unwrap();
        let since = Timestamp::from_second(1).unwrap();
        assert_eq!(files.remote_runs(), [(key("far-away", 12), since)]);
    }

    fn http(status: u16) -> SessionError {
        let (method, body) = ("initialize".to_owned(), String::new());
        UpstreamError::Http { method, status, body }.into()
    }

    #[test]
    fn temporary_failures_of_a_remote_server_are_distinguished_from_permanent_ones() {
        let remote = serde_json::json!({ "remote": { "url": "https://h/mcp?key=secret" } });
        let remote: Workload = serde_json::from_value(remote).unwrap();
        let kind = |error: &SessionError| match error.failure(&remote) {
            SessionFailure::Unreachable(why) => {
                assert!(why.starts_with("https://h/mcp cannot be reached: "), "{why}");
                "unreachable"
            }
            SessionFailure::Refused(_) => "refused",
            SessionFailure::Local => "local",
            SessionFailure::Ending => "ending",
            SessionFailure::Faulty(_) => "faulty",
        };
        for status in [429, 502, 503, 504] {
            assert_eq!(kind(&http(status)), "unreachable");
        }
        for status in [400, 404, 500, 501] {
            assert_eq!(kind(&http(status)), "faulty");
        }
        let closed = || UpstreamError::Closed { method: "initialize".to_owned(), sent: true };
        assert_eq!(kind(&closed().into()), "unreachable");
        assert_eq!(kind(&SessionError::Late(REMOTE_TIMEOUT)), "unreachable");
        assert_eq!(kind(&SessionError::Refused { status: 401, body: String::new() }), "refused");
        assert_eq!(kind(&UpstreamError::Protocol("odd".to_owned()).into()), "faulty");
        let local = mainstay_testkit::samples::spec("time").workload;
        assert_eq!(SessionError::from(closed()).failure(&local), SessionFailure::Ending);
    }

    #[test]
    fn messages_name_the_cause_once_and_completely() {
        let source = io::ErrorKind::ConnectionRefused.into();
        let tried = vec!["127.0.0.1:80".parse().unwrap()];
        let error = SessionError::Unreachable(SendError::Connect { tried, source });
        assert_eq!(error.to_string(), "cannot connect to 127.0.0.1:80: connection refused");
        let error = SessionError::Refused { status: 401, body: "who?".to_owned() };
        assert_eq!(
            error.to_string(),
            "it answered with HTTP status 401 (it says: who?); `--header NAME=VALUE` sends what it \
             asks for"
        );
    }
}
