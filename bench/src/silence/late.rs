//! An HTTP server that answers `GET /MS` after so many milliseconds.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(super) struct LateServer {
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl LateServer {
    /// Serves on loopback until it is dropped.
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                // A client that is gone needs no answer.
                connections.spawn(async { drop(answer(stream).await) });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, _tasks: tasks })
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let (reading, mut writing) = stream.split();
    let mut lines = BufReader::new(reading).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).and_then(|path| path.strip_prefix('/'));
    let ms = path.and_then(|ms| ms.parse().ok()).unwrap_or_default();
    sleep(Duration::from_millis(ms)).await;
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    writing.write_all(format!("{head}{ms} ms").as_bytes()).await?;
    writing.shutdown().await
}
