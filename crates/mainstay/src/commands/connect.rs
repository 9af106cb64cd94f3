//! `mainstay connect`: connects a client that speaks MCP over standard input and output to the daemon's HTTP listener.
//!
//! A [`bridge`] carries the messages. Its connections are made here, over the control socket of the daemon, which is
//! started if necessary.

mod daemon;

use std::path::PathBuf;

use mainstay_api::MAX_MESSAGE;
use mainstay_core::ServerName;
use mainstay_proxy::bridge::{self, BridgeError};
use mainstay_proxy::client::{Client, ConnectError, Target};

pub(crate) use self::daemon::Daemon;
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

/// Connect a stdio client to a server
///
/// For clients that start servers as programs: enter `mainstay connect NAME` as the program. It keeps
/// running while the server or the daemon is restarted, and ends when its standard input is closed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// The instance to connect to, instead of `MAINSTAY_HOME`: for clients that do not pass variables
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    if let Some(home) = &args.home {
        let home = ctx.caller.absolute(home)?;
        // A mistyped directory must not become a new instance.
        if !home.is_dir() {
            return Err(CliError::misuse(
                format!("--home: the directory `{}` does not exist", home.display()),
                "give the MAINSTAY_HOME of the instance that has the server",
            ));
        }
        ctx.caller = ctx.caller.clone().with_var("MAINSTAY_HOME", home);
    }
    let daemon = Daemon::new(args.name, Remote::of(ctx)?);
    daemon.connect_first().await?;
    let client = Client::over(target(daemon.name())?, daemon);
    let io = (tokio::io::stdin(), tokio::io::stdout());
    let carried = bridge::run(client, None, MAX_MESSAGE, io, std::future::pending()).await;
    carried.map(drop).map_err(error)
}

/// The MCP endpoint of a server.
pub(crate) fn target(name: &ServerName) -> Result<Target, CliError> {
    let path = format!("/{name}/mcp");
    Target::private(&path)
        .map_err(|error| CliError::failed(error.to_string(), "choose another name"))
}

fn error(error: BridgeError) -> CliError {
    match error {
        BridgeError::Output(error) => CliError::output(error),
        BridgeError::Connect(ConnectError::Final(source)) => match source.downcast::<CliError>() {
            Ok(error) => *error,
            Err(source) => CliError::failed(source.to_string(), "try again"),
        },
        error @ (BridgeError::Connect(_) | BridgeError::SessionLost(_)) => {
            CliError::failed(error.to_string(), "`mainstay ls` shows the servers")
        }
    }
}
