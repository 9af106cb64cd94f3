//! The MCP session between the daemon and a run.
//!
//! A run is ready when it has answered `initialize`. What it answered is written beside its socket, so
//! that a later daemon that finds the run alive takes the session up instead of opening a second one.

use std::error::Error as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_core::{RemoteSpec, RunId, ServerSpec, Transport, Workload, human_duration};
use mainstay_engine::{Engine, EngineError, RunKey};
use mainstay_proxy::client::{BadTarget, SendError, Target};
use mainstay_proxy::{Hello, LineLink, Link, RunInfo, Server, UpstreamError};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::blocking::BlockingPool;
use crate::clock;
use crate::engines::Home;
use crate::snapshot::Session;

/// How long a server that runs elsewhere may take to answer `initialize`, its connection included.
const REMOTE: Duration = Duration::from_secs(30);

/// How long saving a session may take.
const REMEMBER: Duration = Duration::from_millis(500);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The run cannot be reached.
    #[error("it cannot be reached: {0}")]
    Engine(#[source] EngineError),
    /// Another server listens where the run should.
    #[error("{0}")]
    PortTaken(#[source] EngineError),
    /// It cannot be spoken to.
    #[error("it cannot be spoken to: {0}")]
    Target(#[from] BadTarget),
    /// It runs elsewhere, and what the way to it takes has not happened in time.
    #[error("it did not answer within {}", human_duration(*.0))]
    Late(Duration),
    /// It runs elsewhere, and wants to know who we are.
    #[error(
        "it answered with HTTP status {status}{}; `--header NAME=VALUE` sends what it asks for",
        quoted(.body)
    )]
    Refused { status: u16, body: String },
    /// It runs elsewhere, and could not be asked.
    #[error("{}{}", .0, because(.0))]
    Unreachable(#[source] SendError),
    /// The run answered wrongly.
    #[error("the handshake failed: {0}")]
    Upstream(#[from] UpstreamError),
}

impl SessionError {
    /// Whether this is trouble of our own, which has nothing to do with the server.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_temporary())
    }

    /// Whether this is what a run that is ending looks like.
    pub(crate) fn may_be_an_end(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::Upstream(UpstreamError::Closed { .. }))
    }

    /// What this means if the server runs elsewhere.
    pub(crate) fn obstacle(&self) -> Obstacle {
        match self {
            Self::Late(_)
            | Self::Unreachable(_)
            | Self::Upstream(
                UpstreamError::Closed { .. }
                | UpstreamError::Connect { .. }
                | UpstreamError::Http { status: 429 | 502..=504, .. },
            ) => Obstacle::Away,
            Self::Refused { .. } | Self::Target(_) => Obstacle::Refusal,
            Self::Engine(_)
            | Self::PortTaken(_)
            | Self::Upstream(
                UpstreamError::Rpc { .. }
                | UpstreamError::Unavailable(_)
                | UpstreamError::Protocol(_)
                | UpstreamError::TooLarge { .. }
                | UpstreamError::Http { .. }
                | UpstreamError::SessionLost { .. },
            ) => Obstacle::None,
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

/// What a failed session with a server that runs elsewhere means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It cannot be reached now.
    Away,
    /// It does not want us, or cannot be asked at all.
    Refusal,
    /// It was reached, and is at fault.
    None,
}

/// What is remembered of a session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Remembered {
    version: u32,
    pub(crate) ready_at: Timestamp,
    pub(crate) hello: Hello,
    /// Whether the run is elsewhere, where no engine finds it.
    #[serde(default)]
    elsewhere: bool,
}

impl Remembered {
    /// The form in which sessions are remembered. One in another form is not recalled, which costs a
    /// second `initialize`.
    const VERSION: u32 = 1;

    pub(crate) fn new(ready_at: Timestamp, hello: Hello, home: Home) -> Self {
        let elsewhere = home == Home::Remote;
        Self { version: Self::VERSION, ready_at, hello, elsewhere }
    }
}

/// Where sessions are remembered.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    dir: PathBuf,
    /// One thread, so that files are changed in order, and no driver waits for the disk.
    pool: BlockingPool,
}

impl Memory {
    /// Remembers sessions in this directory.
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir, pool: BlockingPool::new(1) })
    }

    pub(crate) fn recall(&self, key: &RunKey) -> Option<Remembered> {
        let found: Remembered = serde_json::from_slice(&fs::read(self.path(key)).ok()?).ok()?;
        (found.version == Remembered::VERSION).then_some(found)
    }

    /// The runs elsewhere that are remembered, and since when each was ready.
    pub(crate) fn elsewhere(&self) -> Vec<(RunKey, Timestamp)> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let keys = files.filter_map(|file| key_of(file.file_name().to_str()?));
        let known = keys.filter_map(|key| {
            let ready_at = self.recall(&key).filter(|known| known.elsewhere)?.ready_at;
            Some((key, ready_at))
        });
        known.collect()
    }

    /// Failing to remember costs a restart of the server when the daemon is next replaced, no more. A disk
    /// that does not answer is therefore not waited for.
    pub(crate) async fn remember(&self, key: &RunKey, what: Remembered) {
        let path = self.path(key);
        let written = timeout(REMEMBER, self.pool.run(move || write(&path, &what)));
        if let Err(error) = written.await.unwrap_or_else(|late| Err(late.into())) {
            tracing::warn!(server = %key.server, run = %key.run, %error,
                "the session cannot be remembered");
        }
    }

    pub(crate) fn forget(&self, key: &RunKey) {
        let path = self.path(key);
        self.pool.spawn(move || {
            if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "a remembered session cannot be removed");
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

fn write(path: &Path, what: &Remembered) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file =
        File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(what)?)?;
    fs::rename(&new, path)
}

/// Opens a session with a run, or takes up the one that an earlier daemon had.
pub(crate) async fn establish(
    engine: &dyn Engine,
    key: &RunKey,
    spec: &ServerSpec,
    server: &Server,
    arrival: RunInfo,
) -> Result<Session, SessionError> {
    let transport = match &spec.workload {
        Workload::Process(process) => &process.transport,
        Workload::Container(container) => &container.transport,
        Workload::Remote(remote) => {
            // Before the supervisor takes it for hung: it may just be far away.
            let limit = REMOTE.min(spec.restart.start_timeout * 9 / 10);
            return reach(remote, limit, server, arrival).await;
        }
    };
    let mut owner = None;
    let link = match transport {
        Transport::Stdio => {
            let stdio = engine.attach(key).await?;
            Link::Lines(LineLink {
                to_server: stdio.to_server,
                from_server: stdio.from_server,
                junk: stdio.junk,
                written: stdio.written,
                heard: stdio.consumed,
                past: stdio.earlier_output,
                interruptions: stdio.interruptions,
            })
        }
        Transport::StreamableHttp { port, path } => {
            let endpoint = engine.endpoint(key, *port).await?;
            owner = endpoint.owner;
            Link::Http(Target::local(endpoint.addrs, path)?)
        }
    };
    Ok(Session { run: server.attach_run(link, arrival).await?, since: clock::now(), owner })
}

/// Opens a session with a server that runs elsewhere, in one attempt.
async fn reach(
    remote: &RemoteSpec,
    limit: Duration,
    server: &Server,
    arrival: RunInfo,
) -> Result<Session, SessionError> {
    let headers = remote.headers.iter().map(|(name, value)| (name.as_str(), value.reveal()));
    let target = Target::remote(remote.url.as_str(), headers)?;
    let entered = timeout(limit, server.attach_run(Link::Remote(target), arrival)).await;
    match entered.map_err(|_| SessionError::Late(limit))? {
        Ok(run) => Ok(Session { run, since: clock::now(), owner: None }),
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
    async fn runs_elsewhere_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::open(dir.path().to_owned()).unwrap();
        let hello = serde_json::json!({
            "protocol_version": "2025-06-18", "server_name": null, "server_version": null,
            "result": {}, "http_session": "s1",
        });
        let remember = async |key: &RunKey, seconds: i64, home| {
            let at = Timestamp::from_second(seconds).unwrap();
            let hello = serde_json::from_value(hello.clone()).unwrap();
            memory.remember(key, Remembered::new(at, hello, home)).await;
        };
        remember(&key("far-away", 12), 1, Home::Remote).await;
        remember(&key("here", 2), 2, Home::Process).await;
        remember(&key("gone", 3), 3, Home::Remote).await;
        memory.forget(&key("gone", 3));
        assert!(memory.finish(Duration::from_secs(10)).await);
        fs::write(dir.path().join("odd.4.json"), "{}").unwrap();
        fs::write(dir.path().join("odd.new"), "{}").unwrap();
        let since = Timestamp::from_second(1).unwrap();
        assert_eq!(memory.elsewhere(), [(key("far-away", 12), since)]);
    }

    fn http(status: u16) -> SessionError {
        let (method, body) = ("initialize".to_owned(), String::new());
        UpstreamError::Http { method, status, body }.into()
    }

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        let check = |error: &SessionError, expected| {
            assert_eq!(error.obstacle(), expected, "{error}");
        };
        for status in [429, 502, 503, 504] {
            check(&http(status), Obstacle::Away);
        }
        for status in [400, 404, 500, 501] {
            check(&http(status), Obstacle::None);
        }
        let closed = UpstreamError::Closed { method: "initialize".to_owned(), sent: true };
        check(&closed.into(), Obstacle::Away);
        check(&SessionError::Late(REMOTE), Obstacle::Away);
        check(&SessionError::Refused { status: 401, body: String::new() }, Obstacle::Refusal);
        check(&UpstreamError::Protocol("odd".to_owned()).into(), Obstacle::None);
    }

    #[test]
    fn what_is_in_the_way_is_said_once_and_in_full() {
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
