//! A proxy in front of an engine's socket that injects faults.
//!
//! Each connection carries one request, so that what a connection is for is known from its beginning.
//! A fault holds for connections that are open as well as for new ones, from the moment at which
//! [`FaultProxy::set`] returns.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tempfile::TempDir;

use super::request::{self, Kind};
use super::{Engine, host};

/// The request that creates a container.
const CREATE: &str = "POST /containers/create";

/// No test waits longer for a request.
const LIMIT: Duration = Duration::from_secs(30);

const ERROR: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n\
    Content-Length: 26\r\nConnection: close\r\n\r\n{\"message\":\"out of order\"}";

/// What can be wrong with an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is gone: connections break, and new ones are refused.
    Refuse,
    /// Every request waits for so long.
    Delay(Duration),
    /// It takes connections, and nothing comes of them.
    Stall,
    /// It sends no events; the stream stays open.
    MuteEvents,
    /// It does not report the end of an attachment; the stream stays open.
    KeepAttach,
    /// It answers every inspection of a container with an error.
    FailInspect,
    /// An attachment breaks after so many bytes from the container, be it in the middle of a frame.
    CutAttach(usize),
    /// Holds the responses to all creations after the first N.
    HoldCreate(usize),
    /// It creates containers, but answers every creation with an error.
    FailCreate,
    /// It answers so many starts of containers with an error, and starts none of them.
    RefuseStarts {
        /// How many.
        times: usize,
        /// The status of the answers.
        status: u16,
        /// What they say.
        message: &'static str,
    },
}

/// The proxy. It ends with all its connections when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    /// Where the socket is.
    _dir: TempDir,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    engine: PathBuf,
    faults: Vec<Fault>,
    listening: bool,
    over: bool,
    /// Every request so far.
    requests: Vec<String>,
    /// All that was kept back for [`Fault::MuteEvents`].
    muted: Vec<u8>,
    /// All that was kept from the engine for [`Fault::Stall`].
    stalled: Vec<u8>,
    /// Both sides of every connection, also of those that have ended.
    connections: Vec<(Kind, [UnixStream; 2])>,
}

impl FaultProxy {
    /// A proxy in front of this engine, without a fault.
    pub fn new(engine: &Engine) -> Self {
        let dir = tempfile::Builder::new().prefix("mst-").tempdir().unwrap();
        let state = State {
            engine: engine.socket(),
            faults: Vec::new(),
            listening: false,
            over: false,
            requests: Vec::new(),
            muted: Vec::new(),
            stalled: Vec::new(),
            connections: Vec::new(),
        };
        let socket = dir.path().join("proxy.sock");
        let shared = Arc::new(Shared { socket, state: Mutex::new(state), changed: Condvar::new() });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.serve()
        });
        let proxy = Self { _dir: dir, shared, thread: Some(thread) };
        proxy.set(&[]);
        proxy
    }

    /// Where it is reached.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Where it is reached, as `DOCKER_HOST` says it.
    pub fn host(&self) -> String {
        host(self.socket())
    }

    /// These faults from now on, and no others.
    pub fn set(&self, faults: &[Fault]) {
        let refuse = faults.contains(&Fault::Refuse);
        let mut state = self.shared.state();
        state.faults = faults.to_vec();
        self.shared.changed.notify_all();
        if refuse {
            state.cut(|_| true);
            drop(state);
            // Whoever waits for a connection notices with the next one.
            let _refused = UnixStream::connect(self.socket());
        } else {
            drop(state);
        }
        self.shared.wait("the socket is as it should be", |state| state.listening != refuse);
    }

    /// Puts another engine behind the socket. Connections to the one before break.
    pub fn aim(&self, engine: &Engine) {
        let mut state = self.shared.state();
        state.engine = engine.socket();
        state.cut(|_| true);
    }

    /// Ends every stream of events. New ones may be opened.
    pub fn cut_events(&self) {
        self.shared.state().cut(|kind| kind == Kind::Events);
    }

    /// How many requests there were that begin so, such as `GET /events`.
    pub fn count(&self, request: &str) -> usize {
        self.shared.state().count(request)
    }

    /// Waits until an event with this text was kept back.
    pub fn wait_for_muted(&self, text: &str) {
        let is_in = |state: &State| String::from_utf8_lossy(&state.muted).contains(text);
        self.shared.wait(text, is_in);
    }

    /// Waits until something with this text was kept from the engine.
    pub fn wait_for_stalled(&self, text: &str) {
        let is_in = |state: &State| String::from_utf8_lossy(&state.stalled).contains(text);
        self.shared.wait(text, is_in);
    }

    /// Waits until there were so many requests that begin so.
    pub fn wait_for(&self, request: &str, count: usize) {
        self.shared.wait(request, |state| state.count(request) >= count);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.over = true;
            state.cut(|_| true);
            self.shared.changed.notify_all();
        }
        let _refused = UnixStream::connect(self.socket());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl State {
    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn delay(&self) -> Duration {
        let delays = self.faults.iter().map(|fault| match fault {
            Fault::Delay(delay) => *delay,
            Fault::Refuse
            | Fault::Stall
            | Fault::MuteEvents
            | Fault::KeepAttach
            | Fault::FailInspect
            | Fault::CutAttach(_)
            | Fault::HoldCreate(_)
            | Fault::FailCreate
            | Fault::RefuseStarts { .. } => Duration::ZERO,
        });
        delays.sum()
    }

    fn attach_limit(&self) -> Option<usize> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::CutAttach(limit) => Some(*limit),
            Fault::Refuse
            | Fault::Delay(_)
            | Fault::Stall
            | Fault::MuteEvents
            | Fault::KeepAttach
            | Fault::FailInspect
            | Fault::HoldCreate(_)
            | Fault::FailCreate
            | Fault::RefuseStarts { .. } => None,
        })
    }

    /// The answer to a start that is to be refused.
    fn refuse_start(&mut self) -> Option<String> {
        self.faults.iter_mut().find_map(|fault| match fault {
            Fault::RefuseStarts { times, status, message } if *times > 0 => {
                *times -= 1;
                let body = format!("{{\"message\":\"{message}\"}}");
                Some(format!(
                    "HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                ))
            }
            _ => None,
        })
    }

    /// Whether the answer to this creation, counted from one, is held.
    fn holds_create(&self, number: usize) -> bool {
        let held = |fault: &Fault| matches!(fault, Fault::HoldCreate(after) if number > *after);
        self.faults.iter().any(held)
    }

    fn count(&self, request: &str) -> usize {
        self.requests.iter().filter(|line| line.starts_with(request)).count()
    }

    /// Ends the connections of these kinds, on both sides.
    fn cut(&mut self, which: impl Fn(Kind) -> bool) {
        for (_, sides) in self.connections.extract_if(.., |(kind, _)| which(*kind)) {
            for side in sides {
                // It may have ended by itself.
                let _ended = side.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let not_yet = |state: &mut State| !is_so(state) && !state.over;
        let (_state, late) = self.changed.wait_timeout_while(self.state(), LIMIT, not_yet).unwrap();
        assert!(!late.timed_out(), "not within {LIMIT:?}: {what}");
    }

    /// Listens, except while connections are to be refused.
    fn serve(self: Arc<Self>) {
        loop {
            let refused = |state: &mut State| state.has(Fault::Refuse) && !state.over;
            drop(self.changed.wait_while(self.state(), refused).unwrap());
            if self.state().over {
                return;
            }
            // The file of the socket that was here before.
            let _none = std::fs::remove_file(&self.socket);
            let listener = UnixListener::bind(&self.socket).unwrap();
            self.listening(true);
            self.accept(&listener);
            drop(listener);
            self.listening(false);
        }
    }

    fn listening(&self, listening: bool) {
        self.state().listening = listening;
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        loop {
            let (client, _) = listener.accept().unwrap();
            let state = self.state();
            if state.over || state.has(Fault::Refuse) {
                return;
            }
            drop(state);
            let shared = Arc::clone(self);
            // A connection that breaks is what tests are about.
            thread::spawn(move || shared.carry(client).ok());
        }
    }

    /// One connection, from its request to its end.
    fn carry(self: &Arc<Self>, mut client: UnixStream) -> io::Result<()> {
        let (head, rest) = read_head(&mut client)?;
        let line = request::line(&head);
        let kind = request::kind(&line);
        let (delay, engine, number) = {
            let mut state = self.state();
            state.requests.push(line);
            self.changed.notify_all();
            (state.delay(), state.engine.clone(), state.count(CREATE))
        };
        thread::sleep(delay);
        self.unless_stalled();
        if kind == Kind::Inspect && self.state().has(Fault::FailInspect) {
            return client.write_all(ERROR);
        }
        let refusal = if kind == Kind::Start { self.state().refuse_start() } else { None };
        if let Some(refusal) = refusal {
            return client.write_all(refusal.as_bytes());
        }
        let mut engine = UnixStream::connect(engine)?;
        {
            let mut state = self.state();
            if state.over || state.has(Fault::Refuse) {
                return Ok(());
            }
            state.connections.push((kind, [client.try_clone()?, engine.try_clone()?]));
        }
        engine.write_all(request::alone(&head).as_bytes())?;
        engine.write_all(&rest)?;
        let mut back = (engine.try_clone()?, client.try_clone()?);
        let shared = Arc::clone(self);
        thread::spawn(move || {
            if kind == Kind::Create {
                shared.unless_held(number);
                if shared.state().has(Fault::FailCreate) {
                    // The engine is done when it has answered.
                    read_head(&mut back.0).ok();
                    back.1.write_all(ERROR).ok();
                    return back.1.shutdown(Shutdown::Both).ok();
                }
            }
            shared.pass(back.0, back.1, Source::Engine(kind)).ok()
        });
        self.pass(client, engine, Source::Client)
    }

    /// Passes on what comes, as long as it may.
    fn pass(&self, mut from: UnixStream, mut to: UnixStream, source: Source) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        let mut progress = Progress::default();
        loop {
            let read = from.read(&mut buffer)?;
            self.note_stalled(source, &buffer[..read]);
            self.unless_stalled();
            if read == 0 {
                self.unless_kept(source);
                // The other direction may go on.
                return to.shutdown(Shutdown::Write);
            }
            progress.take(&buffer[..read]);
            match self.judge(source, &progress) {
                Verdict::Pass => to.write_all(&buffer[..read])?,
                Verdict::PassHead => {
                    let (head, rest) = buffer[..read].split_at(progress.head_in_last);
                    to.write_all(head)?;
                    self.state().muted.extend_from_slice(rest);
                    self.changed.notify_all();
                }
                Verdict::Cut(excess) => {
                    to.write_all(&buffer[..read.saturating_sub(excess)])?;
                    to.shutdown(Shutdown::Both)?;
                    return from.shutdown(Shutdown::Both);
                }
            }
        }
    }

    fn judge(&self, source: Source, progress: &Progress) -> Verdict {
        let state = self.state();
        match source {
            Source::Engine(Kind::Events) if state.has(Fault::MuteEvents) => Verdict::PassHead,
            Source::Engine(Kind::Attach) => match state.attach_limit() {
                Some(limit) if progress.body >= limit => Verdict::Cut(progress.body - limit),
                Some(_) | None => Verdict::Pass,
            },
            Source::Engine(
                Kind::Events | Kind::Inspect | Kind::Create | Kind::Start | Kind::Other,
            )
            | Source::Client => Verdict::Pass,
        }
    }

    fn unless_kept(&self, source: Source) {
        if let Source::Engine(Kind::Attach) = source {
            let kept = |state: &mut State| state.has(Fault::KeepAttach) && !state.over;
            drop(self.changed.wait_while(self.state(), kept).unwrap());
        }
    }

    fn unless_held(&self, number: usize) {
        let held = |state: &mut State| state.holds_create(number) && !state.over;
        drop(self.changed.wait_while(self.state(), held).unwrap());
    }

    fn note_stalled(&self, source: Source, read: &[u8]) {
        let mut state = self.state();
        if state.has(Fault::Stall) && matches!(source, Source::Client) {
            state.stalled.extend_from_slice(read);
            self.changed.notify_all();
        }
    }

    fn unless_stalled(&self) {
        let stalled = |state: &mut State| state.has(Fault::Stall) && !state.over;
        drop(self.changed.wait_while(self.state(), stalled).unwrap());
    }
}

/// Where what is passed on comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Client,
    /// The answer to a request of this kind.
    Engine(Kind),
}

/// What becomes of what was read last.
enum Verdict {
    Pass,
    /// Only what of it belongs to the head of the response.
    PassHead,
    /// All but so many bytes, and then nothing more.
    Cut(usize),
}

/// How much of a response has come.
#[derive(Debug, Default)]
struct Progress {
    /// The beginning, until the end of the head is known.
    head: Vec<u8>,
    head_is_over: bool,
    /// How much of what was read last belongs to the head.
    head_in_last: usize,
    /// Bytes after the head.
    body: usize,
}

impl Progress {
    fn take(&mut self, read: &[u8]) {
        if self.head_is_over {
            self.head_in_last = 0;
            self.body += read.len();
            return;
        }
        let before = self.head.len();
        self.head.extend_from_slice(read);
        let end = request::head_end(&self.head);
        self.head_is_over = end.is_some();
        self.head_in_last = end.unwrap_or(self.head.len()) - before;
        self.body = read.len() - self.head_in_last;
    }
}

/// The head of a request, and what came with it.
fn read_head(client: &mut UnixStream) -> io::Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = request::head_end(&read) {
            let rest = read.split_off(end);
            return Ok((String::from_utf8_lossy(&read).into_owned(), rest));
        }
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read.extend_from_slice(&buffer[..count]),
        }
    }
}
