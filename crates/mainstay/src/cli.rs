//! The command line.

use std::fmt::Write as _;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    call, change, client, completions, connect, daemon, demo, doctor, events, export, import, logs,
    ls, man, run, service, status, token, tools, update, why,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default())
    .usage(AnsiColor::Yellow.on_default())
    .literal(AnsiColor::Cyan.on_default());

/// The groups of `--help`. clap itself does not group subcommands.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Servers", &["run", "ls", "status", "why", "start", "stop", "restart", "rm"]),
    ("Output and tools", &["logs", "events", "tools", "call", "connect"]),
    ("Clients", &["client", "token"]),
    ("Files", &["export", "import"]),
    ("Mainstay itself", &["daemon", "service", "update", "doctor", "completions", "man", "demo"]),
];

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 no such server, \
                          4 daemon unreachable, 130 interrupted";

/// Mainstay keeps MCP servers running for AI clients.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay",
    version,
    styles = STYLES,
    disable_help_subcommand = true,
    max_term_width = 100,
    override_help = help(),
    // For the man page.
    after_help = EXIT_CODES,
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Every command. Its help text is at its `Args`, or here if several commands share them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Args>),
    #[command(visible_aliases = ["ps", "list"])]
    Ls(ls::Args),
    Status(status::Args),
    Why(why::Args),
    /// Start servers
    ///
    /// Returns when each is ready or has failed once. The restart counter of each is reset.
    Start(change::StartArgs),
    /// Stop servers, until `mainstay start`
    ///
    /// Returns when all their processes have ended.
    Stop(change::Args),
    /// Restart servers and reset their restart counters
    ///
    /// Returns when each is ready or has failed once.
    Restart(change::StartArgs),
    /// Stop servers and remove them
    Rm(change::Args),
    Logs(logs::Args),
    Events(events::Args),
    Tools(tools::Args),
    Call(call::Args),
    Connect(connect::Args),
    Client(client::Args),
    Token(token::Args),
    Export(export::Args),
    Import(import::Args),
    Daemon(daemon::Args),
    Service(service::Args),
    Update(update::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
    Demo(demo::Args),
}

/// The command line as clap sees it, for help and completions.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// The whole of `mainstay --help`. Each line of a command is that command's own description.
fn help() -> String {
    let head = STYLES.get_header();
    let literal = STYLES.get_literal();
    let commands = Command::augment_subcommands(clap::Command::new("mainstay"));
    let mut text = format!(
        "Mainstay keeps MCP servers running for AI clients.\n\n  \
         {literal}mainstay run time -- uvx mcp-server-time{literal:#}\n\n\
         runs a server and restarts it when it ends. `mainstay why time` explains what happened.\n\n\
         {head}Usage:{head:#} {literal}mainstay{literal:#} <COMMAND>\n"
    );
    for (title, names) in GROUPS {
        let _infallible = write!(text, "\n{head}{title}:{head:#}\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _infallible = writeln!(text, "  {literal}{name:<12}{literal:#} {about}");
        }
    }
    let _infallible = write!(
        text,
        "\n{head}Options:{head:#}\n  \
         {literal}-h, --help{literal:#}     Print help; `mainstay COMMAND --help` describes a command\n  \
         {literal}-V, --version{literal:#}  Print the version\n\n\
         {EXIT_CODES}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_definition_is_valid() {
        definition().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
        let definition = definition();
        let visible: BTreeSet<&str> = definition
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.len(), visible.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), visible);
    }
}
