//! `mainstay connect`: the front for clients that speak MCP over standard input and output.
//!
//! Lines go both ways, whole ones only, and no faster than the other side takes them. Nothing but the
//! daemon's lines and answers of our own is ever written to stdout. The command outlives the daemon:
//! a connection that breaks is made again, and [`exchange`] decides what is said on it.

mod exchange;
mod lines;
mod message;

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_api::{Grace, MAX_LINE, MAX_MESSAGE, Request, Wire};
use mainstay_core::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use self::exchange::{Exchange, Heard};
use self::lines::{Incoming, Lines};
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;
use crate::ui::Ui;

/// How long the last answers are waited for when the client has said all it wanted.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What a client is told that has ended before its answers came.
const GONE: &str = "the Mainstay daemon ended during this request; asking again is safe";

/// Speak MCP with a server over standard input and output
///
/// For clients that start their servers as programs: `mainstay connect NAME` is that program. It goes
/// on while the server or the daemon is restarted, and ends when its input does.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// Which Mainstay to connect to, in place of `MAINSTAY_HOME`: for clients that pass on no variables
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    if let Some(home) = &args.home {
        let home = ctx.caller.absolute(home)?;
        // Whoever connects wants a Mainstay that is there; a wrong directory must not become one.
        if !home.is_dir() {
            return Err(CliError::Usage {
                message: format!("--home: there is no directory `{}`", home.display()),
                help: Some("give the MAINSTAY_HOME of the Mainstay that has the server".to_owned()),
            });
        }
        ctx.caller = ctx.caller.clone().with_var("MAINSTAY_HOME", home);
    }
    let front = Front::new(args.name, Remote::of(ctx)?);
    let input = Lines::new(tokio::io::stdin(), MAX_MESSAGE);
    front.serve(input, tokio::io::stdout(), &mut ctx.ui).await
}

/// How a connection came to its end.
enum Ending {
    /// The client is done.
    Done,
    /// The daemon is gone.
    Broken,
}

/// What both directions share. They are two halves of one task, so no borrow lasts over an await.
struct Front {
    name: ServerName,
    remote: Remote,
    exchange: RefCell<Exchange>,
    /// Answers of our own that the client has not got yet.
    replies: RefCell<Vec<Vec<u8>>>,
    /// Whether the client has said all it wanted.
    ended: Cell<bool>,
    /// There may be something for the daemon.
    to_send: Notify,
    /// There may be something for the client, or it has ended.
    to_tell: Notify,
}

impl Front {
    fn new(name: ServerName, remote: Remote) -> Self {
        Self {
            name,
            remote,
            exchange: RefCell::default(),
            replies: RefCell::default(),
            ended: Cell::new(false),
            to_send: Notify::new(),
            to_tell: Notify::new(),
        }
    }

    /// Serves the client over one connection after another, until its input or all hope ends.
    async fn serve(
        &self,
        mut input: Lines<impl AsyncRead + Unpin>,
        mut output: impl AsyncWrite + Unpin,
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        loop {
            let next_try = Instant::now() + Grace::default().every;
            let carried = match self.attach().await {
                Ok(wire) => self.carry(wire, &mut input, &mut output).await,
                Err(error) => Err(error),
            };
            match carried {
                Ok(Ending::Done) => return Ok(()),
                Ok(Ending::Broken) => {}
                Err(error) => {
                    let due = self.exchange.borrow_mut().give_up(&error.to_string());
                    tell(&mut output, &due).await?;
                    return Err(error);
                }
            }
            let due = self.exchange.borrow_mut().broken();
            tell(&mut output, &due).await?;
            if self.ended.get() {
                let due = self.exchange.borrow_mut().give_up(GONE);
                return tell(&mut output, &due).await;
            }
            ui.say("the connection to the Mainstay daemon broke; connecting again");
            sleep_until(next_try).await;
        }
    }

    /// Connects, with the session if there is one to go on with. A daemon that goes before it has
    /// answered is one that is being replaced: asking again does no harm.
    async fn attach(&self) -> Result<Wire, CliError> {
        let grace = Grace::default();
        let deadline = Instant::now() + grace.total;
        let session = self.exchange.borrow().session().map(str::to_owned);
        let request = Request::Connect { name: self.name.clone(), session };
        loop {
            match self.remote.attach(&request).await {
                Ok((connected, wire)) => {
                    self.exchange.borrow_mut().connected(&connected);
                    return Ok(wire);
                }
                Err(CliError::Cut { .. }) if Instant::now() < deadline => sleep(grace.every).await,
                Err(error) => return Err(error),
            }
        }
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
            } else if !self.take_in(input.next().await) {
                break;
            }
        }
        self.ended.set(true);
        self.to_tell.notify_one();
        sleep(LAST_ANSWERS).await;
    }

    /// Takes in what the client says, and tells whether it goes on.
    fn take_in(&self, incoming: io::Result<Incoming>) -> bool {
        match incoming {
            Ok(Incoming::Line(line)) => {
                if !line.trim_ascii().is_empty() {
                    self.exchange.borrow_mut().offer(line);
                }
            }
            Ok(Incoming::TooLong) => {
                self.replies.borrow_mut().push(too_long());
                self.to_tell.notify_one();
            }
            // A last message may come without the end of its line.
            Ok(Incoming::End(mut rest)) if !rest.is_empty() => {
                rest.push(b'\n');
                self.exchange.borrow_mut().offer(rest);
            }
            // A client that cannot be read any more has ended too.
            Ok(Incoming::End(_)) | Err(_) => return false,
        }
        true
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
            if self.ended.get() && self.exchange.borrow().is_settled() {
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
