//! A holder without the rest of Mainstay, and a daemon that executes commands, for tests.
//!
//! `run DIR EXE`, `foreground DIR EXE`, `wait DIR EXE` and `take-over DIR EXE` are holders with their
//! directories in `DIR`. `daemon DIR LABEL [FLAW...]` is a daemon: it opens the listeners that `DIR/addresses`
//! names, writes what happens to `DIR/log`, and answers each connection to one of its listeners, which is a
//! command on one line. A flaw is what it does wrong. `send HEX` sends a packet into its standard input, as a
//! process with a leaked socket could.
//!
//! A holder executes `DIR/new-holder` after a reload if there is such a file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use mainstay_hold::holder::{
    self, Config, ConnectionStore, HoldError, HolderChannel, HolderEvent, IDLE, InheritedState,
    ListenAddr, StoredConnection, Unfinished,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, SocketFlags};
use rustix::process::{Pid, Signal, getpid, kill_process};

fn main() -> ExitCode {
    if mainstay_hold::descriptors::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let code = match words.as_slice() {
        [how @ ("run" | "foreground"), dir, exe] => {
            let config = Config { foreground: *how == "foreground", ..config(dir, exe) };
            held(dir, holder::run(config, || ready(dir)))
        }
        ["wait", dir, exe] => held(dir, holder::run_when_free(config(dir, exe), || ready(dir))),
        ["take-over", dir, exe] => held(dir, holder::take_over(config(dir, exe))),
        ["send", hex] => u8::from(send(hex).is_err()),
        ["daemon", dir, label, flaws @ ..] => {
            Daemon::serve(Path::new(dir), label, flaws).unwrap_or(1)
        }
        _ => 2,
    };
    ExitCode::from(code)
}

fn config(dir: &str, exe: &str) -> Config {
    let dir = Path::new(dir);
    Config {
        exe: exe.into(),
        args: Vec::new(),
        state_dir: dir.join("state"),
        run_dir: dir.join("run"),
        foreground: false,
        reexec,
    }
}

fn reexec(config: &Config, exe: &Path, _daemon: Pid) -> io::Result<Command> {
    let dir = config.state_dir.parent().ok_or(io::ErrorKind::NotFound)?;
    let new = dir.join("new-holder");
    let program = if new.exists() { new } else { "/proc/self/exe".into() };
    let mut command = Command::new(program);
    command.arg("take-over").arg(dir).arg(exe);
    Ok(command)
}

fn send(hex: &str) -> io::Result<()> {
    rustix::net::send(rustix::stdio::stdin(), &hex_bytes(hex)?, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn hex_bytes(hex: &str) -> io::Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(io::Error::other);
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn ready(dir: &str) {
    drop(note(Path::new(dir), "first ready"));
}

/// The exit code is how it ended.
fn held(dir: &str, result: Result<(), HoldError>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(HoldError::Taken { .. }) => 10,
        Err(HoldError::NotStarted { error }) => {
            let text = format!("first failed: {}", String::from_utf8_lossy(&error));
            drop(note(Path::new(dir), &text));
            11
        }
        Err(HoldError::Lock(_) | HoldError::Io { .. }) => 13,
    }
}

/// Adds a line to the log, in one write.
fn note(dir: &Path, text: &str) -> io::Result<()> {
    let mut log = OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    log.write_all(format!("{}\n", text.replace('\n', " | ")).as_bytes())
}

struct Daemon<'a> {
    dir: &'a Path,
    label: &'a str,
    flaws: &'a [&'a str],
    channel: HolderChannel,
    /// A copy of the socket to the first holder.
    socket: OwnedFd,
    lock: OwnedFd,
    listeners: Vec<(ListenAddr, OwnedFd)>,
    holder_pid: u32,
    orders: Receiver<HolderEvent>,
    /// Readable when there are orders.
    bell: UnixStream,
    /// For the channel to the next holder.
    ring: (Sender<HolderEvent>, UnixStream),
    store: Option<ConnectionStore>,
    stored: Vec<(File, StoredConnection)>,
    /// With the states of responses; empty for connections at rest.
    passed_on: Vec<(File, Vec<u8>)>,
}

impl<'a> Daemon<'a> {
    fn serve(dir: &'a Path, label: &'a str, flaws: &'a [&'a str]) -> io::Result<u8> {
        let (sender, orders) = mpsc::channel();
        let (bell, ringer) = UnixStream::pair()?;
        let ring = (sender, ringer);
        let socket = holder::take_stdin()?;
        let copy = socket.try_clone()?;
        let (channel, welcome) = HolderChannel::connect(socket, obey(&ring)?)?;
        let pid = std::process::id();
        note(dir, &format!("{label} up {pid} standby={}", welcome.start.standby))?;
        for (what, text) in [
            ("replacement_failed", welcome.start.replacement_failed),
            ("words", welcome.start.last_output),
        ] {
            if let Some(text) = text {
                note(dir, &format!("{label} {what}: {text}"))?;
            }
        }
        let mut daemon = Self {
            dir,
            label,
            flaws,
            channel,
            socket: copy,
            lock: welcome.lock,
            listeners: welcome.listeners,
            holder_pid: welcome.holder_pid,
            orders,
            bell,
            ring,
            store: None,
            stored: Vec::new(),
            passed_on: Vec::new(),
        };
        if welcome.start.standby && !daemon.stand_by()? {
            return Ok(0);
        }
        daemon.begin()?;
        loop {
            if let Some(code) = daemon.turn()? {
                return Ok(code);
            }
        }
    }

    fn has(&self, flaw: &str) -> bool {
        self.flaws.contains(&flaw)
    }

    fn note(&self, text: &str) -> io::Result<()> {
        note(self.dir, &format!("{} {text}", self.label))
    }

    /// Whether it may go.
    fn stand_by(&mut self) -> io::Result<bool> {
        if self.has("dies in standby") {
            return Err(self.last_output("no standby"));
        }
        if self.has("never prepared") {
            thread::sleep(Duration::MAX);
        }
        self.channel.prepared()?;
        Ok(self.next_order()? == HolderEvent::Serve)
    }

    fn begin(&mut self) -> io::Result<()> {
        if self.has("fails") {
            self.channel.failed(b"no good")?;
            thread::sleep(Duration::MAX);
        }
        if self.has("dies") {
            return Err(self.last_output("I die"));
        }
        let listen_addrs = fs::read_to_string(self.dir.join("addresses")).unwrap_or_default();
        for line in listen_addrs.lines() {
            self.bind(line)?;
        }
        if self.has("never ready") {
            thread::sleep(Duration::MAX);
        }
        let mut idle = Vec::new();
        for connection in self.channel.inherited() {
            if let InheritedState::Interrupted(state) = connection.state {
                let reply = format!("interrupted at {state:?}\n");
                File::from(connection.socket).write_all(reply.as_bytes())?;
            } else if connection.state == InheritedState::Idle {
                idle.push((connection.listen_addr, connection.socket));
            }
        }
        let store = self.store.insert(ConnectionStore::new(self.channel.clone())?);
        if self.flaws.contains(&"dies late") {
            for (listen_addr, connection) in idle {
                let stored = store.add_and_wait(&listen_addr, connection.as_fd());
                stored.ok_or(io::ErrorKind::StorageFull)?.record(IDLE, 0, b"");
            }
            return Err(self.last_output("I die late"));
        }
        self.channel.ready()?;
        self.store.iter().for_each(ConnectionStore::ready);
        self.note(&format!("ready {}", std::process::id()))
    }

    fn bind(&mut self, spec: &str) -> io::Result<String> {
        let listen_addr = parse(spec);
        let listener = self.channel.bind(&listen_addr)?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        let shown = match listen_addr {
            ListenAddr::Tcp(_) => {
                TcpListener::from(listener.try_clone()?).local_addr()?.to_string()
            }
            ListenAddr::Unix { .. } => "unix".into(),
        };
        self.listeners.retain(|(held, _)| *held != listen_addr);
        self.listeners.push((listen_addr, listener));
        Ok(shown)
    }

    /// Waits for an order or a connection. Answers with an exit code to end with.
    fn turn(&mut self) -> io::Result<Option<u8>> {
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let listeners = self.listeners.iter();
        let listeners = listeners.map(|(_, listener)| PollFd::new(listener, PollFlags::IN));
        let mut fds: Vec<_> = [bell].into_iter().chain(listeners).collect();
        poll(&mut fds, None)?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            let order = self.next_order()?;
            return self.obey(order);
        }
        let first = ready[1..].iter().position(|ready| *ready);
        let Some((_, listener)) = first.and_then(|index| self.listeners.get(index)) else {
            return Ok(None);
        };
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(connection) => Ok(self.answer(&connection.into()).unwrap_or(None)),
            Err(_) => Ok(None),
        }
    }

    fn next_order(&self) -> io::Result<HolderEvent> {
        rustix::io::read(&self.bell, &mut [0; 1])?;
        self.orders.recv().map_err(io::Error::other)
    }

    fn obey(&mut self, order: HolderEvent) -> io::Result<Option<u8>> {
        match order {
            HolderEvent::HandOver if self.has("deaf") => Ok(None),
            HolderEvent::HandOver => {
                if self.has("fells its holder") {
                    self.fell_holder()?;
                }
                let listen_addr = || ListenAddr::Tcp(([127, 0, 0, 1], 0).into());
                for (connection, state) in &self.passed_on {
                    let connection = connection.as_fd();
                    if state.is_empty() {
                        self.channel.pass_connections(&[(listen_addr(), connection)])?;
                    } else {
                        let response =
                            Unfinished { listen_addr: listen_addr(), state: state.clone() };
                        self.channel.pass_responses(&[(response, connection)])?;
                    }
                }
                if self.channel.handed_over().is_ok() {
                    self.note("yielded")?;
                } else {
                    self.channel.kill_successor()?;
                    self.replace_holder()?;
                }
                Ok(Some(0))
            }
            HolderEvent::NotReplaced(why) => {
                self.note(&format!("not replaced: {why}"))?;
                Ok(None)
            }
            HolderEvent::HolderGone => {
                self.replace_holder()?;
                Ok(None)
            }
            HolderEvent::Disconnected => {
                self.note("disconnected")?;
                Ok(Some(0))
            }
            HolderEvent::HolderReexecuted(done) => {
                self.note(&format!("holder re-executed: {done:?}"))?;
                Ok(None)
            }
            HolderEvent::Serve => Ok(None),
        }
    }

    /// Kills the holder, and returns when the channel is broken.
    fn fell_holder(&self) -> io::Result<()> {
        let holder = Pid::from_raw(self.holder_pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        kill_process(holder, Signal::KILL)?;
        while self.next_order()? != HolderEvent::HolderGone {}
        Ok(())
    }

    fn replace_holder(&mut self) -> io::Result<()> {
        let holder = PathBuf::from("/proc/self/exe").canonicalize()?;
        let exe = self.dir.join(self.label);
        let args: [OsString; 3] = ["take-over".into(), self.dir.into(), exe.into()];
        let held: Vec<(ListenAddr, BorrowedFd<'_>)> = self
            .listeners
            .iter()
            .map(|(listen_addr, listener)| (listen_addr.clone(), listener.as_fd()))
            .collect();
        let lock = self.lock.as_fd();
        (self.channel, self.holder_pid) =
            HolderChannel::replace_holder(&holder, &args, lock, &held, obey(&self.ring)?)?;
        self.note(&format!("holder {}", self.holder_pid))
    }

    fn answer(&mut self, mut connection: &File) -> io::Result<Option<u8>> {
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        let (command, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        let (reply, code) = match command {
            "who" => {
                let pid = std::process::id();
                (format!("{} {pid} {}", self.label, self.holder_pid), None)
            }
            "bind" => match self.bind(rest) {
                Ok(shown) => (shown, None),
                Err(error) => (format!("{:?}", error.kind()), None),
            },
            "release" => {
                let listen_addr = parse(rest);
                self.listeners.retain(|(held, _)| *held != listen_addr);
                self.channel.release(&listen_addr)?;
                ("released".into(), None)
            }
            "replace" => {
                let mut paths = rest.split(' ').map(Path::new);
                let exe = paths.next().unwrap_or(Path::new(""));
                self.channel.replace(exe, paths.next())?;
                ("asked".into(), None)
            }
            "pulse" => {
                self.channel.pulse()?;
                ("pulsed".into(), None)
            }
            "hang-up" => {
                rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both)?;
                thread::sleep(Duration::MAX);
                return Ok(None);
            }
            "shut-down" => {
                // As "hang-up", but the daemon continues.
                rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both)?;
                ("done".into(), None)
            }
            "second-holder" => match self.replace_holder() {
                Ok(()) => ("started".into(), None),
                Err(error) => (format!("{:?}", error.kind()), None),
            },
            "send" => {
                rustix::net::send(&self.socket, &hex_bytes(rest)?, SendFlags::NOSIGNAL)?;
                ("sent".into(), None)
            }
            "leak" => {
                let status = Command::new("/proc/self/exe")
                    .args(["send", rest])
                    .stdin(self.socket.try_clone()?)
                    .status()?;
                (if status.success() { "sent" } else { "not sent" }.into(), None)
            }
            "store" => {
                let stored = self.store.as_ref().and_then(|store| {
                    store.add(&ListenAddr::Tcp(([127, 0, 0, 1], 0).into()), connection.as_fd())
                });
                let stored = stored.ok_or(io::ErrorKind::StorageFull)?;
                let state = hex_bytes(rest)?;
                stored.record(state[0], 0, &state[1..]);
                self.stored.push((connection.try_clone()?, stored));
                ("stored".into(), None)
            }
            "pass-on" => {
                self.passed_on.push((connection.try_clone()?, hex_bytes(rest)?));
                ("stored".into(), None)
            }
            "read-and-die" => {
                let (_, stored) = self.stored.last().ok_or(io::ErrorKind::NotFound)?;
                let bytes = hex_bytes(rest)?;
                // Keeps the first byte of the data that was stored before.
                stored.read(2, 1, 100, &mut |memory| {
                    memory[..bytes.len()].copy_from_slice(&bytes);
                    let _ = kill_process(getpid(), Signal::KILL);
                    thread::sleep(Duration::MAX);
                    0
                });
                return Ok(None);
            }
            "forget" => {
                self.stored.clear();
                ("forgotten".into(), None)
            }
            "die" => return Ok(Some(self.die())),
            "stop" => {
                self.channel.ending()?;
                self.note("ending")?;
                // The listeners are kept open here: that they are closed is the holder's doing.
                wait_for(&self.dir.join("go"));
                ("stopped".into(), Some(0))
            }
            _ => (format!("unknown: {command}"), None),
        };
        connection.write_all(format!("{reply}\n").as_bytes())?;
        Ok(code)
    }

    fn die(&self) -> u8 {
        drop(self.last_output("I was told to"));
        7
    }

    fn last_output(&self, words: &str) -> io::Error {
        let text = format!("{} says: {words}\n", self.label);
        drop(io::stderr().write_all(text.as_bytes()));
        io::Error::other(words.to_owned())
    }
}

fn obey(
    (sender, ringer): &(Sender<HolderEvent>, UnixStream),
) -> io::Result<impl FnMut(HolderEvent) + use<>> {
    let (sender, mut ringer) = (sender.clone(), ringer.try_clone()?);
    Ok(move |order| {
        drop(sender.send(order));
        drop(ringer.write_all(&[1]));
    })
}

fn parse(spec: &str) -> ListenAddr {
    match spec.split(' ').collect::<Vec<_>>()[..] {
        ["tcp", address] => {
            ListenAddr::Tcp(address.parse::<SocketAddr>().expect("the test writes addresses"))
        }
        ["unix", dir, name] => ListenAddr::Unix { dir: dir.into(), name: name.into() },
        _ => unreachable!("the test writes addresses"),
    }
}

/// Waits for a file, for a minute at most.
fn wait_for(path: &Path) {
    for _ in 0..6000 {
        if path.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
