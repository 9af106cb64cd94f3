//! `mainstay export`

use mainstay_api::Request;
use mainstay_core::{ServerName, ServerSpec};

use crate::context::Context;
use crate::error::CliError;
use crate::servers_file;

/// Print servers as one reviewable TOML file
///
/// Values of environment variables may be secrets and are never printed: the file names the
/// variables, and `mainstay import` takes their values from its own environment.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this server
    name: Option<ServerName>,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Export { name: args.name };
    let specs: Vec<ServerSpec> = ctx.ask("asking the daemon", &request).await?;
    ctx.ui.print_all(&servers_file::write(&specs))
}
