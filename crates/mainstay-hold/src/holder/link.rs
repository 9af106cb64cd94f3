//! The daemon's end of the socket that it shares with its holder.
//!
//! Orders come in the order in which the holder gave them, on one thread. Requests are answered when
//! they have taken effect; all else is said and not waited for.

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

pub use self::start::Welcome;
use self::start::{hand_over, read_welcome};
pub(super) use self::start::{next, read_listeners, send_list, unexpected};
use super::Place;
use super::message::{ToDaemon, ToHolder, Unfinished, VERSION};
use super::packet::{self, Buffer};
use crate::descriptors;
use crate::limits::{HOLDER_EXIT, KILL};

/// What the holder wants of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HolderEvent {
    /// The standby may serve.
    Go,
    /// A successor is prepared: accept nothing more, let go of state and shims, say
    /// [`Link::yielded`]. If that fails, the holder has died and may have told the successor to go or
    /// not: see to it that the successor is gone ([`Link::end_successor`]), start another holder, and end.
    GiveWay,
    /// There will be no successor, and why. Whoever has not yielded goes on.
    NotReplaced(String),
    /// The holder has died, and with it any replacement that was under way. A daemon that serves
    /// starts another one ([`Link::replace_holder`]); a standby ends.
    HolderGone,
    /// The holder is alive but has closed this daemon's socket, and starts another daemon. This daemon must
    /// exit and must not start a holder.
    Disconnected,
    /// The holder has executed the program of this daemon, or why it has not.
    HolderReexecuted(Result<(), String>),
}

/// The daemon's way to its holder.
#[derive(Debug, Clone)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    /// The holder's process; `None` if it had ended before it could be opened.
    holder: Option<OwnedFd>,
    pending: Mutex<Pending>,
    connections: Mutex<Vec<(Place, OwnedFd)>>,
    responses: Mutex<Vec<(Unfinished, OwnedFd)>>,
    interrupted: Mutex<Vec<(Unfinished, OwnedFd)>>,
    /// The process that this daemon was told to give way to.
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

impl Link {
    /// Reads the welcome; a thread of its own then hands every order to `obey`, the last of which is
    /// [`HolderEvent::HolderGone`]. `obey` must not wait for answers of this link.
    pub fn take_up(
        socket: OwnedFd,
        obey: impl FnMut(HolderEvent) + Send + 'static,
    ) -> io::Result<(Self, Welcome)> {
        let mut buffer = Buffer::new();
        let (welcome, interrupted) = read_welcome(socket.as_fd(), &mut buffer)?;
        let holder = open_parent(welcome.holder_pid)?;
        let link = Self::begin(socket, holder, buffer, obey, || ())?;
        lock(&link.0.interrupted).extend(interrupted);
        Ok((link, welcome))
    }

    /// Opens a listener, or gives the one that is open at this place already.
    pub fn bind(&self, place: &Place) -> io::Result<OwnedFd> {
        let place = place.clone();
        let answer = self.ask(|request| ToHolder::Bind { request, place })?;
        answer.ok_or_else(|| unexpected("no listener came"))
    }

    /// Closes a listener. It is closed, and a unix socket's file removed, when this returns.
    pub fn release(&self, place: &Place) -> io::Result<()> {
        let place = place.clone();
        self.ask(|request| ToHolder::Release { request, place }).map(drop)
    }

    /// A standby could serve now; it then waits for [`HolderEvent::Go`].
    pub fn prepared(&self) -> io::Result<()> {
        self.say(&ToHolder::Prepared)
    }

    /// The daemon serves. The holder knows it when this returns.
    pub fn ready(&self) -> io::Result<()> {
        self.ask(|request| ToHolder::Ready { request, holder: VERSION }).map(drop)
    }

    /// The daemon cannot serve, and why. If it is the first one, no other is tried.
    pub fn failed(&self, word: &[u8]) -> io::Result<()> {
        self.say(&ToHolder::Failed { word: word.to_vec() })
    }

    /// The daemon ends on purpose. All listeners are released when this returns.
    pub fn ending(&self) -> io::Result<()> {
        self.ask(|request| ToHolder::Ending { request }).map(drop)
    }

    /// Asks for a successor that runs `exe`. What became of it comes as an [`HolderEvent`]. If it was told to
    /// go and is no good, `fallback` is renamed over `exe`.
    pub fn replace(&self, exe: &Path, fallback: Option<&Path>) -> io::Result<()> {
        let (exe, fallback) = (exe.to_path_buf(), fallback.map(Path::to_path_buf));
        self.say_at_once(&ToHolder::Replace { exe, fallback })
    }

    /// Passes connections on to the successor, before [`yielded`](Self::yielded): each came to a place
    /// and is at rest.
    pub fn pass_on(&self, connections: &[(Place, BorrowedFd<'_>)]) -> io::Result<()> {
        let socket = self.0.socket.as_fd();
        send_list(socket, connections, ToHolder::Connections, SendFlags::empty())
    }

    /// The connections that the daemon before this one passed on. All are there when a standby is told
    /// to go.
    pub fn connections(&self) -> Vec<(Place, OwnedFd)> {
        std::mem::take(&mut *lock(&self.0.connections))
    }

    /// Passes connections with unfinished responses on to the successor, before [`yielded`](Self::yielded).
    pub fn pass_on_responses(
        &self,
        connections: &[(Unfinished, BorrowedFd<'_>)],
    ) -> io::Result<()> {
        let socket = self.0.socket.as_fd();
        send_list(socket, connections, ToHolder::Responses, SendFlags::empty())
    }

    /// As [`connections`](Self::connections), with unfinished responses.
    pub fn responses(&self) -> Vec<(Unfinished, OwnedFd)> {
        std::mem::take(&mut *lock(&self.0.responses))
    }

    /// The connections of a daemon that was killed, with the states that it
    /// [recorded](super::StoredConnection::record).
    pub fn interrupted(&self) -> Vec<(Unfinished, OwnedFd)> {
        std::mem::take(&mut *lock(&self.0.interrupted))
    }

    /// Accepts nothing more, state and shims are let go: the successor may go. There is no way back. The
    /// successor was told, or another one is started, when this returns; if it fails, neither is certain.
    pub fn yielded(&self) -> io::Result<()> {
        self.ask(|request| ToHolder::Yielded { request }).map(drop)
    }

    /// Kills whoever this daemon was told to give way to, and waits until it is gone.
    pub fn end_successor(&self) -> io::Result<()> {
        let Some(successor) = lock(&self.0.successor).take() else {
            return Err(io::Error::new(ErrorKind::NotFound, "it is not known"));
        };
        kill(&successor)
    }

    /// Kills the holder and waits until it has exited; [`HolderEvent::HolderGone`] follows. This replaces a holder
    /// that cannot execute another program. Its listeners and its lock stay open in this daemon.
    pub fn kill_holder(&self) -> io::Result<()> {
        self.0.holder.as_ref().map_or(Ok(()), kill)
    }

    /// Whether the holder's process has ended, or ends within [`HOLDER_EXIT`].
    fn holder_has_ended(&self) -> io::Result<bool> {
        self.0.holder.as_ref().map_or(Ok(true), |holder| has_ended(holder, HOLDER_EXIT))
    }

    /// Tells the watchdog that this daemon is well.
    pub fn pulse(&self) -> io::Result<()> {
        self.say_at_once(&ToHolder::Pulse)
    }

    /// The holder is gone: starts another one, `exe args`, with all that this daemon holds. The new one
    /// calls [`take_over`](super::take_over). Also gives its pid. Fails with
    /// [`AddrInUse`](ErrorKind::AddrInUse) if another process has the holder lock.
    pub fn replace_holder(
        exe: &Path,
        args: &[OsString],
        lock: BorrowedFd<'_>,
        held: &[(Place, BorrowedFd<'_>)],
        obey: impl FnMut(HolderEvent) + Send + 'static,
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
                let reaped = move || reap(&mut holder);
                Ok((Self::begin(socket, Some(process), buffer, obey, reaped)?, pid))
            }
            Err(error) => {
                holder.kill()?;
                reap(&mut holder);
                Err(error)
            }
        }
    }

    /// Starts to listen. `after` is called when the holder is gone and that was told.
    fn begin(
        socket: OwnedFd,
        holder: Option<OwnedFd>,
        buffer: Buffer,
        obey: impl FnMut(HolderEvent) + Send + 'static,
        after: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket,
            holder,
            pending: Mutex::default(),
            connections: Mutex::default(),
            responses: Mutex::default(),
            interrupted: Mutex::default(),
            successor: Mutex::default(),
        });
        let link = Self(Arc::clone(&shared));
        let listen = move || {
            link.listen(buffer, obey);
            after();
        };
        thread::Builder::new().name("holder".into()).spawn(listen)?;
        Ok(Self(shared))
    }

    fn say(&self, word: &ToHolder) -> io::Result<()> {
        self.send(word, &[], SendFlags::empty())
    }

    /// Never blocks. Fails if the socket's buffer is full because the holder does not read.
    fn say_at_once(&self, word: &ToHolder) -> io::Result<()> {
        self.send(word, &[], SendFlags::DONTWAIT)
    }

    pub(super) fn send(
        &self,
        word: &ToHolder,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        packet::send(self.0.socket.as_fd(), &word.encode(), descriptors, flags)
    }

    fn ask(&self, request: impl FnOnce(u64) -> ToHolder) -> Answer {
        let (sender, answer) = sync_channel(1);
        let number = self.0.pending().add(sender)?;
        if let Err(error) = self.say(&request(number)) {
            self.0.pending().answers.remove(&number);
            return Err(error);
        }
        answer.recv().unwrap_or_else(|_| Err(holder_gone()))
    }

    /// Returns when the holder closes the socket or sends an invalid message.
    fn listen(&self, mut buffer: Buffer, mut obey: impl FnMut(HolderEvent)) {
        let Self(shared) = self;
        while let Ok(Some(packet)) = buffer.receive(shared.socket.as_fd(), RecvFlags::empty()) {
            match ToDaemon::decode(packet.bytes) {
                Ok(Some(ToDaemon::Go)) => obey(HolderEvent::Go),
                Ok(Some(ToDaemon::GiveWay)) => {
                    *lock(&shared.successor) = packet.descriptors.into_iter().next();
                    obey(HolderEvent::GiveWay);
                }
                Ok(Some(ToDaemon::NotReplaced { why })) => obey(HolderEvent::NotReplaced(why)),
                Ok(Some(ToDaemon::TakenOver { .. })) => obey(HolderEvent::HolderReexecuted(Ok(()))),
                Ok(Some(ToDaemon::ReexecFailed { why })) => {
                    obey(HolderEvent::HolderReexecuted(Err(why)));
                }
                Ok(Some(ToDaemon::Connections(places))) => {
                    let mut all = lock(&shared.connections);
                    all.extend(places.into_iter().zip(packet.descriptors));
                }
                Ok(Some(ToDaemon::Responses(responses))) => {
                    let mut all = lock(&shared.responses);
                    all.extend(responses.into_iter().zip(packet.descriptors));
                }
                Ok(Some(ToDaemon::Interrupted(connections))) => {
                    let mut all = lock(&shared.interrupted);
                    all.extend(connections.into_iter().zip(packet.descriptors));
                }
                Ok(Some(ToDaemon::Done { request, result })) => {
                    let listener = packet.descriptors.into_iter().next();
                    shared.answer(request, result.map(|()| listener).map_err(io::Error::from));
                }
                Ok(None | Some(ToDaemon::Welcome { .. } | ToDaemon::Listeners(_))) => {}
                Err(_) => break,
            }
        }
        let mut pending = shared.pending();
        pending.holder_gone = true;
        pending.answers.clear();
        drop(pending);
        // If that is not known, assume that it is alive: two holders are worse than none.
        let ended = self.holder_has_ended().unwrap_or(false);
        obey(if ended { HolderEvent::HolderGone } else { HolderEvent::Disconnected });
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    fn answer(&self, request: u64, answer: Answer) {
        let asker = self.pending().answers.remove(&request);
        // An asker waits until it is answered, so there is one, and it has room for one answer.
        asker.map(|asker| asker.send(answer));
    }
}

impl Pending {
    fn add(&mut self, asker: SyncSender<Answer>) -> io::Result<u64> {
        if self.holder_gone {
            return Err(holder_gone());
        }
        self.last += 1;
        self.answers.insert(self.last, asker);
        Ok(self.last)
    }
}

/// No code leaves what is locked here half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process that started this one, if it has not ended yet.
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
    if has_ended(process, KILL)? { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
}

/// Whether a process has ended, or does so within this time.
fn has_ended(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
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
