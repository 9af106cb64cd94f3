//! `mainstay export`

use mainstay_api::Request;
use mainstay_core::{ServerName, ServerSpec};

use crate::context::Context;
use crate::error::CliError;
use crate::servers_file;

/// Print servers as a TOML file
///
/// Values of environment variables may be secrets and are never printed: the file names the
/// variables, and `mainstay import` takes their values from its own environment. In commands and URLs, what may be a
/// secret (the query of a URL, the value of an option such as --token) is replaced by HIDDEN-BY-MAINSTAY.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this server
    name: Option<ServerName>,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Export { name: args.name };
    let specs: Vec<ServerSpec> = ctx.ask("asking the daemon", &request).await?;
    let text = servers_file::write(&specs);
    if servers_file::has_placeholder(&text) {
        ctx.ui.message(
            "values in commands and URLs that may be secrets were left out: replace \
             HIDDEN-BY-MAINSTAY with them before you import the file",
        );
    }
    ctx.ui.print_all(&text)
}
