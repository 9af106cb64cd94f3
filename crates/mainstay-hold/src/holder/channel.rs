//! The daemon's end of the socket that it shares with its holder.
//!
//! Events come in the order in which the holder sent them, on one thread. Requests are answered when
//! they have taken effect; other messages are not acknowledged.

mod start;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

pub use self::start::{StartInfo, Welcome};
use self::start::{hand_over, read_welcome};
pub(super) use self::start::{next, read_listeners, send_list, unexpected};
use super::ListenAddr;
use super::message::{self, ToDaemon, ToHolder, Unfinished, VERSION};
use super::packet::{self, Buffer};
use crate::descriptors;
use crate::limits::{HOLDER_EXIT, KILL};

/// What a daemon receives from its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HolderEvent {
    /// The old daemon has handed over or exited: a standby serves now.
    Serve,
    /// A successor is prepared: hand over, then call [`HolderChannel::handed_over`]. If that fails, the holder has died, and
    /// the successor may serve or not: kill it ([`HolderChannel::kill_successor`]), start another holder, and exit.
    HandOver,
    /// There will be no successor, and why. A daemon that has not handed over continues.
    NotReplaced(String),
    /// The holder has died, and with it any replacement that was in progress. A daemon that serves
    /// starts another one ([`HolderChannel::replace_holder`]); a standby exits.
    HolderGone,
    /// The holder is alive but has closed this daemon's socket, and starts another daemon. This daemon must
    /// exit and must not start a holder.
    Disconnected,
    /// The holder has executed the program of this daemon, or why it has not.
    HolderReexecuted(Result<(), String>),
}

/// A connection of an earlier daemon.
#[derive(Debug)]
pub struct Inherited {
    /// The listener that accepted it.
    pub listen_addr: ListenAddr,
    /// What the earlier daemon left to do.
    pub state: InheritedState,
    /// The connection itself.
    pub socket: OwnedFd,
}

/// What an earlier daemon left to do on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum InheritedState {
    /// It was handed over, and no client waits.
    Idle,
    /// It was handed over with an unfinished response, see [`HolderChannel::pass_responses`].
    Response(Vec<u8>),
    /// The daemon was killed, and had [recorded](super::StoredConnection::record) this.
    Interrupted(Vec<u8>),
}

/// The daemon's connection to its holder; clones share it.
#[derive(Debug, Clone)]
pub struct HolderChannel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    /// The holder's process; `None` if it had ended before it could be opened.
    holder: Option<OwnedFd>,
    pending: Mutex<Pending>,
    inherited: Mutex<Vec<Inherited>>,
    /// The process that this daemon hands over to.
    successor: Mutex<Option<OwnedFd>>,
}

/// The requests that are not answered yet.
#[derive(Debug, Default)]
struct Pending {
    last: u64,
    holder_gone: bool,
    answers: HashMap<u64, SyncSender<Answer>>,
}

type Answer = io::Result<Option<OwnedFd>>;

impl HolderChannel {
    /// Reads the welcome. A thread then calls `handle` for every event, the last of which is
    /// [`HolderEvent::HolderGone`] or [`HolderEvent::Disconnected`]. `handle` must not wait for answers of this channel.
    pub fn connect(
        socket: OwnedFd,
        handle: impl FnMut(HolderEvent) + Send + 'static,
    ) -> io::Result<(Self, Welcome)> {
        let mut buffer = Buffer::new();
        let (welcome, interrupted) = read_welcome(socket.as_fd(), &mut buffer)?;
        let holder = open_parent(welcome.holder_pid)?;
        let channel = Self::start(socket, holder, buffer, handle, || ())?;
        lock(&channel.0.inherited).extend(inherited(interrupted, InheritedState::Interrupted));
        Ok((channel, welcome))
    }

    /// Opens a listener, or returns the one that is open at this address already.
    pub fn bind(&self, listen_addr: &ListenAddr) -> io::Result<OwnedFd> {
        let listen_addr = listen_addr.clone();
        let answer = self.request(|request| ToHolder::Bind { request, listen_addr })?;
        answer.ok_or_else(|| unexpected("the listener is missing"))
    }

    /// Closes a listener. It is closed, and a unix socket's file removed, when this returns.
    pub fn release(&self, listen_addr: &ListenAddr) -> io::Result<()> {
        let listen_addr = listen_addr.clone();
        self.request(|request| ToHolder::Release { request, listen_addr }).map(drop)
    }

    /// A standby could serve now; it then waits for [`HolderEvent::Serve`].
    pub fn prepared(&self) -> io::Result<()> {
        self.send(&ToHolder::Prepared, &[], SendFlags::empty())
    }

    /// The daemon serves. The holder knows it when this returns.
    pub fn ready(&self) -> io::Result<()> {
        self.request(|request| ToHolder::Ready { request, holder: VERSION }).map(drop)
    }

    /// The daemon cannot serve, and why. If it is the first one, no other is tried.
    pub fn failed(&self, error: &[u8]) -> io::Result<()> {
        self.send(&ToHolder::Failed { error: error.to_vec() }, &[], SendFlags::empty())
    }

    /// The daemon ends on purpose. All listeners are released when this returns.
    pub fn ending(&self) -> io::Result<()> {
        self.request(|request| ToHolder::Ending { request }).map(drop)
    }

    /// Asks for a successor that runs `exe`. The outcome comes as a [`HolderEvent`]. If the successor fails after the
    /// hand-over, `fallback` is renamed over `exe`.
    pub fn replace(&self, exe: &Path, fallback: Option<&Path>) -> io::Result<()> {
        let (exe, fallback) = (exe.to_path_buf(), fallback.map(Path::to_path_buf));
        self.send(&ToHolder::Replace { exe, fallback }, &[], SendFlags::DONTWAIT)
    }

    /// Passes idle connections to the successor, before [`handed_over`](Self::handed_over).
    pub fn pass_connections(&self, connections: &[(ListenAddr, BorrowedFd<'_>)]) -> io::Result<()> {
        let message = |listen_addrs| ToHolder::Connections { listen_addrs };
        send_list(self.0.socket.as_fd(), connections, message, SendFlags::empty())
    }

    /// Passes connections with unfinished responses to the successor, before [`handed_over`](Self::handed_over).
    pub fn pass_responses(&self, connections: &[(Unfinished, BorrowedFd<'_>)]) -> io::Result<()> {
        let message = |responses| ToHolder::Responses { responses };
        send_list(self.0.socket.as_fd(), connections, message, SendFlags::empty())
    }

    /// The connections of the daemon before this one, which has handed over or was killed. A standby has all of them
    /// when it serves.
    pub fn inherited(&self) -> Vec<Inherited> {
        std::mem::take(&mut *lock(&self.0.inherited))
    }

    /// This daemon accepts nothing more and has permanently released state and shims. When this returns, the successor
    /// serves, or another daemon is started; if it fails, neither is certain.
    pub fn handed_over(&self) -> io::Result<()> {
        self.request(|request| ToHolder::HandedOver { request }).map(drop)
    }

    /// Kills the daemon that this one hands over to, and waits until it has exited.
    pub fn kill_successor(&self) -> io::Result<()> {
        let Some(successor) = lock(&self.0.successor).take() else {
            return Err(io::Error::new(ErrorKind::NotFound, "the successor is not known"));
        };
        kill(&successor)
    }

    /// Kills the holder and waits until it has exited; [`HolderEvent::HolderGone`] follows. This replaces a holder
    /// that cannot execute another program. Its listeners and its lock stay open in this daemon.
    pub fn kill_holder(&self) -> io::Result<()> {
        self.0.holder.as_ref().map_or(Ok(()), kill)
    }

    /// Resets the watchdog of the holder.
    pub fn pulse(&self) -> io::Result<()> {
        self.send(&ToHolder::Pulse, &[], SendFlags::DONTWAIT)
    }

    /// Starts a holder, `exe args`, in place of a dead one, and passes it all that this daemon holds. The new holder
    /// calls [`take_over`](super::take_over). Also returns its pid. Fails with
    /// [`AddrInUse`](ErrorKind::AddrInUse) if another process has the holder lock.
    pub fn replace_holder(
        exe: &Path,
        args: &[OsString],
        lock: BorrowedFd<'_>,
        held: &[(ListenAddr, BorrowedFd<'_>)],
        handle: impl FnMut(HolderEvent) + Send + 'static,
    ) -> io::Result<(Self, u32)> {
        let (socket, theirs) = packet::pair()?;
        let mut command = Command::new(exe);
        descriptors::pass_only_stdio(&mut command);
        let mut holder = command.args(args).process_group(0).stdin(Stdio::from(theirs)).spawn()?;
        let mut buffer = Buffer::new();
        let taken = hand_over(socket.as_fd(), &mut buffer, lock, held)
            .and_then(|pid| Ok((pid, pidfd_open(Pid::from_child(&holder), PidfdFlags::empty())?)));
        match taken {
            Ok((pid, process)) => {
                let reap = move || reap(&mut holder);
                Ok((Self::start(socket, Some(process), buffer, handle, reap)?, pid))
            }
            Err(error) => {
                holder.kill()?;
                reap(&mut holder);
                Err(error)
            }
        }
    }

    /// Starts the thread that receives. It calls `after` when the holder is gone and that was handled.
    fn start(
        socket: OwnedFd,
        holder: Option<OwnedFd>,
        buffer: Buffer,
        handle: impl FnMut(HolderEvent) + Send + 'static,
        after: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket,
            holder,
            pending: Mutex::default(),
            inherited: Mutex::default(),
            successor: Mutex::default(),
        });
        let channel = Self(Arc::clone(&shared));
        let receive = move || {
            channel.receive(buffer, handle);
            after();
        };
        thread::Builder::new().name("holder".into()).spawn(receive)?;
        Ok(Self(shared))
    }

    /// With `DONTWAIT` it never blocks, and fails if the socket's buffer is full because the holder does not read.
    pub(super) fn send(
        &self,
        message: &ToHolder,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        packet::send(self.0.socket.as_fd(), &message::encode(message), descriptors, flags)
    }

    fn request(&self, request: impl FnOnce(u64) -> ToHolder) -> Answer {
        let (sender, answer) = sync_channel(1);
        let number = lock(&self.0.pending).add(sender)?;
        if let Err(error) = self.send(&request(number), &[], SendFlags::empty()) {
            lock(&self.0.pending).answers.remove(&number);
            return Err(error);
        }
        answer.recv().unwrap_or_else(|_| Err(holder_gone()))
    }

    /// Returns when the holder closes the socket or sends an invalid message.
    fn receive(&self, mut buffer: Buffer, mut handle: impl FnMut(HolderEvent)) {
        let Self(shared) = self;
        while let Ok(Some(packet)) = buffer.receive(shared.socket.as_fd(), RecvFlags::empty()) {
            let mut descriptors = packet.descriptors.into_iter();
            let mut inherit = |all: Vec<Unfinished>, state: fn(Vec<u8>) -> InheritedState| {
                let all = all.into_iter().zip(&mut descriptors);
                lock(&shared.inherited).extend(inherited(all, state));
            };
            match message::decode(packet.bytes) {
                Ok(Some(ToDaemon::Serve)) => handle(HolderEvent::Serve),
                Ok(Some(ToDaemon::HandOver)) => {
                    *lock(&shared.successor) = descriptors.next();
                    handle(HolderEvent::HandOver);
                }
                Ok(Some(ToDaemon::NotReplaced { why })) => handle(HolderEvent::NotReplaced(why)),
                Ok(Some(ToDaemon::TakenOver { .. })) => {
                    handle(HolderEvent::HolderReexecuted(Ok(())));
                }
                Ok(Some(ToDaemon::ReexecFailed { why })) => {
                    handle(HolderEvent::HolderReexecuted(Err(why)));
                }
                Ok(Some(ToDaemon::Connections { listen_addrs })) => {
                    let idle = |listen_addr| Unfinished { listen_addr, state: Vec::new() };
                    inherit(listen_addrs.into_iter().map(idle).collect(), |_| InheritedState::Idle);
                }
                Ok(Some(ToDaemon::Responses { responses })) => {
                    inherit(responses, InheritedState::Response);
                }
                Ok(Some(ToDaemon::Interrupted { connections })) => {
                    inherit(connections, InheritedState::Interrupted);
                }
                Ok(Some(ToDaemon::Done { request, result })) => {
                    let result = result.map(|()| descriptors.next()).map_err(io::Error::from);
                    let requester = lock(&shared.pending).answers.remove(&request);
                    // It waits until it is answered, and has room for one answer.
                    requester.map(|requester| requester.send(result));
                }
                Ok(None | Some(ToDaemon::Welcome { .. } | ToDaemon::Listeners { .. })) => {}
                Err(_) => break,
            }
        }
        let mut pending = lock(&shared.pending);
        pending.holder_gone = true;
        pending.answers.clear();
        drop(pending);
        let exited =
            shared.holder.as_ref().map_or(Ok(true), |holder| has_exited(holder, HOLDER_EXIT));
        // If that is not known, assume that it is alive: two holders are worse than none.
        let exited = exited.unwrap_or(false);
        handle(if exited { HolderEvent::HolderGone } else { HolderEvent::Disconnected });
    }
}

fn inherited(
    all: impl IntoIterator<Item = (Unfinished, OwnedFd)>,
    state_of: fn(Vec<u8>) -> InheritedState,
) -> impl Iterator<Item = Inherited> {
    all.into_iter().map(move |(Unfinished { listen_addr, state }, socket)| Inherited {
        listen_addr,
        state: state_of(state),
        socket,
    })
}

impl Pending {
    fn add(&mut self, requester: SyncSender<Answer>) -> io::Result<u64> {
        if self.holder_gone {
            return Err(holder_gone());
        }
        self.last += 1;
        self.answers.insert(self.last, requester);
        Ok(self.last)
    }
}

/// No code leaves what is locked here half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process that started this one, if it has not exited yet.
fn open_parent(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return Ok(None) };
    let parent = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(parent) => parent,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // It is still our parent, so the pid was not reused before it was opened.
    Ok((getppid() == Some(pid)).then_some(parent))
}

fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(errno.into()),
    }
    if has_exited(process, KILL)? { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
}

/// Whether a process has exited, or does so within this time.
fn has_exited(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut process = [PollFd::new(process, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut process, Some(&limit)))? > 0)
}

fn reap(holder: &mut Child) {
    let _was_reaped = holder.wait();
}

fn holder_gone() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the holder is gone")
}
