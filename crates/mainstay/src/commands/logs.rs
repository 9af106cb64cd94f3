//! `mainstay logs`

use mainstay_api::{LogLine, Request};
use mainstay_core::ServerName;

use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

/// Print what a server wrote to standard error
///
/// Lines on its standard output that are no MCP messages are in the log, too. On a terminal only text and
/// colours are printed; a file or a pipe gets the bytes that the server wrote.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    /// Go on with new lines as they come
    #[arg(short, long)]
    follow: bool,
    /// Only so many of the last lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Print each line as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let Args { name, follow, tail, json } = args;
    let remote = Remote::of(ctx)?;
    let ui = &mut ctx.ui;
    let each = |lines: Vec<LogLine>| {
        if json {
            return ui.items(json, &lines, |line| line.line.clone());
        }
        let text: Vec<&str> = lines.iter().flat_map(|line| [line.line.as_str(), "\n"]).collect();
        ui.data(&text.concat())
    };
    remote.stream(&Request::Logs { name, tail, follow }, each).await
}
