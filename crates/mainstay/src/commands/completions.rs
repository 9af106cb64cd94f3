//! `mainstay completions`

use clap_complete::Shell;

use crate::cli;
use crate::context::Context;
use crate::error::CliError;

/// Print a script that completes commands in your shell
///
/// For bash: `mainstay completions bash > ~/.local/share/bash-completion/completions/mainstay`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, ctx: &mut Context) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::definition(), "mainstay", &mut script);
    ctx.ui.print_all(&String::from_utf8_lossy(&script))
}
