//! A server that runs elsewhere and is reached by a name, and the name server that knows it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tokio::net::UdpSocket;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::rig::free_address;

/// Names below `localhost` are loopback's own.
const NAME: &str = "remote.localhost";

/// How long a slow answer takes: less than the system's resolver waits for one.
const SLOW: Duration = Duration::from_secs(4);

/// A fixture that Mainstay does not start. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Remote {
    fixture: PathBuf,
    address: SocketAddr,
    process: Child,
}

impl Remote {
    pub(super) fn start(fixture: PathBuf) -> io::Result<Self> {
        let address = free_address()?;
        let process = start(&fixture, address)?;
        Ok(Self { fixture, address, process })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{NAME}:{}/mcp", self.address.port())
    }

    /// Kills it and starts another one, so that its clients have to connect again.
    pub(super) async fn restart(&mut self) -> io::Result<()> {
        self.process.kill().await?;
        self.process = start(&self.fixture, self.address)?;
        Ok(())
    }
}

fn start(fixture: &Path, address: SocketAddr) -> io::Result<Child> {
    let mut command = Command::new(fixture);
    command.args(["--http", &address.to_string()]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The only name server of this mount namespace.
#[derive(Debug)]
pub(super) struct NameServer {
    slow: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

/// What the system's resolver reads, and what it is to read there.
const SETTINGS: [&str; 2] = ["/etc/resolv.conf", "/etc/nsswitch.conf"];

impl NameServer {
    /// Starts one on an address of loopback that is this process's own, and has it asked from now on. `folder` is for files.
    pub(super) async fn start(folder: &Path) -> io::Result<Self> {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high, low, 53);
        let socket = Arc::new(UdpSocket::bind((address, 53)).await?);
        let texts = [format!("nameserver {address}\n"), "hosts: files dns\n".to_owned()];
        for (path, text) in SETTINGS.into_iter().zip(texts) {
            let ours = folder.join(path.replace('/', "-"));
            fs::write(&ours, text)?;
            mount_bind(&ours, path)?;
        }
        let slow = Arc::new(AtomicBool::new(false));
        let serving = tokio::spawn(serve(socket, Arc::clone(&slow)));
        Ok(Self { slow, serving })
    }

    pub(super) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
        for path in SETTINGS {
            // It ends with our mount namespace at the latest.
            unmount(path, UnmountFlags::DETACH).ok();
        }
    }
}

async fn serve(socket: Arc<UdpSocket>, slow: Arc<AtomicBool>) {
    let mut query = [0; 512];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut query).await else { continue };
        let Some(answer) = answer(&query[..length]) else { continue };
        let delay = if slow.load(Ordering::Relaxed) { SLOW } else { Duration::ZERO };
        let socket = Arc::clone(&socket);
        drop(tokio::spawn(async move {
            sleep(delay).await;
            // Whoever asked may have ended.
            socket.send_to(&answer, from).await.ok();
        }));
    }
}

/// The answer to a DNS query: the name is this machine, others do not exist. `None` if it is not a query.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const ADDRESS: [u8; 4] = [0, 1, 0, 1];
    let (header, mut rest) = query.split_at_checked(HEADER)?;
    let mut labels = Vec::new();
    while let Some((&length, after)) = rest.split_first()
        && length > 0
    {
        let label;
        (label, rest) = after.split_at_checked(length.into())?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
    }
    let asked = rest.get(1..5)?;
    let question = &query[HEADER..query.len() - rest.len() + 5];
    let known = labels.join(".") == NAME;
    let found = known && asked == ADDRESS;
    // A response, with recursion.
    let flags = [0x81, if known { 0x80 } else { 0x83 }];
    let counts = [0, 1, 0, u8::from(found), 0, 0, 0, 0];
    let mut answer = [&header[..2], &flags, &counts, question].concat();
    if found {
        // The name of the question, an address, not to be kept, of four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(Ipv4Addr::LOCALHOST.octets());
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_has_an_address() {
        let query = |name: &str, kind: u8| {
            let mut query = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
            for label in name.split('.') {
                query.push(label.len().try_into().unwrap());
                query.extend(label.bytes());
            }
            query.extend([0, 0, kind, 0, 1]);
            // Options of the query, which need no answer.
            query.extend([0, 0, 41, 0, 0, 0, 0, 0, 0, 0, 0]);
            query
        };
        let check = |name: &str, kind: u8, code: u8, answers: u8, end: &[u8]| {
            let answer = answer(&query(name, kind)).unwrap();
            assert_eq!(answer[..2], [7, 8], "the id of the query");
            assert_eq!((answer[3] & 0xf, answer[7]), (code, answers), "{name}");
            assert!(answer.ends_with(end), "{answer:?}");
        };
        check("Remote.localhost", 1, 0, 1, &[0, 4, 127, 0, 0, 1]);
        check("remote.localhost", 28, 0, 0, &[0, 28, 0, 1]);
        check("other.localhost", 1, 3, 0, &[0, 1, 0, 1]);
        assert_eq!(answer(&query(NAME, 1)[..20]), None);
        assert_eq!(answer(b"no query"), None);
    }
}
