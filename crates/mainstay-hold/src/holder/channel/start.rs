//! The first messages between a holder and a daemon.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::codec::{Field, length};
use crate::holder::ListenAddr;
use crate::holder::message::{self, CHECKS_SENDER, ToDaemon, ToHolder, Unfinished, VERSION};
use crate::holder::packet::{self, Buffer, Packet};
use crate::limits::TAKE_OVER;

/// What a daemon starts with.
#[derive(Debug)]
pub struct Welcome {
    /// The process of the holder.
    pub holder_pid: u32,
    /// The instance lock. While this is open the instance stays locked, even without the holder.
    pub lock: OwnedFd,
    /// The listeners that are open already.
    pub listeners: Vec<(ListenAddr, OwnedFd)>,
    /// Why and how it was started.
    pub start: StartInfo,
}

/// Why and how a daemon was started.
#[derive(Debug, Clone)]
pub struct StartInfo {
    /// Whether the holder is from Mainstay 0.1.0: it accepts commands from every process that has a copy of
    /// the daemon's socket, and cannot execute another program. See [`HolderChannel::kill_holder`](super::HolderChannel::kill_holder).
    pub holder_is_outdated: bool,
    /// Whether another daemon serves: this one prepares, reports that and waits for
    /// [`HolderEvent::Serve`](super::HolderEvent::Serve).
    pub standby: bool,
    /// Why the last reload or update was rolled back, if it was.
    pub replacement_failed: Option<String>,
    /// How the last daemon died, if it did, and its last lines.
    pub last_output: Option<String>,
    /// How often [`HolderChannel::pulse`](super::HolderChannel::pulse) is expected, if the service manager has a watchdog.
    pub watchdog: Option<Duration>,
}

/// The first messages of a holder, with the connections of a daemon that was killed.
pub(super) fn read_welcome(
    socket: BorrowedFd<'_>,
    buffer: &mut Buffer,
) -> io::Result<(Welcome, Vec<(Unfinished, OwnedFd)>)> {
    let Packet { bytes, descriptors, .. } = next(socket, buffer)?;
    let Some(ToDaemon::Welcome {
        version: version @ 1..,
        holder_pid,
        standby,
        replacement_failed,
        last_output,
        watchdog_micros,
        listeners,
        interrupted,
    }) = message::decode(bytes).map_err(unexpected)?
    else {
        return Err(unexpected("the welcome is missing"));
    };
    let lock = descriptors.into_iter().next().ok_or_else(|| unexpected("the lock is missing"))?;
    let listeners = read_listeners(socket, buffer, listeners)?;
    let interrupted = read_interrupted(socket, buffer, interrupted)?;
    let start = StartInfo {
        holder_is_outdated: version < CHECKS_SENDER,
        standby,
        replacement_failed,
        last_output,
        watchdog: (watchdog_micros > 0).then(|| Duration::from_micros(watchdog_micros)),
    };
    let welcome = Welcome { holder_pid, lock, listeners, start };
    Ok((welcome, interrupted))
}

/// Reads as many connections as were announced. Those that this process has no descriptors left for are lost.
fn read_interrupted(
    socket: BorrowedFd<'_>,
    buffer: &mut Buffer,
    count: u32,
) -> io::Result<Vec<(Unfinished, OwnedFd)>> {
    let (mut all, mut read) = (Vec::new(), 0);
    while read < count as usize {
        let Packet { bytes, descriptors, .. } = next(socket, buffer)?;
        let Some(ToDaemon::Interrupted { connections }) =
            message::decode(bytes).map_err(unexpected)?
        else {
            return Err(unexpected("connections are missing"));
        };
        read += connections.len().max(1);
        all.extend(connections.into_iter().zip(descriptors));
    }
    Ok(all)
}

/// Sends descriptors with what belongs to them, in as many packets as it takes.
pub(in crate::holder) fn send_list<T: Field + Clone, D: AsFd>(
    socket: BorrowedFd<'_>,
    all: &[(T, D)],
    message: impl Fn(Vec<T>) -> ToHolder,
    flags: SendFlags,
) -> io::Result<()> {
    for list in message::lists(all) {
        let listed = list.iter().map(|(listed, _)| listed.clone()).collect();
        let descriptors: Vec<_> = list.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
        packet::send(socket, &message::encode(&message(listed)), &descriptors, flags)?;
    }
    Ok(())
}

/// Reads as many listeners as were announced.
pub(in crate::holder) fn read_listeners(
    socket: BorrowedFd<'_>,
    buffer: &mut Buffer,
    count: u32,
) -> io::Result<Vec<(ListenAddr, OwnedFd)>> {
    let mut listeners = Vec::new();
    while listeners.len() < count as usize {
        let Packet { bytes, descriptors, .. } = next(socket, buffer)?;
        // The message is the same in both directions.
        let Some(ToHolder::Listeners { listen_addrs }) =
            message::decode(bytes).map_err(unexpected)?
        else {
            return Err(unexpected("listeners are missing"));
        };
        if listen_addrs.is_empty() || listen_addrs.len() != descriptors.len() {
            return Err(unexpected("addresses and listeners differ in number"));
        }
        listeners.extend(listen_addrs.into_iter().zip(descriptors));
    }
    Ok(listeners)
}

/// The next packet. The end of the connection is an error.
pub(in crate::holder) fn next<'a>(
    socket: BorrowedFd<'_>,
    buffer: &'a mut Buffer,
) -> io::Result<Packet<'a>> {
    buffer.receive(socket, RecvFlags::empty())?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

/// Passes everything to a new holder and waits for its answer: its pid.
pub(super) fn hand_over(
    socket: BorrowedFd<'_>,
    buffer: &mut Buffer,
    lock: BorrowedFd<'_>,
    held: &[(ListenAddr, BorrowedFd<'_>)],
) -> io::Result<u32> {
    set_socket_timeout(socket, Timeout::Send, Some(TAKE_OVER))?;
    set_socket_timeout(socket, Timeout::Recv, Some(TAKE_OVER))?;
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let stderr = renew_stderr()?;
    let handover = ToHolder::Handover {
        version: VERSION,
        stderr: stderr.is_some(),
        listeners: length(held.len()),
    };
    let mut descriptors = vec![lock, process.as_fd()];
    descriptors.extend(stderr.as_ref().map(AsFd::as_fd));
    packet::send(socket, &message::encode(&handover), &descriptors, SendFlags::empty())?;
    send_list(
        socket,
        held,
        |listen_addrs| ToHolder::Listeners { listen_addrs },
        SendFlags::empty(),
    )?;
    let answer = message::decode(next(socket, buffer)?.bytes).map_err(unexpected)?;
    let holder_pid = match answer {
        Some(ToDaemon::TakenOver { version: 1.., holder_pid }) => holder_pid,
        Some(ToDaemon::NotReplaced { why }) => {
            return Err(io::Error::new(ErrorKind::AddrInUse, why));
        }
        _ => return Err(unexpected("the holder did not take over")),
    };
    set_socket_timeout(socket, Timeout::Send, None)?;
    set_socket_timeout(socket, Timeout::Recv, None)?;
    Ok(holder_pid)
}

/// If the reader of our standard error has closed it, because that was the dead holder, it becomes a new pipe. Returns
/// the other end.
fn renew_stderr() -> io::Result<Option<OwnedFd>> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let stderr = rustix::stdio::stderr();
    let mut state = [PollFd::from_borrowed_fd(stderr, PollFlags::empty())];
    poll(&mut state, Some(&now))?;
    if !state[0].revents().contains(PollFlags::ERR) {
        return Ok(None);
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::stdio::dup2_stderr(&write)?;
    Ok(Some(read))
}

/// A message that does not belong here.
pub(in crate::holder) fn unexpected(
    what: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
