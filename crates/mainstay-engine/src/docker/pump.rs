//! The standard streams of a run in a container.
//!
//! One task reads what the engine sends and hands on whole lines, and writes the lines that come back.
//! It outlives the connection: while there is none, lines to the server wait, and when a new one is
//! handed to it, what the server wrote meanwhile is taken from the engine's log, without loss and, as
//! far as lines differ, without repetition. It ends when it is told that the run is over and everything
//! has been handed on, or with its owner.

mod queue;
mod writer;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use mainstay_core::Interruption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use self::queue::Queue;
use self::writer::{Input, ToWriter};
use super::gap::{self, Splice, Tail};
use super::log_writer::ContainerLog;
use crate::lines::{Line, LineSplitter};
use crate::tasks::Tasks;
use crate::{EngineError, RunKey, Stdio};

/// Lines of junk on the way to the log; more than that is dropped.
const JUNK: usize = 64;

/// How much of standard error is kept.
const STDERR: usize = 16 * 1024;

/// A line of a new connection that may be part of the log is held back for so long, unless others follow.
const SEAM: Duration = Duration::from_millis(100);

/// What is said by a connection.
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
    orders: mpsc::Sender<Order>,
    heard: Arc<Mutex<Heard>>,
    connected: Arc<AtomicBool>,
    quiet: watch::Receiver<bool>,
    written: watch::Receiver<u64>,
    interruptions: watch::Receiver<Interruption>,
    /// What was written before there was a pump, until somebody takes the lines.
    earlier: Mutex<Vec<Bytes>>,
}

/// What is remembered of what was heard.
#[derive(Debug, Default)]
struct Heard {
    stderr: VecDeque<u8>,
    /// The last lines of each stream that were handed on.
    lines: Tail,
    words: Tail,
}

/// What was written while there was no connection, as far as the engine's log has it: all lines of each
/// stream that it still has, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    pub(crate) stdout: Vec<Bytes>,
    pub(crate) stderr: Vec<Bytes>,
}

/// What a server that was restarted by somebody else had said until then: the engine's log goes on.
#[derive(Debug, Default)]
pub(crate) struct Past {
    lines: Tail,
    words: Tail,
}

enum Order {
    Consume(Consumer),
    Connect { output: Output, input: Input, missed: Option<Missed> },
    Finish,
}

struct Consumer {
    lines: mpsc::Sender<Bytes>,
    outgoing: mpsc::Receiver<Bytes>,
    junk: mpsc::Receiver<Bytes>,
}

impl Pump {
    /// Begins. `lost` is called whenever a connection has ended.
    pub(crate) fn start(
        tasks: &Tasks,
        stdout: Stdout,
        log: ContainerLog,
        past: Past,
        lost: impl Fn() + Send + 'static,
    ) -> Self {
        let (orders, inbox) = mpsc::channel(8);
        let heard = Heard { lines: past.lines, words: past.words, ..Heard::default() };
        let heard = Arc::new(Mutex::new(heard));
        let connected = Arc::new(AtomicBool::new(false));
        let (told_quiet, quiet) = watch::channel(false);
        let (told_written, written) = watch::channel(0);
        let none_yet = Interruption { written: 0, at: Instant::now().into_std() };
        let (told_interruptions, interruptions) = watch::channel(none_yet);
        let (hand_on, to_writer) = mpsc::channel(8);
        let reader = Reader {
            stdout,
            log,
            heard: Arc::clone(&heard),
            orders: inbox,
            output: None,
            splitter: LineSplitter::default(),
            queue: Queue::default(),
            consumer: None,
            junk: None,
            seam: None,
            lost: None,
            finishing: false,
            connected: Arc::clone(&connected),
            quiet: told_quiet,
            writer: hand_on,
        };
        tasks.spawn(async move {
            tokio::select! {
                () = reader.run(lost) => {}
                () = writer::write(to_writer, told_written, told_interruptions) => {}
            }
        });
        let earlier = Mutex::default();
        Self { orders, heard, connected, quiet, written, interruptions, earlier }
    }

    /// Whoever takes the lines first is told that these were written before, perhaps to somebody else.
    /// They may come again, if they were written after the connection was made.
    pub(crate) fn recall(&self, earlier: Vec<Bytes>) {
        *lock(&self.earlier) = earlier;
    }

    /// Gives it a connection. What the log has of the time without one is read before.
    pub(crate) async fn connect(&self, to: AttachContainerResults, missed: Option<Missed>) {
        let AttachContainerResults { output, input } = to;
        self.connected.store(true, Ordering::Relaxed);
        // One that has ended needs no connection.
        self.orders.send(Order::Connect { output, input, missed }).await.ok();
    }

    /// Whether it has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Takes over the lines from whoever has them.
    pub(crate) async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        let (to_server, outgoing) = mpsc::channel(queue::LINES);
        let (lines, from_server) = mpsc::channel(queue::LINES);
        let (junk, to_log) = mpsc::channel(JUNK);
        let consumer = Consumer { lines, outgoing, junk: to_log };
        let taken = self.orders.send(Order::Consume(consumer)).await;
        taken.map_err(|_| EngineError::NoSuchRun(key.clone()))?;
        // The engine keeps its log whether anybody hears the lines or not.
        let (written, heard) = (self.written.clone(), watch::channel(0).0);
        let past = std::mem::take(&mut *lock(&self.earlier));
        let (past, interruptions) = (Some(past), Some(self.interruptions.clone()));
        Ok(Stdio { to_server, from_server, junk, written, heard, past, interruptions })
    }

    /// The run is over: waits, not longer than that, until all it said has been read. What nobody has
    /// taken yet is still handed on.
    pub(crate) async fn finish(&self, limit: Duration) {
        if self.orders.send(Order::Finish).await.is_ok() {
            let mut quiet = self.quiet.clone();
            // One that has ended is as quiet as can be.
            timeout(limit, quiet.wait_for(|quiet| *quiet)).await.map(drop).ok();
        }
    }

    /// The last of what was written to standard error.
    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.heard().stderr.iter().copied().collect()
    }

    /// What was handed on last, for the pump of a run whose words follow in the same log.
    pub(crate) fn past(&self) -> Past {
        let mut heard = self.heard();
        Past { lines: std::mem::take(&mut heard.lines), words: std::mem::take(&mut heard.words) }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mainstay_core::lock(mutex)
}

struct Reader {
    stdout: Stdout,
    log: ContainerLog,
    heard: Arc<Mutex<Heard>>,
    orders: mpsc::Receiver<Order>,
    output: Option<Output>,
    splitter: LineSplitter,
    queue: Queue,
    consumer: Option<mpsc::Sender<Bytes>>,
    junk: Option<mpsc::Receiver<Bytes>>,
    seam: Option<Seam>,
    /// When the last connection was lost.
    lost: Option<Instant>,
    finishing: bool,
    connected: Arc<AtomicBool>,
    quiet: watch::Sender<bool>,
    writer: mpsc::Sender<ToWriter>,
}

/// What a reader has to do next.
enum Step {
    Order(Order),
    Seam,
    Room,
    Frame(Frame),
    /// The connection has ended.
    Silence,
    Junk(Bytes),
}

/// Where the log meets the stream.
struct Seam {
    splice: Splice,
    until: Instant,
}

impl Reader {
    async fn run(mut self, lost: impl Fn() + Send) {
        while let Some(step) = self.next().await {
            match step {
                Step::Order(order) => self.obey(order).await,
                Step::Seam => self.close_seam(),
                Step::Room => self.serve(),
                Step::Frame(frame) => self.take(frame),
                Step::Silence => {
                    self.output = None;
                    self.lost = Some(Instant::now());
                    self.close_seam();
                    self.connected.store(false, Ordering::Relaxed);
                    lost();
                }
                Step::Junk(junk) => self.log.write_lines(&junk),
            }
            let read = self.finishing && self.output.is_none() && self.seam.is_none();
            self.quiet.send_replace(read);
            if read && (self.queue.is_empty() || self.consumer.is_none()) {
                return;
            }
        }
    }

    /// What there is to do next; nothing if nobody needs this any more.
    async fn next(&mut self) -> Option<Step> {
        let seam = self.seam.as_ref().map(|seam| seam.until);
        let idle = self.queue.is_empty();
        tokio::select! {
            biased;
            order = self.orders.recv() => order.map(Step::Order),
            () = at(seam) => Some(Step::Seam),
            () = room(self.consumer.as_ref()), if !idle => Some(Step::Room),
            frame = next(self.output.as_mut()), if self.queue.has_room() => {
                Some(frame.map_or(Step::Silence, Step::Frame))
            }
            Some(junk) = junk(self.junk.as_mut()) => Some(Step::Junk(junk)),
        }
    }

    /// Hands a line to whoever takes them, if they are still there.
    fn serve(&mut self) {
        let Some(consumer) = &self.consumer else { return };
        match consumer.try_reserve().map(|permit| self.queue.pop().map(|line| permit.send(line))) {
            Ok(_) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Closed(())) => self.consumer = None,
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Consume(Consumer { lines, outgoing, junk }) => {
                self.consumer = Some(lines);
                self.junk = Some(junk);
                self.writer.send(ToWriter::Lines(outgoing)).await.ok();
            }
            Order::Connect { output, input, missed } => {
                self.output = Some(output);
                self.splitter = LineSplitter::default();
                if let Some(missed) = missed {
                    self.catch_up(missed);
                }
                self.writer.send(ToWriter::Input(input, self.lost)).await.ok();
            }
            Order::Finish => self.finishing = true,
        }
    }

    /// Takes in what the log has and nobody has heard.
    fn catch_up(&mut self, missed: Missed) {
        let (stdout, stderr) = {
            let heard = lock(&self.heard);
            let stdout = gap::first_new(&heard.lines, &missed.stdout);
            (stdout, gap::first_new(&heard.words, &missed.stderr))
        };
        for line in &missed.stderr[stderr..] {
            self.words(&[line, &b"\n"[..]].concat());
            lock(&self.heard).words.push(line);
        }
        for line in &missed.stdout[stdout..] {
            self.hand_on(line.clone());
        }
        let splice = Splice::new(missed.stdout);
        self.seam = Some(Seam { splice, until: Instant::now() + SEAM });
    }

    /// Goes on with the stream where the log ends.
    fn close_seam(&mut self) {
        if let Some(mut seam) = self.seam.take() {
            for line in seam.splice.rest() {
                self.hand_on(line);
            }
        }
    }

    fn take(&mut self, frame: Frame) {
        match frame {
            Ok(LogOutput::StdOut { message }) => {
                for line in self.splitter.push(message) {
                    let line = match line {
                        Line::Whole(line) => line,
                        Line::TooLong { length, ends } => {
                            let note = format!("[a line of {length} bytes was dropped: too long]");
                            self.log.write_lines(note.as_bytes());
                            ends
                        }
                    };
                    self.pass(line);
                }
            }
            Ok(LogOutput::StdErr { message }) => {
                self.words(&message);
                let mut heard = lock(&self.heard);
                for line in message.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                    heard.words.push(line);
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

    /// Takes in a line of the stream, which may have been in the log.
    fn pass(&mut self, line: Bytes) {
        let beyond = match &mut self.seam {
            Some(seam) => {
                seam.until = Instant::now() + SEAM;
                seam.splice.pass(line)
            }
            None => return self.hand_on(line),
        };
        for line in beyond {
            self.hand_on(line);
        }
    }

    fn hand_on(&mut self, line: Bytes) {
        lock(&self.heard).lines.push(&line);
        match self.stdout {
            Stdout::Protocol => self.queue.push(line),
            Stdout::Log => self.words(&[&line, &b"\n"[..]].concat()),
        }
    }

    fn words(&mut self, words: &[u8]) {
        self.log.write(words);
        let mut heard = lock(&self.heard);
        heard.stderr.extend(words);
        let excess = heard.stderr.len().saturating_sub(STDERR);
        heard.stderr.drain(..excess);
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Waits until whoever takes lines has room for one, or is gone.
async fn room(consumer: Option<&mpsc::Sender<Bytes>>) {
    match consumer {
        Some(consumer) => drop(consumer.reserve().await),
        None => std::future::pending().await,
    }
}

async fn next(output: Option<&mut Output>) -> Option<Frame> {
    match output {
        Some(output) => output.next().await,
        None => std::future::pending().await,
    }
}

async fn junk(junk: Option<&mut mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    junk?.recv().await
}

#[cfg(test)]
mod tests;
