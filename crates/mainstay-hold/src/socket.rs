//! Unix sockets in directories of any depth.
//!
//! A socket address holds about a hundred bytes of path, a home directory may be longer. So the
//! directory is opened and the socket addressed through `/proc/self/fd`. All descriptors are closed
//! on exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The name of a shim's socket in its run directory.
pub const SHIM: &str = "shim.sock";

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 256;

/// Binds a socket that only our user may connect to. It is private before it listens.
pub fn bind(dir: &Path, name: &str) -> io::Result<UnixListener> {
    bind_in(open_dir(dir)?.as_fd(), name)
}

/// Connects to a socket. The stream blocks, but connecting does not: a peer that is stopped, and has
/// as many connections waiting as it may have, is an error of the kind
/// [`WouldBlock`](io::ErrorKind::WouldBlock).
pub fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let dir = open_dir(dir)?;
    let socket = stream(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(place(dir.as_fd(), name))?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// As [`bind`], in a directory that is open.
pub(crate) fn bind_in(dir: BorrowedFd<'_>, name: &str) -> io::Result<UnixListener> {
    let place = place(dir, name);
    let socket = stream(SocketFlags::empty())?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&place)?)?;
    rustix::fs::chmod(&place, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Opens a directory as a place for files, not to be listed.
pub(crate) fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

/// A short path that leads to a file in an open directory, as long as the directory is open.
fn place(dir: BorrowedFd<'_>, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_socket_with_a_long_path_is_private_and_reachable() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("d".repeat(150)).join("e".repeat(150));
        fs::create_dir_all(&dir).unwrap();

        assert_eq!(connect(&dir, "s").unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = bind(&dir, "s").unwrap();
        assert_eq!(fs::metadata(dir.join("s")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&dir, "s").unwrap_err().kind(), io::ErrorKind::AddrInUse);

        let mut client = connect(&dir, "s").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn connecting_to_a_peer_that_does_not_accept_does_not_block() {
        let temp = tempfile::tempdir().unwrap();
        let _deaf = bind(temp.path(), "s").unwrap();
        let (sender, result) = mpsc::channel();
        let dir = temp.path().to_path_buf();
        thread::spawn(move || {
            let waiting: Vec<_> = (0..=BACKLOG).map_while(|_| connect(&dir, "s").ok()).collect();
            sender.send((waiting.len(), connect(&dir, "s").unwrap_err().kind())).unwrap();
        });
        let (waiting, refused) = result.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(waiting > 0);
        assert_eq!(refused, io::ErrorKind::WouldBlock);
    }
}
