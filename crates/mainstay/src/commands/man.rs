//! `mainstay man`

use std::fs;
use std::path::PathBuf;

use crate::cli;
use crate::context::Context;
use crate::error::CliError;

/// Write the man pages into a directory
///
/// There is one page per command: mainstay.1, mainstay-run.1 and so on. The directory is created if it does not
/// exist. For your own use: `mainstay man ~/.local/share/man/man1`, then `man mainstay`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

pub(crate) fn run(args: &Args, ctx: &Context) -> Result<(), CliError> {
    let directory = ctx.caller.absolute(&args.directory)?;
    fs::create_dir_all(&directory)
        .and_then(|()| clap_mangen::generate_to(cli::definition(), &directory))
        .map_err(CliError::io(format!("`{}` cannot be written", directory.display())))
}
