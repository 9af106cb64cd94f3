//! The listening sockets, by the address that was asked for.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use super::ListenAddr;
use crate::record::if_exists;
use crate::socket;

/// How many connections may wait for a daemon, if the system allows it.
const BACKLOG: i32 = 4096;

#[derive(Debug, Default)]
pub(super) struct Listeners(Vec<(ListenAddr, Rc<OwnedFd>)>);

impl Listeners {
    pub(super) fn adopt(held: Vec<(ListenAddr, OwnedFd)>) -> Self {
        Self(
            held.into_iter()
                .map(|(listen_addr, listener)| (listen_addr, Rc::new(listener)))
                .collect(),
        )
    }

    pub(super) fn held(&self) -> &[(ListenAddr, Rc<OwnedFd>)] {
        &self.0
    }

    /// Opens a listener, or returns the one that is open. A unix socket whose file was removed is bound again.
    pub(super) fn bind(&mut self, listen_addr: ListenAddr) -> io::Result<Rc<OwnedFd>> {
        if let Some(index) = self.0.iter().position(|(held, _)| *held == listen_addr) {
            if is_reachable(&listen_addr) {
                return Ok(Rc::clone(&self.0[index].1));
            }
            self.0.swap_remove(index);
        }
        let listener = Rc::new(match &listen_addr {
            ListenAddr::Tcp(address) => bind_tcp(*address)?,
            ListenAddr::Unix { dir, name } => bind_unix(dir, name)?,
        });
        self.0.push((listen_addr, Rc::clone(&listener)));
        Ok(listener)
    }

    /// Closes a listener in all processes that have it.
    pub(super) fn release(&mut self, listen_addr: &ListenAddr) -> io::Result<()> {
        match self.0.iter().position(|(held, _)| held == listen_addr) {
            Some(index) => {
                let (listen_addr, listener) = self.0.swap_remove(index);
                close(&listen_addr, &listener)
            }
            None => Ok(()),
        }
    }

    pub(super) fn release_all(&mut self) {
        for (listen_addr, listener) in self.0.drain(..) {
            // The next holder replaces a leftover file.
            let _stays_behind = close(&listen_addr, &listener);
        }
    }
}

/// Whether clients can find a listener that is open.
fn is_reachable(listen_addr: &ListenAddr) -> bool {
    match listen_addr {
        ListenAddr::Tcp(_) => true,
        ListenAddr::Unix { dir, name } => dir.join(name).exists(),
    }
}

/// As std does, but with a longer queue.
fn bind_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let listener =
        rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// An existing file is a leftover, because this process holds the lock.
fn bind_unix(dir: &Path, name: &str) -> io::Result<OwnedFd> {
    remove(dir, name)?;
    let listener = socket::bind(dir, name)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener.into())
}

/// First the name, so that a late client finds none. Then the socket itself is shut down: a daemon may still have it
/// open, and clients must not wait in its queue.
fn close(listen_addr: &ListenAddr, listener: &OwnedFd) -> io::Result<()> {
    let removed = match listen_addr {
        ListenAddr::Tcp(_) => Ok(()),
        ListenAddr::Unix { dir, name } => remove(dir, name),
    };
    let _has_no_connection = rustix::net::shutdown(listener, Shutdown::Both);
    removed
}

fn remove(dir: &Path, name: &str) -> io::Result<()> {
    if_exists(fs::remove_file(dir.join(name))).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn any_port() -> ListenAddr {
        ListenAddr::Tcp((Ipv4Addr::LOCALHOST, 0).into())
    }

    fn address(listener: &OwnedFd) -> SocketAddr {
        TcpListener::from(listener.try_clone().unwrap()).local_addr().unwrap()
    }

    #[test]
    fn a_place_keeps_its_listener_until_it_is_released() {
        let mut listeners = Listeners::default();
        let first = listeners.bind(any_port()).unwrap();
        let address = address(&first);
        assert!(Rc::ptr_eq(&first, &listeners.bind(any_port()).unwrap()));
        TcpStream::connect(address).unwrap();

        let taken = listeners.bind(ListenAddr::Tcp(address)).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        listeners.release(&any_port()).unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "although `first` is open");
        listeners.bind(ListenAddr::Tcp(address)).unwrap();
        TcpStream::connect(address).unwrap();
        listeners.release(&any_port()).unwrap();
    }

    #[test]
    fn a_leftover_socket_is_replaced_and_none_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let listen_addr = ListenAddr::Unix { dir: dir.path().into(), name: "s".into() };
        drop(socket::bind(dir.path(), "s").unwrap());
        let mut listeners = Listeners::default();
        let _copy = listeners.bind(listen_addr.clone()).unwrap();
        socket::connect(dir.path(), "s").unwrap();
        fs::remove_file(dir.path().join("s")).unwrap();
        let _rebound = listeners.bind(listen_addr).unwrap();
        socket::connect(dir.path(), "s").unwrap();
        assert_eq!(listeners.held().len(), 1);
        listeners.release_all();
        assert_eq!(socket::connect(dir.path(), "s").unwrap_err().kind(), ErrorKind::NotFound);
        assert!(listeners.held().is_empty());
    }
}
