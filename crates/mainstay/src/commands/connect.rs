//! `mainstay connect`: the front for clients that speak MCP over standard input and output.
//!
//! Lines go both ways, whole ones only, and no faster than the other side takes them. Nothing but the
//! daemon's lines and answers of our own is ever written to stdout. The command outlives the daemon
//! ([`front`]): a connection that breaks is made again, and [`exchange`] decides what is said on it.

mod exchange;
mod front;
mod held;
mod lines;
mod message;
mod said;
mod unheard;

use std::path::PathBuf;

use mainstay_api::MAX_MESSAGE;
use mainstay_core::ServerName;

use self::front::Front;
use self::lines::Lines;
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

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
    front.serve(input, tokio::io::stdout(), |text| ctx.ui.say(text)).await
}
