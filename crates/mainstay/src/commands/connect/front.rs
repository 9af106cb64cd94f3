//! Carries lines between a client and the daemon, over one connection after another.
//!
//! Only the end of the client ends it, and errors that no waiting helps: the daemon may be away for
//! as long as it likes. While it is away the client is still listened to, and gets the answers that
//! cannot wait.
//!
//! If there is neither a daemon nor a holder that would restart it, a daemon is started at once. Exceptions: the user has
//! stopped it, or a service manager gets the time of the grace to start it.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use mainstay_api::{Connected, Grace, MAX_LINE, MAX_MESSAGE, Request, Wire, is_transient};
use mainstay_core::{ServerName, with_causes};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::exchange::{Exchange, Heard};
use super::lines::{Incoming, Lines};
use crate::error::CliError;
use crate::remote::Remote;

/// How long the last answers are waited for when the client has said all it wanted.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How often a daemon is looked for that has been away for longer than the grace.
const SELDOM: Duration = Duration::from_secs(2);

/// How long after a daemon could not be started that is tried again.
const START_AGAIN: Duration = Duration::from_secs(10);

/// What a client is told that has ended before its answers came.
const GONE: &str = "the Mainstay daemon ended during this request; asking again is safe";

/// A connection that carries the client's lines.
type Link = (Connected, Wire);

/// Where connections come from. All requests are [`Request::Connect`].
pub(super) trait Daemon {
    /// The first connection.
    async fn attach(&self, request: &Request) -> Result<Link, CliError>;

    /// Another one, if somebody is there to give it. Starts nothing.
    async fn attach_again(&self, request: &Request) -> Result<Link, CliError>;

    /// The same, when nobody listens at the socket and this client has waited for so long: starts a daemon if that is
    /// allowed.
    async fn attach_after_death(
        &self,
        request: &Request,
        waited: Duration,
    ) -> Result<Link, CliError>;
}

impl Daemon for Remote {
    async fn attach(&self, request: &Request) -> Result<Link, CliError> {
        self.attach(request).await
    }

    async fn attach_again(&self, request: &Request) -> Result<Link, CliError> {
        self.attach_again(request).await
    }

    async fn attach_after_death(
        &self,
        request: &Request,
        waited: Duration,
    ) -> Result<Link, CliError> {
        self.attach_after_death(request, waited).await
    }
}

/// How a connection came to its end.
enum Ending {
    /// The client is done.
    Done,
    /// The daemon is gone.
    Broken,
}

/// What both directions share. They are two halves of one task, so no borrow lasts over an await.
pub(super) struct Front<D> {
    name: ServerName,
    daemon: D,
    exchange: RefCell<Exchange>,
    /// Answers of our own that the client has not got yet.
    replies: RefCell<Vec<Vec<u8>>>,
    /// Once the client has said all it wanted: when it is too late for answers.
    too_late: Cell<Option<Instant>>,
    /// There may be something for the daemon.
    to_send: Notify,
    /// There may be something for the client, or it has ended.
    to_tell: Notify,
}

impl<D: Daemon> Front<D> {
    pub(super) fn new(name: ServerName, daemon: D) -> Self {
        Self {
            name,
            daemon,
            exchange: RefCell::default(),
            replies: RefCell::default(),
            too_late: Cell::new(None),
            to_send: Notify::new(),
            to_tell: Notify::new(),
        }
    }

    /// Serves the client until its input or all hope ends. `say` talks to whoever reads stderr.
    pub(super) async fn serve(
        &self,
        mut input: Lines<impl AsyncRead + Unpin>,
        mut output: impl AsyncWrite + Unpin,
        mut say: impl FnMut(&str),
    ) -> Result<(), CliError> {
        let served = self.serve_on(&mut input, &mut output, &mut say).await;
        if let Err(error) = &served {
            let due = self.exchange.borrow_mut().give_up(&error.to_string());
            let _nobody_reads = tell(&mut output, &due).await;
        }
        served
    }

    /// Goes from one connection to the next.
    async fn serve_on(
        &self,
        input: &mut Lines<impl AsyncRead + Unpin>,
        output: &mut (impl AsyncWrite + Unpin),
        say: &mut impl FnMut(&str),
    ) -> Result<(), CliError> {
        let mut link = self.attach(say).await?;
        loop {
            // A daemon that drops us again and again is not asked more often than one that is away.
            let next_try = Instant::now() + Grace::default().every;
            let (connected, wire) = link;
            let due = self.exchange.borrow_mut().connected(&connected);
            tell(output, &due).await?;
            if let Ending::Done = self.carry(wire, input, output).await? {
                return Ok(());
            }
            // One that leaves for another one has said so.
            if !self.exchange.borrow().is_left() {
                say("the connection to the Mainstay daemon broke; connecting again");
            }
            self.exchange.borrow_mut().broken(Instant::now().into_std());
            let Some(another) = self.wait(next_try, input, output, say).await? else {
                let due = self.exchange.borrow_mut().give_up(GONE);
                return tell(output, &due).await;
            };
            link = another;
        }
    }

    /// The first connection. A daemon that goes before it has answered is one that is being replaced:
    /// asking again does no harm. While daemons fail and the holder starts the next one, the client waits as long as it
    /// wants to.
    async fn attach(&self, say: &mut impl FnMut(&str)) -> Result<Link, CliError> {
        let grace = Grace::default();
        let deadline = Instant::now() + grace.total;
        let request = self.request();
        let mut told = false;
        loop {
            match self.daemon.attach(&request).await {
                Err(CliError::Cut { .. } | CliError::Unsent { .. })
                    if Instant::now() < deadline =>
                {
                    sleep(grace.every).await;
                }
                Err(error @ CliError::Failing { .. }) => {
                    if !std::mem::replace(&mut told, true) {
                        say(&format!("{}; waiting for it", with_causes(&error)));
                    }
                    sleep(SELDOM).await;
                }
                attached => return attached,
            }
        }
    }

    /// Attends to the client until there is another connection. None if the client is done first.
    async fn wait(
        &self,
        next_try: Instant,
        input: &mut Lines<impl AsyncRead + Unpin>,
        output: &mut (impl AsyncWrite + Unpin),
        say: &mut impl FnMut(&str),
    ) -> Result<Option<Link>, CliError> {
        let mut another = pin!(self.attach_again(next_try, say));
        loop {
            let due = self.exchange.borrow_mut().overdue(Instant::now().into_std());
            tell(output, &due).await?;
            let replies = self.replies.take();
            tell(output, &replies).await?;
            let too_late = self.too_late.get();
            if too_late.is_some_and(|too_late| self.is_settled() || too_late <= Instant::now()) {
                return Ok(None);
            }
            let listens = too_late.is_none() && self.exchange.borrow().wants_line();
            let deadline = self.exchange.borrow().deadline().map(Instant::from_std);
            let deadline = deadline.into_iter().chain(too_late).min();
            tokio::select! {
                link = &mut another => return link.map(Some),
                incoming = input.next(), if listens => self.take_in(incoming),
                () = wait_until(deadline) => {}
                () = self.to_tell.notified() => {}
            }
        }
    }

    /// Tries to connect, with the session if there is one to go on with, until it works or is hopeless.
    async fn attach_again(
        &self,
        next_try: Instant,
        say: &mut impl FnMut(&str),
    ) -> Result<Link, CliError> {
        let request = self.request();
        let begun = Instant::now();
        let mut may_start = begun;
        let mut not_started = None;
        let mut told = false;
        sleep_until(next_try).await;
        loop {
            let mut attached = self.daemon.attach_again(&request).await;
            if is_absent(&attached) && Instant::now() >= may_start {
                attached = self.daemon.attach_after_death(&request, begun.elapsed()).await;
                if let Err(error @ CliError::NotStarted { .. }) = &attached {
                    may_start = Instant::now() + START_AGAIN;
                    not_started = Some(with_causes(error));
                }
            }
            let error = match attached {
                Err(error) if error.may_pass() => error,
                attached => return attached,
            };
            self.exchange.borrow_mut().set_stopped(matches!(error, CliError::Stopped));
            self.to_tell.notify_one();
            let pause = pause(begun.elapsed());
            if pause == SELDOM && !told {
                let why = not_started.take().unwrap_or_else(|| with_causes(&error));
                say(&format!("{why}; waiting for it"));
                told = true;
            }
            sleep(pause).await;
        }
    }

    fn request(&self) -> Request {
        let session = self.exchange.borrow().session().map(str::to_owned);
        Request::Connect { name: self.name.clone(), session, farewell: true }
    }

    /// Carries lines both ways over one connection.
    async fn carry(
        &self,
        wire: Wire,
        input: &mut Lines<impl AsyncRead + Unpin>,
        output: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Ending, CliError> {
        tokio::select! {
            ending = self.downward(Lines::new(wire.reader, MAX_LINE), output) => ending,
            () = self.upward(input, wire.writer) => Ok(Ending::Done),
        }
    }

    /// Carries lines to the daemon. Comes back when the last answers have been waited for long
    /// enough. That the daemon takes no more is not told here: its last words are still to be heard.
    async fn upward(
        &self,
        input: &mut Lines<impl AsyncRead + Unpin>,
        mut daemon: impl AsyncWrite + Unpin,
    ) {
        loop {
            let next = self.exchange.borrow().next();
            if let Some(line) = next {
                if daemon.write_all(&line).await.is_err() {
                    return pending().await;
                }
                self.exchange.borrow_mut().sent();
            } else if !self.exchange.borrow().wants_line() {
                self.to_send.notified().await;
            } else if let Some(too_late) = self.too_late.get() {
                return sleep_until(too_late).await;
            } else {
                self.take_in(input.next().await);
            }
        }
    }

    /// Takes in what the client says.
    fn take_in(&self, incoming: io::Result<Incoming>) {
        match incoming {
            Ok(Incoming::Line(line)) => {
                if !line.trim_ascii().is_empty() {
                    self.offer(line);
                }
            }
            Ok(Incoming::TooLong) => {
                self.replies.borrow_mut().push(too_long());
                self.to_tell.notify_one();
            }
            // A last message may come without the end of its line.
            Ok(Incoming::End(mut rest)) if !rest.is_empty() => {
                rest.push(b'\n');
                self.offer(rest);
            }
            // A client that cannot be read any more has ended too.
            Ok(Incoming::End(_)) | Err(_) => {
                self.too_late.set(Some(Instant::now() + LAST_ANSWERS));
                self.to_tell.notify_one();
            }
        }
    }

    fn offer(&self, line: Vec<u8>) {
        self.exchange.borrow_mut().offer(line, Instant::now().into_std());
    }

    fn is_settled(&self) -> bool {
        self.exchange.borrow().is_settled()
    }

    /// Carries lines to the client, until the daemon is gone or the client has all its answers.
    async fn downward(
        &self,
        mut daemon: Lines<impl AsyncRead + Unpin>,
        output: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Ending, CliError> {
        loop {
            let replies = self.replies.take();
            tell(output, &replies).await?;
            if self.too_late.get().is_some() && self.is_settled() {
                return Ok(Ending::Done);
            }
            let incoming = tokio::select! {
                incoming = daemon.next() => incoming,
                () = self.to_tell.notified() => continue,
            };
            // A daemon that says what it never should is as good as gone.
            let Ok(Incoming::Line(line)) = incoming else { return Ok(Ending::Broken) };
            let heard = self.exchange.borrow_mut().received(&line);
            match heard {
                Heard::Pass => tell(output, &[line]).await?,
                Heard::Swallow => self.to_send.notify_one(),
                Heard::Lost(reason) => {
                    let message = format!("the session could not be opened again: {reason}");
                    let help = format!("`mainstay why {}` tells what happened", self.name);
                    return Err(CliError::failed(message, help));
                }
            }
        }
    }
}

/// Whether nobody listens at the socket, so that no holder will restart the daemon.
fn is_absent(attached: &Result<Link, CliError>) -> bool {
    matches!(attached, Err(CliError::Unreachable { source, .. }) if is_transient(source.kind()))
}

/// How long to wait before the next try, when the daemon has been away for so long.
fn pause(away: Duration) -> Duration {
    let grace = Grace::default();
    if away < grace.total { grace.every } else { SELDOM }
}

/// Waits for a moment that may never come.
async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Writes lines to the client.
async fn tell(output: &mut (impl AsyncWrite + Unpin), lines: &[Vec<u8>]) -> Result<(), CliError> {
    for line in lines {
        output.write_all(line).await.map_err(CliError::output)?;
    }
    output.flush().await.map_err(CliError::output)
}

/// The answer to a message that was too long to be read; which one that was is not known.
fn too_long() -> Vec<u8> {
    let message = format!("the message is longer than {} MiB", MAX_MESSAGE / 1024 / 1024);
    let error = json!({"code": -32700, "message": message});
    let mut line = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
