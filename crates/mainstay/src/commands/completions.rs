//! `mainstay completions`

use clap_complete::Shell;

use crate::completion;
use crate::context::Context;
use crate::error::CliError;

/// Print a script that completes commands, servers, tools and clients in your shell
///
/// For bash: `mainstay completions bash > ~/.local/share/bash-completion/completions/mainstay`
///
/// The script runs `mainstay` for each completion, so it stays the same in new versions.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, ctx: &mut Context) -> Result<(), CliError> {
    let script = completion::script(&args.shell.to_string())
        .map_err(CliError::io("there is no script for that shell"))?;
    ctx.ui.print_all(&String::from_utf8_lossy(&script))
}
