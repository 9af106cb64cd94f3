//! `mainstay import`

use std::io::Read as _;
use std::path::{Path, PathBuf};

use mainstay_api::{Outcome, Request};
use mainstay_daemon::discover::Disk;

use super::change::{self, Change};
use crate::clients;
use crate::context::Context;
use crate::engine_host;
use crate::error::CliError;
use crate::images::ask_with_images;
use crate::servers_file::{self, ReadError};

/// Add the servers of a TOML file, all or none
///
/// The file has the format of `mainstay export`. If one server cannot be added, nothing is changed.
/// Missing images are pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file; `-` reads standard input
    file: PathBuf,
    /// Replace servers with the same names; secrets that the file leaves out are kept
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let text = read(&args.file)?;
    let refused = |error: ReadError| CliError::Failed {
        message: format!("`{}` cannot be imported: {error}", args.file.display()),
        help: error.help(),
    };
    let mut specs = match servers_file::read(&text, &ctx.caller, &[]) {
        // The daemon may have the values that the file leaves out. A file that is refused anyway must not start a daemon.
        Ok(_) | Err(ReadError::Unset(_) | ReadError::Server { .. }) if args.replace => {
            let held = ctx.described(None).await?;
            servers_file::read(&text, &ctx.caller, &held).map_err(refused)?
        }
        read => read.map_err(refused)?,
    };
    for spec in &mut specs {
        engine_host::set_engine(spec, false, &ctx.caller, &Disk)?;
    }
    let around = clients::around(&ctx.caller);
    let request = Request::Import { specs: specs.clone(), replace: args.replace, around };
    let outcomes: Vec<Outcome> = ask_with_images(ctx, "importing", &request, &specs).await?;
    change::print_outcomes(Change::Import, args.json, &outcomes, ctx)?;
    let reports = outcomes.iter().flat_map(|outcome| &outcome.clients);
    if !args.json {
        clients::hint_if_no_client(&specs, reports, ctx).await;
    }
    Ok(())
}

fn read(file: &Path) -> Result<String, CliError> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(CliError::io(format!("`{}` cannot be read", file.display())))
}
