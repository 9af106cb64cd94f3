//! A shim under test, and a daemon to talk to it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use mainstay_hold::launch::{Launch, LogConfig, Report, SHIM_ENV, Stdout};
use mainstay_hold::limits::LINGER;
use mainstay_hold::tree::{self, Process};
use mainstay_hold::wire::{Decoder, Frame as _, FromShim, ToShim};
use mainstay_hold::{record, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

/// The program under test.
pub(crate) const SHIM: &str = env!("CARGO_BIN_EXE_mainstay-shim");

/// No test waits longer than this for one event.
const LIMIT: Duration = Duration::from_secs(30);

/// Every server of a test carries this variable, with the run directory as its value.
const MARK: &str = "HOLD_TEST_RUN";

/// A directory for a run and what to run in it.
pub(crate) struct Bench {
    _temp: TempDir,
    pub(crate) dir: PathBuf,
    pub(crate) launch: Launch,
    /// The cgroup in which the shim starts, if it is another one than that of the test.
    pub(crate) cgroup: Option<PathBuf>,
}

impl Bench {
    /// A shell script as the server.
    pub(crate) fn script(script: &str) -> Self {
        Self::program("/bin/sh", &["-c", script])
    }

    pub(crate) fn program(program: impl Into<PathBuf>, args: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        fs::create_dir(&dir).unwrap();
        let mut bench = Self {
            dir: PathBuf::new(),
            launch: Launch {
                program: program.into(),
                args: args.iter().map(OsString::from).collect(),
                env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
                cwd: temp.path().to_path_buf(),
                stdout: Stdout::Mcp,
                log: LogConfig { path: temp.path().join("log"), max_bytes: 1 << 20, keep: 2 },
                label: "run 7".into(),
                output_ring: 1 << 20,
                linger: LINGER,
            },
            cgroup: None,
            _temp: temp,
        };
        bench.set_dir(dir);
        bench
    }

    pub(crate) fn set_dir(&mut self, dir: PathBuf) {
        self.launch.env.retain(|(name, _)| name != MARK);
        self.launch.env.push((MARK.into(), dir.clone().into()));
        self.dir = dir;
    }

    /// Starts the shim and expects the server to run.
    pub(crate) fn start(self) -> Shim {
        let (child, report) = self.try_start(&self.launch.encode());
        match report {
            Report::Started { server_pid } => Shim { bench: self, child, server_pid },
            Report::Failed { .. } => panic!("{report:?}"),
        }
    }

    pub(crate) fn try_start(&self, launch: &[u8]) -> (Child, Report) {
        self.try_start_by(Command::new(SHIM), launch)
    }

    /// Starts the shim by a command that still lacks the run directory.
    pub(crate) fn try_start_by(&self, mut command: Command, launch: &[u8]) -> (Child, Report) {
        let mut child = command
            .arg(&self.dir)
            .env_clear()
            .envs(SHIM_ENV)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It does nothing before it has read its launch.
        if let Some(cgroup) = &self.cgroup {
            fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        child.stdin.take().unwrap().write_all(launch).unwrap();
        let mut report = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut report).unwrap();
        (child, Report::decode(&report).unwrap())
    }

    /// What is in the server's log, without times. The shim creates the file some time after it has reported the
    /// start.
    pub(crate) fn log(&self) -> String {
        let text = match fs::read_to_string(&self.launch.log.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.unwrap(),
        };
        let line = |line: &str| line.split_once("Z ").map_or(line, |(_, line)| line).to_owned();
        text.split_inclusive('\n').map(line).collect()
    }

    /// The processes of this server that are there, the shim apart.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let value = self.dir.as_os_str().as_encoded_bytes();
        let marked = tree::find_marked(MARK).unwrap().into_iter();
        marked.filter(|(_, mark)| mark.starts_with(value)).map(|(process, _)| process).collect()
    }
}

/// A running shim. It is killed at the end of the test, and its server with it.
pub(crate) struct Shim {
    pub(crate) bench: Bench,
    pub(crate) child: Child,
    pub(crate) server_pid: u32,
}

impl Shim {
    /// The shim's own process; `child` is its guard.
    pub(crate) fn process(&self) -> Process {
        record::shim_alive(&self.bench.dir).unwrap().expect("the shim lives")
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.bench.dir
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.bench.dir)
    }

    /// Connects and sends the daemon's number.
    pub(crate) fn introduce(&self, daemon: u64) -> Client {
        self.greet(daemon).0
    }

    /// Connects and attaches at the first byte that is left.
    pub(crate) fn attach(&self, daemon: u64) -> Client {
        let (mut client, hello) = self.greet(daemon);
        client.send(&ToShim::Attach { from: hello.out_start });
        client
    }

    /// Connects, reads the hello and sends the daemon's number.
    pub(crate) fn greet(&self, daemon: u64) -> (Client, Hello) {
        let mut client = self.connect();
        let hello = client.hello();
        client.send(&ToShim::Daemon { number: daemon });
        (client, hello)
    }

    /// Waits until the shim has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let status = self.exit_status();
        assert!(!self.dir().join(socket::SHIM).exists(), "the socket is left");
        assert!(!self.dir().join(record::PID).is_symlink(), "the pid link is left");
        status
    }

    /// Waits until the shim has ended, whatever became of its directory.
    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        wait_for_exit(self.child.id());
        self.child.wait().unwrap()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        if let Ok(Some(shim)) = record::shim_alive(&self.bench.dir) {
            drop(shim.kill());
        } else {
            drop(self.child.kill());
        }
        drop(self.child.wait());
        for process in self.bench.processes() {
            drop(process.kill());
        }
    }
}

/// The first frame of a connection.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) shim_pid: u32,
    pub(crate) server_pid: u32,
    pub(crate) out_start: u64,
    pub(crate) out_end: u64,
    pub(crate) written: u64,
    pub(crate) exited: bool,
    pub(crate) newest_daemon: u64,
}

/// The other end of a shim's socket.
pub(crate) struct Client {
    stream: UnixStream,
    decoder: Decoder<FromShim>,
    /// The offset after the last output byte that was received.
    pub(crate) offset: Option<u64>,
    /// The last line of which the server has read anything, once that was reported.
    pub(crate) read_through: Option<u64>,
}

impl Client {
    pub(crate) fn connect(dir: &Path) -> Self {
        let stream = socket::connect(dir, socket::SHIM).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { stream, decoder: Decoder::default(), offset: None, read_through: None }
    }

    pub(crate) fn hello(&mut self) -> Hello {
        match self.next() {
            FromShim::Hello {
                version: 1,
                shim_pid,
                server_pid,
                started_unix_ms: 1..,
                out_start,
                out_end,
                written,
                exited,
                newest_daemon,
            } => Hello { shim_pid, server_pid, out_start, out_end, written, exited, newest_daemon },
            other => panic!("no hello: {other:?}"),
        }
    }

    pub(crate) fn send(&mut self, frame: &ToShim) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send_bytes(&bytes);
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).unwrap();
    }

    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn write(&mut self, id: u64, line: &str) {
        self.send(&ToShim::Write { id, line: line.into() });
    }

    /// The next frame, or `None` at the end of the connection.
    pub(crate) fn try_next(&mut self) -> Option<FromShim> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            let mut bytes = vec![0; 64 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub(crate) fn next(&mut self) -> FromShim {
        self.try_next().expect("the connection has ended")
    }

    /// The next frame that is no acknowledgement and no output; output must be without gaps.
    pub(crate) fn next_news(&mut self) -> (Vec<u8>, FromShim) {
        let mut output = Vec::new();
        loop {
            match self.next() {
                FromShim::Output { offset, bytes } => {
                    assert_eq!(offset, self.offset.unwrap_or(offset), "a gap or a repetition");
                    self.offset = Some(offset + bytes.len() as u64);
                    output.extend(bytes);
                }
                FromShim::Written { .. } | FromShim::Closed => {}
                FromShim::Unread { read_through, .. } => self.read_through = Some(read_through),
                news => return (output, news),
            }
        }
    }

    /// Reads output until there are at least this many bytes of it.
    pub(crate) fn output(&mut self, len: usize) -> Vec<u8> {
        let mut output = Vec::new();
        while output.len() < len {
            match self.next() {
                FromShim::Output { offset, bytes } => {
                    assert_eq!(offset, self.offset.unwrap_or(offset), "a gap or a repetition");
                    self.offset = Some(offset + bytes.len() as u64);
                    output.extend(bytes);
                }
                FromShim::Written { .. } => {}
                other => panic!("no output: {other:?}"),
            }
        }
        output
    }

    pub(crate) fn expect_output(&mut self, text: &str) {
        let output = self.output(text.len());
        assert_eq!(String::from_utf8_lossy(&output), text);
    }

    /// Reads acknowledgements up to this line, and the output between them.
    pub(crate) fn written(&mut self, id: u64) -> Vec<u8> {
        let mut output = Vec::new();
        loop {
            match self.next() {
                FromShim::Written { through } if through == id => return output,
                FromShim::Written { through } => assert!(through < id),
                FromShim::Output { bytes, .. } => output.extend(bytes),
                other => panic!("no acknowledgement: {other:?}"),
            }
        }
    }

    /// The news of the end, with all output before it: code, signal, stderr tail.
    pub(crate) fn exited(&mut self) -> (Vec<u8>, Option<i32>, Option<i32>, String) {
        match self.next_news() {
            (
                output,
                FromShim::Exited { code, signal, oom: false, at_unix_ms: 1.., stderr_tail },
            ) => (output, code, signal, String::from_utf8_lossy(&stderr_tail).into_owned()),
            other => panic!("no exit: {other:?}"),
        }
    }

    pub(crate) fn gone(&mut self) {
        let (_, news) = self.next_news();
        assert_eq!(news, FromShim::Gone { survivors: 0 });
    }

    /// Makes sure that the shim has served what was sent to it before.
    pub(crate) fn round_trip(&mut self) {
        self.send(&ToShim::Tail);
        let (_, news) = self.next_news();
        assert!(matches!(news, FromShim::Tail { .. }), "{news:?}");
    }

    /// The reason of a refusal, after which the connection ends.
    pub(crate) fn refused(&mut self) -> String {
        let (_, news) = self.next_news();
        let FromShim::Refused { why } = news else { panic!("not refused: {news:?}") };
        assert_eq!(self.try_next(), None);
        why
    }
}

/// Waits until a process has ended, also if it is not a child.
pub(crate) fn wait_for_exit(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec::try_from(LIMIT).unwrap();
    let ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "{pid:?} does not end");
}

/// Polls a condition.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let step = Duration::from_millis(5);
    for _ in 0..LIMIT.as_millis() / step.as_millis() {
        if condition() {
            return;
        }
        thread::sleep(step);
    }
    panic!("never: {what}");
}
