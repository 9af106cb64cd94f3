//! A socket in front of an engine that passes on everything but events and the ends of attachments: of
//! what happens to a container, only a question tells.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// The socket. It is gone when dropped.
#[derive(Debug)]
pub(super) struct Mute {
    dir: TempDir,
    _task: JoinSet<()>,
}

impl Mute {
    /// Begins to listen for the engine at this socket.
    pub(super) fn before(engine: PathBuf) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("mute-").tempdir()?;
        let listener = UnixListener::bind(socket(&dir))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let engine = engine.clone();
                // One that breaks has ended.
                connections.spawn(async move { carry(client, &engine).await.ok() });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { dir, _task: task })
    }

    pub(super) fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("mute.sock")
}

/// Carries one request, and asks the engine to end the connection with it.
async fn carry(mut client: UnixStream, engine: &Path) -> io::Result<()> {
    let (head, rest) = read_head(&mut client).await?;
    let mut engine = UnixStream::connect(engine).await?;
    engine.write_all(alone(&head).as_bytes()).await?;
    engine.write_all(&rest).await?;
    if is_events(&head) {
        let (head, _event) = read_head(&mut engine).await?;
        client.write_all(head.as_bytes()).await?;
        // The stream stays open, and its client never hears anything.
        let mut unread = [0; 64];
        while client.read(&mut unread).await? > 0 {}
        return Ok(());
    }
    if is_attach(&head) {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_engine, mut to_engine) = engine.split();
        let forth = copy(&mut from_client, &mut to_engine);
        let back = copy(&mut from_engine, &mut to_client);
        // Goes on until the client ends it, even if the engine has nothing more to say.
        tokio::pin!(forth);
        return tokio::select! {
            ended = &mut forth => ended.map(drop),
            _ = back => forth.await.map(drop),
        };
    }
    copy_bidirectional(&mut client, &mut engine).await.map(drop)
}

async fn read_head(stream: &mut UnixStream) -> io::Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = read.split_off(at + 4);
            return Ok((String::from_utf8_lossy(&read).into_owned(), rest));
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn is_events(head: &str) -> bool {
    let path = head.split(' ').nth(1).unwrap_or_default();
    path.split('?').next().is_some_and(|path| path.ends_with("/events"))
}

fn is_attach(head: &str) -> bool {
    let path = head.split(' ').nth(1).unwrap_or_default();
    path.split('?').next().is_some_and(|path| path.ends_with("/attach"))
}

/// The head, for a connection that carries one request only; one that becomes a stream stays as it is.
fn alone(head: &str) -> String {
    if head.to_ascii_lowercase().contains("\r\nupgrade:") {
        return head.to_owned();
    }
    let lines = head.trim_end().split("\r\n");
    let kept = lines.filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    kept.chain(["Connection: close\r\n\r\n"]).collect::<Vec<_>>().join("\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_by_their_path() {
        assert!(is_events("GET /v1.41/events?filters=x HTTP/1.1\r\n\r\n"));
        assert!(!is_events("GET /v1.41/containers/json HTTP/1.1\r\n\r\n"));
    }

    #[test]
    fn a_connection_carries_one_request() {
        assert_eq!(
            alone("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"),
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        );
        let upgrade = "POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
        assert_eq!(alone(upgrade), upgrade);
    }
}
