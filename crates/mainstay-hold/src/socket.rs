//! Unix sockets in directories of any depth.
//!
//! A socket address holds about a hundred bytes of path, a home directory may be longer. So the
//! directory is opened and the socket addressed through `/proc/self/fd`. All descriptors are closed
//! on exec.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The name of a shim's socket in its run directory.
pub const SHIM: &str = "shim.sock";

const BACKLOG: i32 = 64;

/// Binds a socket that only our user may connect to. It is private before it listens.
pub fn bind(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let place = Place::open(dir, name)?;
    let socket = stream()?;
    rustix::net::bind(&socket, &place.address()?)?;
    rustix::fs::chmod(&place.path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Connects to a socket.
pub fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let place = Place::open(dir, name)?;
    let socket = stream()?;
    rustix::net::connect(&socket, &place.address()?)?;
    Ok(UnixStream::from(socket))
}

fn stream() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A short path that leads to a file in an open directory, as long as the directory is open.
struct Place {
    path: String,
    _dir: OwnedFd,
}

impl Place {
    fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        Ok(Self { path: format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()), _dir: dir })
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new(&self.path)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_deep_down_is_private_and_can_be_reached() {
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
}
