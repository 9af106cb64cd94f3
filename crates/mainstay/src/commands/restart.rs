//! `mainstay restart`

use mainstay_api::Request;

use super::outcome::{self, Servers};
use crate::context::Context;
use crate::error::CliError;

/// Start servers anew, with a clean slate
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    servers: Servers,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Restart { which: args.servers.into() };
    let outcomes = ctx.ask("restarting", &request).await?;
    outcome::tell(ctx, args.json, &outcomes)
}
