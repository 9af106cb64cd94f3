//! The standard streams of a run in a container.
//!
//! One task delivers the output of the engine as whole lines, and writes the lines for the server.
//! It outlives the connection: while there is none, lines to the server wait. When it is given a new connection,
//! what the server wrote meanwhile is taken from the engine's log, without loss and, as
//! far as lines differ, without repetition. It ends when the run is over and everything
//! has been delivered, or with its owner.

mod ledger;
mod writer;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use mainstay_core::watchdog::ReadPosition;
use mainstay_core::{Interruption, lock};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use self::ledger::InputLedger;
use self::writer::{Input, Progress, ToWriter};
use super::api::LoggedOutput;
use super::log_writer::ContainerLog;
use super::splice::{self, Splice, Tail};
use crate::lines::{LineQueue, LineSplitter};
use crate::tasks::{Tasks, or_pending};
use crate::{EngineError, RunKey, Stdio};

/// Lines of junk on the way to the log; more are dropped.
const JUNK: usize = 64;

/// The limits of lines that wait for the consumer.
const MAX_QUEUED: usize = 256;
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;

/// How much of standard error is kept.
const STDERR: usize = 16 * 1024;

/// How long a line of a new connection that may be part of the log is held back, unless others follow.
const SPLICE_TIMEOUT: Duration = Duration::from_millis(100);

type Frame = Result<LogOutput, bollard::errors::Error>;
type Output = Pin<Box<dyn Stream<Item = Frame> + Send>>;

/// What a server writes to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdout {
    /// The messages of the protocol.
    Protocol,
    /// Lines for the log.
    Log,
}

impl Stdout {
    /// That of a server which speaks MCP on its standard streams, or elsewhere.
    pub(crate) fn of(stdio: bool) -> Self {
        if stdio { Self::Protocol } else { Self::Log }
    }
}

/// The streams of one run.
#[derive(Debug)]
pub(crate) struct Pump {
    commands: mpsc::Sender<Command>,
    received: Arc<Mutex<Received>>,
    connected: Arc<AtomicBool>,
    /// Whether the run is over and all its output has been read.
    drained: watch::Receiver<bool>,
    written: watch::Sender<u64>,
    ledger: Arc<Mutex<InputLedger>>,
    interruptions: watch::Receiver<Interruption>,
    /// What was written before this pump was started, for the first consumer.
    earlier_output: Mutex<Vec<Bytes>>,
}

/// The last output that was received.
#[derive(Debug, Default)]
struct Received {
    stderr: VecDeque<u8>,
    tails: StreamTails,
}

/// The last lines of each stream that were delivered. If someone restarts the container, its next run continues the
/// same log.
#[derive(Debug, Default)]
pub(crate) struct StreamTails {
    stdout: Tail,
    stderr: Tail,
}

enum Command {
    Consume(Consumer),
    Connect { output: Output, input: Input, missed: Option<LoggedOutput> },
    Finish,
}

struct Consumer {
    lines: mpsc::Sender<Bytes>,
    outgoing: mpsc::Receiver<Bytes>,
    junk: mpsc::Receiver<Bytes>,
}

impl Pump {
    /// Starts the task. `lost` is called whenever a connection has ended.
    pub(crate) fn start(
        tasks: &Tasks,
        stdout: Stdout,
        log: ContainerLog,
        tails: StreamTails,
        lost: impl Fn() + Send + 'static,
    ) -> Self {
        let (commands, inbox) = mpsc::channel(8);
        let received = Arc::new(Mutex::new(Received { tails, ..Received::default() }));
        let connected = Arc::new(AtomicBool::new(false));
        let (drained_tx, drained) = watch::channel(false);
        let (written, _) = watch::channel(0);
        let ledger = Arc::<Mutex<InputLedger>>::default();
        let none_yet = Interruption { written: 0, at: Instant::now().into_std() };
        let (interruptions_tx, interruptions) = watch::channel(none_yet);
        let (writer, to_writer) = mpsc::channel(8);
        let reader = Reader {
            stdout,
            log,
            received: Arc::clone(&received),
            commands: inbox,
            output: None,
            splitter: LineSplitter::default(),
            queue: LineQueue::default(),
            consumer: None,
            junk: None,
            splice: None,
            lost_at: None,
            finishing: false,
            connected: Arc::clone(&connected),
            drained: drained_tx,
            writer,
        };
        let progress = Progress { written: written.clone(), ledger: Arc::clone(&ledger) };
        tasks.spawn(async move {
            tokio::select! {
                () = reader.run(lost) => {}
                () = writer::write(to_writer, progress, interruptions_tx) => {}
            }
        });
        let earlier_output = Mutex::default();
        Self {
            commands,
            received,
            connected,
            drained,
            written,
            ledger,
            interruptions,
            earlier_output,
        }
    }

    /// Sets the lines that were written before this pump was started. Those written after its
    /// connection was made also arrive on the connection.
    pub(crate) fn set_earlier_output(&self, earlier: Vec<Bytes>) {
        *lock(&self.earlier_output) = earlier;
    }

    /// Hands over a connection, and what the log has of the time without one.
    pub(crate) async fn connect(&self, to: AttachContainerResults, missed: Option<LoggedOutput>) {
        let AttachContainerResults { output, input } = to;
        self.connected.store(true, Ordering::Relaxed);
        // The task may have ended with its run.
        self.commands.send(Command::Connect { output, input, missed }).await.ok();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Becomes the consumer of the lines, in place of the previous one.
    pub(crate) async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let (to_server, outgoing) = mpsc::channel(MAX_QUEUED);
        let (lines, from_server) = mpsc::channel(MAX_QUEUED);
        let (junk, to_log) = mpsc::channel(JUNK);
        let consumer = Consumer { lines, outgoing, junk: to_log };
        let sent = self.commands.send(Command::Consume(consumer)).await;
        sent.map_err(|_| EngineError::NoSuchRun(key.clone()))?;
        Ok(Stdio {
            to_server,
            from_server,
            junk,
            written: self.written.subscribe(),
            // The engine keeps its log whether lines are consumed or not.
            consumed: watch::channel(0).0,
            earlier_output: Some(std::mem::take(&mut *lock(&self.earlier_output))),
            interruptions: Some(self.interruptions.clone()),
        })
    }

    /// The run is over: waits until all its output has been read, for at most `limit`. Lines that are
    /// queued are still delivered.
    pub(crate) async fn finish(&self, limit: Duration) {
        if self.commands.send(Command::Finish).await.is_ok() {
            let mut drained = self.drained.clone();
            // An error means that the task has ended.
            timeout(limit, drained.wait_for(|drained| *drained)).await.map(drop).ok();
        }
    }

    /// How far the server can have read its input, if so many bytes are unread.
    pub(crate) fn read_position(&self, unread: u64) -> ReadPosition {
        ReadPosition { line: lock(&self.ledger).read_through(unread), unread }
    }

    /// The run is over, and nobody has read the last bytes of its input.
    pub(crate) fn set_unread(&self, unread: u64) {
        let through = self.read_position(unread).line;
        self.written.send_modify(|written| *written = through.min(*written));
    }

    /// The last of what was written to standard error.
    pub(crate) fn stderr(&self) -> Vec<u8> {
        lock(&self.received).stderr.iter().copied().collect()
    }

    pub(crate) fn take_tails(&self) -> StreamTails {
        std::mem::take(&mut lock(&self.received).tails)
    }
}

struct Reader {
    stdout: Stdout,
    log: ContainerLog,
    received: Arc<Mutex<Received>>,
    commands: mpsc::Receiver<Command>,
    output: Option<Output>,
    splitter: LineSplitter,
    queue: LineQueue,
    consumer: Option<mpsc::Sender<Bytes>>,
    junk: Option<mpsc::Receiver<Bytes>>,
    /// Joins the log and the stream, until the given time.
    splice: Option<(Splice, Instant)>,
    /// When the last connection was lost.
    lost_at: Option<Instant>,
    finishing: bool,
    connected: Arc<AtomicBool>,
    drained: watch::Sender<bool>,
    writer: mpsc::Sender<ToWriter>,
}

impl Reader {
    /// Ends when the run is over and everything is delivered, or when the pump is dropped.
    async fn run(mut self, lost: impl Fn() + Send) {
        loop {
            let splice_until = self.splice.as_ref().map(|(_, until)| *until);
            let (queued, reading) = (self.queue.len() > 0, has_room(&self.queue));
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command).await,
                    None => return,
                },
                () = or_pending(splice_until.map(sleep_until)) => self.end_splice(),
                () = or_pending(self.consumer.as_ref().map(wait_for_room)), if queued => self.deliver_queued(),
                frame = or_pending(self.output.as_mut().map(StreamExt::next)), if reading => {
                    if let Some(frame) = frame {
                        self.receive_frame(frame);
                    } else {
                        self.connection_lost();
                        lost();
                    }
                }
                Some(junk) = or_pending(self.junk.as_mut().map(mpsc::Receiver::recv)) => {
                    self.log.write_lines(&junk);
                }
            }
            let drained = self.finishing && self.output.is_none() && self.splice.is_none();
            self.drained.send_replace(drained);
            if drained && (self.queue.len() == 0 || self.consumer.is_none()) {
                return;
            }
        }
    }

    fn connection_lost(&mut self) {
        self.output = None;
        self.lost_at = Some(Instant::now());
        self.end_splice();
        self.connected.store(false, Ordering::Relaxed);
    }

    /// Delivers a line, if the consumer still exists.
    fn deliver_queued(&mut self) {
        let Some(consumer) = &self.consumer else { return };
        match consumer.try_reserve().map(|permit| self.queue.pop().map(|line| permit.send(line))) {
            Ok(_) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Closed(())) => self.consumer = None,
        }
    }

    async fn execute(&mut self, command: Command) {
        match command {
            Command::Consume(Consumer { lines, outgoing, junk }) => {
                self.consumer = Some(lines);
                self.junk = Some(junk);
                self.writer.send(ToWriter::Lines(outgoing)).await.ok();
            }
            Command::Connect { output, input, missed } => {
                self.output = Some(output);
                self.splitter = LineSplitter::default();
                if let Some(missed) = missed {
                    self.catch_up(missed);
                }
                self.writer.send(ToWriter::Input(input, self.lost_at)).await.ok();
            }
            Command::Finish => self.finishing = true,
        }
    }

    /// Delivers the lines of the log that were not delivered before.
    fn catch_up(&mut self, missed: LoggedOutput) {
        let (stdout, stderr) = {
            let tails = &lock(&self.received).tails;
            let stdout = splice::first_new(&tails.stdout, &missed.stdout);
            (stdout, splice::first_new(&tails.stderr, &missed.stderr))
        };
        for line in &missed.stderr[stderr..] {
            self.log_output(&[line, &b"\n"[..]].concat());
            lock(&self.received).tails.stderr.push(line);
        }
        for line in &missed.stdout[stdout..] {
            self.deliver(line.clone());
        }
        self.splice = Some((Splice::new(missed.stdout), Instant::now() + SPLICE_TIMEOUT));
    }

    /// Continues with the stream where the log ends.
    fn end_splice(&mut self) {
        if let Some((mut splice, _)) = self.splice.take() {
            self.deliver_all(splice.rest());
        }
    }

    fn receive_frame(&mut self, frame: Frame) {
        match frame {
            Ok(LogOutput::StdOut { message }) => {
                for line in self.splitter.push(message) {
                    let line = line.or_ends(|note| self.log.write_lines(note.as_bytes()));
                    self.receive_line(line);
                }
            }
            Ok(LogOutput::StdErr { message }) => {
                self.log_output(&message);
                let tail = &mut lock(&self.received).tails.stderr;
                for line in message.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                    tail.push(line);
                }
            }
            // Half a frame, of which the rest will never come: the log has it.
            Ok(LogOutput::StdIn { .. } | LogOutput::Console { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to a container broke");
                self.output = Some(Box::pin(futures_util::stream::empty()));
            }
        }
    }

    /// Delivers a line of the stream, unless it was in the log.
    fn receive_line(&mut self, line: Bytes) {
        match &mut self.splice {
            Some((splice, until)) => {
                *until = Instant::now() + SPLICE_TIMEOUT;
                let beyond = splice.pass(line);
                self.deliver_all(beyond);
            }
            None => self.deliver(line),
        }
    }

    fn deliver_all(&mut self, lines: Vec<Bytes>) {
        for line in lines {
            self.deliver(line);
        }
    }

    fn deliver(&mut self, line: Bytes) {
        lock(&self.received).tails.stdout.push(&line);
        match self.stdout {
            Stdout::Protocol => self.queue.push(line),
            Stdout::Log => self.log_output(&[&line, &b"\n"[..]].concat()),
        }
    }

    fn log_output(&mut self, output: &[u8]) {
        self.log.write(output);
        let stderr = &mut lock(&self.received).stderr;
        stderr.extend(output);
        let excess = stderr.len().saturating_sub(STDERR);
        stderr.drain(..excess);
    }
}

/// Whether more may be read. Otherwise, the server has to wait.
fn has_room(queue: &LineQueue) -> bool {
    queue.len() < MAX_QUEUED && queue.bytes() < MAX_QUEUED_BYTES
}

/// Waits until the consumer has room for a line, or is gone.
async fn wait_for_room(consumer: &mpsc::Sender<Bytes>) {
    drop(consumer.reserve().await);
}

#[cfg(test)]
mod tests;
