//! `mainstay stop`

use mainstay_api::Request;

use super::outcome::{self, Servers};
use crate::context::Context;
use crate::error::CliError;

/// Turn servers off; they stay known
///
/// Comes back when every process of them is gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    servers: Servers,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Stop { which: args.servers.into() };
    let outcomes = ctx.ask("stopping", &request).await?;
    outcome::tell(ctx, args.json, &outcomes)
}
