//! The event loop: waits for what happens first, handles it, and sends what is new to every connection.
//!
//! Each turn reads at most once from every source, so none of them starves the others. Time limits come
//! from [`Life`] and from the linger; without one the loop sleeps until something happens.

mod requests;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use rustix::process::Signal;

use super::conn::{Conn, View};
use super::directory_checks::DirectoryChecks;
use super::life::{Action, Life};
use super::oom::OomWatch;
use super::reaper::{Ended, Reaped, Reaper};
use super::scan_schedule::ScanSchedule;
use super::server::{Pipe, Scratch, Server, scratch};
use super::stdin::Load;
use super::{Claim, own_pid};
use crate::clock;
use crate::launch::Launch;
use crate::poll::Sources;
use crate::record::{self, ExitRecord};
use crate::tree::{self, Process};
use crate::wire::{FromShim, VERSION};

const MAX_CONNS: usize = 16;

/// How long no connection is accepted after that failed, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Run {
    claim: Claim,
    listener: UnixListener,
    accept_again: Option<Instant>,
    conns: Vec<Conn>,
    /// While no daemon is connected.
    directory_checks: Option<DirectoryChecks>,
    /// The highest number that a daemon ever had.
    fence: u64,
    server: Server,
    reaper: Option<Reaper>,
    life: Life,
    scans: ScanSchedule,
    /// Whether the server was active since the last scan was scheduled.
    server_active: bool,
    /// The processes that are recorded on disk.
    recorded: Vec<Process>,
    oom: OomWatch,
    exit: Option<ExitRecord>,
    /// Whether a daemon had asked for the end before the server exited.
    stopped: bool,
    gone: bool,
    alone_since: Option<Instant>,
    dismissed_at: Option<Instant>,
    label: String,
    linger: Duration,
    started_unix_ms: u64,
    scratch: Box<Scratch>,
}

/// What can become ready.
#[derive(Debug, Clone, Copy)]
enum Source {
    Listener,
    Reaper,
    Stdin,
    Server(Pipe),
    Conn(usize),
}

impl Run {
    pub(super) fn new(
        claim: Claim,
        listener: UnixListener,
        server: Server,
        reaper: Reaper,
        oom: OomWatch,
        launch: &Launch,
        started_unix_ms: u64,
    ) -> Self {
        Self {
            claim,
            listener,
            accept_again: None,
            conns: Vec::new(),
            directory_checks: None,
            fence: 0,
            server,
            reaper: Some(reaper),
            life: Life::new(),
            scans: ScanSchedule::new(clock::now()),
            server_active: false,
            recorded: Vec::new(),
            oom,
            exit: None,
            stopped: false,
            gone: false,
            alone_since: None,
            dismissed_at: None,
            label: launch.label.clone(),
            linger: launch.linger,
            started_unix_ms,
            scratch: scratch(),
        }
    }

    pub(super) fn server_pid(&self) -> u32 {
        self.server.pid
    }

    pub(super) fn finish(mut self) {
        self.log_start();
        self.record_processes(clock::now());
        while !self.over(clock::now()) {
            let Ok(ready) = self.wait(clock::now()) else { return };
            self.oom.look(clock::now());
            for (source, flags) in ready {
                self.serve(source, flags);
            }
            let now = clock::now();
            let action = self.life.tick(now);
            self.act(action);
            self.server.stdin.flush();
            self.pump();
            self.stay_reachable(now);
            self.record_processes(now);
        }
    }

    /// Whether the shim may end: no daemon connected during the linger, or one dismissed it. A dismissal outlives its
    /// connection but not its daemon, and takes effect when the data connection has received everything, or after the
    /// linger.
    fn over(&mut self, now: Instant) -> bool {
        if !self.gone {
            return false;
        }
        if self.conns.iter().any(Conn::dismisses) {
            self.dismissed_at.get_or_insert(now);
        }
        let alone = self.conns.is_empty();
        self.alone_since = alone.then(|| self.alone_since.unwrap_or(now));
        match (self.dismissed_at, self.alone_since) {
            (Some(_), _) if !self.conns.iter().any(Conn::has_unsent) => true,
            (Some(since), _) | (None, Some(since)) => now.duration_since(since) >= self.linger,
            (None, None) => false,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let lingering = self.dismissed_at.or(self.alone_since);
        let linger = lingering.and_then(|since| since.checked_add(self.linger));
        let scan = self.scans.deadline();
        let check = self.directory_checks.as_ref().map(DirectoryChecks::deadline);
        [self.life.deadline(), linger, self.accept_again, scan, check].into_iter().flatten().min()
    }

    fn wait(&mut self, now: Instant) -> io::Result<Vec<(Source, PollFlags)>> {
        self.accept_again = self.accept_again.filter(|again| *again > now);
        let timeout = self.deadline().map(|at| at.saturating_duration_since(now));
        // A source whose bytes cannot be stored is left out.
        let mut all = Sources::new();
        if self.accept_again.is_none() {
            all.add(Source::Listener, self.listener.as_fd(), PollFlags::IN);
        }
        if let Some(reaper) = &self.reaper {
            all.add(Source::Reaper, reaper.pipe().as_fd(), PollFlags::IN);
        }
        if let Some((pipe, waiting)) = self.server.stdin.pipe() {
            let flags = if waiting { PollFlags::OUT } else { PollFlags::empty() };
            all.add(Source::Stdin, pipe, flags);
        }
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            if let Some(fd) = self.server.readable(pipe) {
                all.add(Source::Server(pipe), fd.as_fd(), PollFlags::IN);
            }
        }
        for (index, conn) in self.conns.iter().enumerate() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.may_read(conn));
            flags.set(PollFlags::OUT, conn.blocked());
            all.add(Source::Conn(index), conn.socket(), flags);
        }
        all.wait(timeout)
    }

    /// A server that does not read makes its daemon wait, unless the server itself waits for the
    /// daemon to consume: that frame may be behind the lines that cannot be written.
    fn may_read(&self, conn: &Conn) -> bool {
        match (&conn.attached, self.server.stdin.load()) {
            (None, _) | (_, Load::Light) => true,
            (Some(_), Load::Heavy) => self.server.output.room() == 0,
            (Some(_), Load::Full) => false,
        }
    }

    fn serve(&mut self, source: Source, flags: PollFlags) {
        let broken = flags.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        match source {
            Source::Listener => self.accept(),
            Source::Reaper => self.reaped(),
            Source::Stdin if broken => self.server.stdin.close(),
            Source::Server(pipe) => {
                self.server.read(pipe, &mut self.scratch);
                self.server_active = true;
            }
            Source::Conn(index) if self.may_read(&self.conns[index]) => {
                if flags.contains(PollFlags::IN) || broken {
                    self.conns[index].read(&mut self.scratch);
                    self.decode(index);
                }
            }
            Source::Conn(index) if broken => self.conns[index].close(),
            // What waits for room to write is flushed at the end of each turn anyway.
            Source::Stdin | Source::Conn(_) => {}
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.listener, flags) {
            Ok(socket) => {
                let ours = socket_peercred(&socket)
                    .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
                if !ours {
                    return;
                }
                let mut conn = Conn::new(socket, &self.hello(), self.server.stdin.written());
                if self.conns.len() < MAX_CONNS {
                    self.conns.push(conn);
                } else {
                    conn.refuse("there are too many connections");
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => self.accept_again = clock::now().checked_add(ACCEPT_PAUSE),
        }
    }

    fn hello(&self) -> FromShim {
        FromShim::Hello {
            version: VERSION,
            shim_pid: own_pid(),
            server_pid: self.server.pid,
            started_unix_ms: self.started_unix_ms,
            out_start: self.server.output.start(),
            out_end: self.server.output.end(),
            written: self.server.stdin.accepted(),
            exited: self.exit.is_some(),
            newest_daemon: self.fence,
        }
    }

    /// A server with a grace gets what its pipe takes now and then the end of input. It gets no more
    /// than that, because it may be stuck.
    fn end(&mut self, now: Instant, grace: Duration) {
        self.stopped |= self.exit.is_none();
        let action = self.life.end(now, grace);
        if action == Some(Action::Term) {
            self.server.stdin.flush();
            self.server.stdin.close();
        }
        self.act(action);
    }

    fn reaped(&mut self) {
        while let Some(reaped) = self.reaper.as_ref().and_then(Reaper::next) {
            let action = match reaped {
                Reaped::Exited(ended) => {
                    self.note_exit(ended);
                    self.life.exited(clock::now())
                }
                Reaped::Childless => {
                    self.reaper = None;
                    self.life.childless()
                }
            };
            self.act(action);
        }
    }

    fn note_exit(&mut self, Ended { code, signal }: Ended) {
        self.server.stdin.close();
        self.server.drain(&mut self.scratch);
        let killed = signal == Some(Signal::KILL.as_raw()) && !self.life.killing();
        self.exit.get_or_insert(ExitRecord {
            code,
            signal,
            oom: killed && self.oom.killed_recently(clock::now()),
            at_unix_ms: clock::unix_ms(),
            stderr_tail: self.server.tail.to_vec(),
            survivors: 0,
        });
    }

    fn act(&mut self, action: Option<Action>) {
        if action == Some(Action::Kill) {
            self.claim.kill_cgroup();
        }
        // A tree that cannot be listed now is listed again in the next round, or given up.
        let _again = match action {
            // What is stopped gets the first signal only when it continues.
            Some(Action::Term) => tree::kill_all(own_pid(), Signal::TERM)
                .and_then(|()| tree::kill_all(own_pid(), Signal::CONT)),
            Some(Action::Kill) => tree::kill_all(own_pid(), Signal::KILL),
            Some(Action::Finish) => return self.report_end(),
            None => return,
        };
    }

    /// Scans the tree if a scan is due, and records its processes if they have changed. A process that the
    /// scan missed stays recorded while it is alive. A failed write is repeated after the next scan.
    fn record_processes(&mut self, now: Instant) {
        if std::mem::take(&mut self.server_active) && !self.gone {
            self.scans.note_activity(now);
        }
        if !self.scans.is_due(now) {
            return;
        }
        let began = clock::now();
        if let Ok(mut found) = tree::living_descendants(own_pid()) {
            let missed = self.recorded.iter().filter(|known| !found.contains(known));
            let missed: Vec<Process> = missed.filter(|known| known.is_alive()).copied().collect();
            found.extend(missed);
            found.sort_unstable_by_key(|process| process.pid);
            let due = found != self.recorded || self.claim.is_unrecorded;
            if due && self.claim.write_records(&found).is_ok() {
                self.recorded = found;
            }
        }
        self.scans.scanned(began, clock::now());
    }

    /// The run is over: reads the last output of the descendants and writes the record.
    fn report_end(&mut self) {
        self.claim.end_cgroup();
        let left = if self.reaper.is_some() {
            tree::living_descendants(own_pid())
        } else {
            Ok(Vec::new())
        };
        let survivors = left.map_or(0, |pids| u32::try_from(pids.len()).unwrap_or(u32::MAX));
        self.note_exit(Ended { code: None, signal: None });
        self.server.close();
        let Some(exit) = &mut self.exit else { unreachable!("it was recorded above") };
        exit.survivors = survivors;
        exit.stderr_tail = self.server.tail.to_vec();
        let line = format!("--- {} {} ---", self.label, how(exit, self.stopped));
        self.server.log.write_lines(line.as_bytes());
        // On a full disk, daemons that are connected still learn of the end.
        let _no_space = record::write(self.claim.dir.as_fd(), exit);
        self.gone = true;
        self.scans.stop();
    }

    /// Recreates a removed run directory while no daemon is connected: the next daemon would start another run beside
    /// this one. If that is impossible, the run ends.
    fn stay_reachable(&mut self, now: Instant) {
        if self.gone || !self.conns.is_empty() {
            self.directory_checks = None;
            return;
        }
        let checks = self.directory_checks.get_or_insert_with(|| DirectoryChecks::new(now));
        if !checks.is_due(now) {
            return;
        }
        let reachable = self.restore_directory();
        if self.directory_checks.as_mut().is_some_and(|checks| checks.checked(now, reachable)) {
            self.end(now, Duration::ZERO);
            // No daemon can fetch the rest.
            self.dismissed_at = Some(now);
        }
    }

    /// Recreates the run directory if it was removed. Returns whether daemons can find this run.
    fn restore_directory(&mut self) -> bool {
        match self.claim.restore() {
            Ok(Some(listener)) => {
                self.listener = listener;
                // On a full disk they are written after a later scan.
                let _later = self.claim.write_records(&self.recorded);
                self.scans.note_activity(clock::now());
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    fn log_start(&mut self) {
        let at = clock::rfc3339(self.started_unix_ms);
        let line = format!("--- {} started, pid {}, {at} ---", self.label, self.server.pid);
        self.server.log.write_lines(line.as_bytes());
    }

    fn pump(&mut self) {
        let view = View {
            output: &self.server.output,
            closed: self.server.output_closed(),
            stdin: &self.server.stdin,
            tail: &self.server.tail,
            exit: self.exit.as_ref(),
            gone: self.gone,
        };
        for conn in &mut self.conns {
            conn.pump(&view);
        }
        self.conns.retain(|conn| !conn.closed());
    }
}

fn how(exit: &ExitRecord, stopped: bool) -> String {
    const SIGTERM: i32 = Signal::TERM.as_raw();
    let oom = if exit.oom { " (OOM)" } else { "" };
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exited {code}{oom}"),
        (None, Some(SIGTERM)) if stopped => "stopped by Mainstay".to_owned(),
        (None, Some(signal)) => format!("killed by signal {signal}{oom}"),
        (None, None) => "ended, exit status unknown".into(),
    }
}
