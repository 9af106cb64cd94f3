//! A holder under test.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mainstay_hold::socket;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{eventually, wait_for_exit};

/// A holder, and a daemon that executes commands.
const PROGRAM: &str = env!("CARGO_BIN_EXE_mainstay-holder");

/// The unix socket of every daemon under test, in the run directory.
const SOCKET: &str = "s";

/// No test waits longer than this for one event.
const LIMIT: Duration = Duration::from_secs(30);

/// The directories of a holder. Everything that was started in them is killed in the end.
pub(super) struct Bench {
    pub(super) dir: PathBuf,
    holders: Vec<Child>,
    _temp: TempDir,
}

impl Bench {
    /// With a daemon `v1` that opens a TCP listener at a free port and a unix one.
    pub(super) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        for name in ["state", "run"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let run = dir.join("run");
        fs::write(
            dir.join("addresses"),
            format!("tcp 127.0.0.1:0\nunix {} {SOCKET}", run.display()),
        )
        .unwrap();
        let bench = Self { dir, holders: Vec::new(), _temp: temp };
        bench.program("v1", "v1", "");
        bench
    }

    /// Writes the program of a daemon.
    pub(super) fn program(&self, name: &str, label: &str, flaw: &str) -> PathBuf {
        let (path, dir) = (self.dir.join(name), self.dir.display());
        let script = format!("#!/bin/sh\nexec '{PROGRAM}' daemon '{dir}' '{label}' '{flaw}'\n");
        let open = fs::File::options().write(true).create_new(true).mode(0o700).open(&path);
        open.unwrap().write_all(script.as_bytes()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        path
    }

    /// Starts a holder whose daemon is `v1`.
    pub(super) fn start(&mut self, how: &str) -> u32 {
        self.start_with(how, &[])
    }

    pub(super) fn start_with(&mut self, how: &str, env: &[(&str, &str)]) -> u32 {
        let holder = Command::new(PROGRAM)
            .args([how.as_ref(), self.dir.as_os_str(), self.dir.join("v1").as_os_str()])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.dir.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let pid = holder.id();
        self.holders.push(holder);
        pid
    }

    /// Starts a holder and waits until its daemon serves.
    pub(super) fn serving() -> (Self, u32) {
        let mut bench = Self::new();
        let pid = bench.start("run");
        bench.logged("first ready");
        (bench, pid)
    }

    /// The exit code of the holder that was started last.
    pub(super) fn exit_code(&mut self) -> Option<i32> {
        let mut holder = self.holders.pop().unwrap();
        wait_for_exit(holder.id());
        holder.wait().unwrap().code()
    }

    pub(super) fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Waits for a line of the log that begins like this.
    pub(super) fn logged(&self, start: &str) -> String {
        self.logged_times(start, 1).remove(0)
    }

    pub(super) fn logged_times(&self, start: &str, times: usize) -> Vec<String> {
        let found = || {
            let log = self.log().into_iter();
            log.filter(|line| line.starts_with(start)).collect::<Vec<_>>()
        };
        eventually(&format!("{times} x {start:?} in {:?}", self.log()), || found().len() >= times);
        found()
    }

    /// Sends the daemon a command and reads its answer.
    pub(super) fn tell(&self, command: &str) -> String {
        self.try_tell(command).unwrap()
    }

    pub(super) fn try_tell(&self, command: &str) -> io::Result<String> {
        let stream = socket::connect(&self.dir.join("run"), SOCKET)?;
        stream.set_read_timeout(Some(LIMIT))?;
        talk(&stream, command)
    }

    /// Label, pid of the daemon, pid of its holder.
    pub(super) fn who(&self) -> (String, u32, u32) {
        let answer = self.tell("who");
        let words: Vec<_> = answer.split(' ').collect();
        (words[0].into(), words[1].parse().unwrap(), words[2].parse().unwrap())
    }

    /// Where the TCP listener is.
    pub(super) fn address(&self) -> SocketAddr {
        self.tell("bind tcp 127.0.0.1:0").parse().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Lets a daemon end that was stopped by a signal.
    pub(super) fn let_go(&self) {
        fs::write(self.dir.join("go"), "").unwrap();
    }
}

impl Drop for Bench {
    /// Kills everything until nothing is left: holders and daemons start each other.
    fn drop(&mut self) {
        for _ in 0..200 {
            let left: Vec<u32> = pids().filter(|pid| runs_here(*pid, &self.dir)).collect();
            if left.is_empty() {
                break;
            }
            for pid in left {
                kill(pid, Signal::KILL);
            }
            for holder in &mut self.holders {
                drop(holder.try_wait());
            }
            thread::sleep(Duration::from_millis(10));
        }
        for holder in &mut self.holders {
            drop(holder.kill());
            drop(holder.wait());
        }
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok())
}

fn runs_here(pid: u32, dir: &Path) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let dir = dir.as_os_str().as_encoded_bytes();
    command.split(|byte| *byte == 0).any(|arg| arg == dir)
}

pub(super) fn kill(pid: u32, signal: Signal) {
    let _has_ended = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

/// Kills a process and waits until it is gone.
pub(super) fn kill_and_wait(pid: u32) {
    kill(pid, Signal::KILL);
    wait_for_exit(pid);
}

fn talk<S>(stream: S, command: &str) -> io::Result<String>
where
    S: io::Read + Write + Copy,
{
    let mut writer = stream;
    writer.write_all(format!("{command}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match answer.strip_suffix('\n') {
        Some(answer) => Ok(answer.to_owned()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Somebody who connects again and again and never finds the door closed.
pub(super) struct Caller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Calls>,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) answered: usize,
    /// Cut off in the middle: its daemon died.
    pub(super) cut: usize,
    pub(super) refused: Vec<ErrorKind>,
}

impl Caller {
    pub(super) fn begin(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut calls = Calls::default();
            while !stopped.load(Ordering::Relaxed) {
                match TcpStream::connect(address) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(LIMIT)).unwrap();
                        match talk(&stream, "who") {
                            Ok(_) => calls.answered += 1,
                            Err(_) => calls.cut += 1,
                        }
                    }
                    Err(error) => calls.refused.push(error.kind()),
                }
            }
            calls
        });
        Self { stop, thread }
    }

    pub(super) fn end(self) -> Calls {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
