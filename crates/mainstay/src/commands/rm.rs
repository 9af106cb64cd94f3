//! `mainstay rm`

use mainstay_api::Request;

use super::outcome::{self, Servers};
use crate::context::Context;
use crate::error::CliError;

/// Stop servers and forget them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    servers: Servers,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Remove { which: args.servers.into() };
    let outcomes = ctx.ask("removing", &request).await?;
    outcome::tell(ctx, args.json, &outcomes)
}
