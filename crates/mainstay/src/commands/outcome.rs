//! What `start`, `stop`, `restart` and `rm` have in common: which servers, and what became of them.

use mainstay_api::{Outcome, Which};
use mainstay_core::ServerName;

use crate::context::Context;
use crate::error::CliError;
use crate::ui::paint;

/// The servers that a command is about.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Servers {
    /// Names of servers
    #[arg(value_name = "NAME")]
    names: Vec<ServerName>,
    /// All servers
    #[arg(long)]
    all: bool,
}

impl From<Servers> for Which {
    fn from(servers: Servers) -> Self {
        if servers.all { Self::All } else { Self::Names(servers.names) }
    }
}

/// Tells what became of each server, one line each.
pub(super) fn tell(ctx: &mut Context, json: bool, outcomes: &Vec<Outcome>) -> Result<(), CliError> {
    if outcomes.is_empty() && !json {
        ctx.ui.say("there are no servers");
    }
    ctx.ui
        .answer(json, outcomes, |outcomes| outcomes.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn line(outcome: &Outcome) -> String {
    let Outcome { name, changed, status } = outcome;
    let Some(status) = status else { return format!("{name} is removed") };
    let word = paint::status(*status)(status.as_str());
    if *changed { format!("{name} is {word}") } else { format!("{name} is already {word}") }
}

#[cfg(test)]
mod tests {
    use mainstay_core::Status;

    use super::*;

    fn check(changed: bool, status: Option<Status>, expected: &str) {
        let outcome = Outcome { name: "time".parse().unwrap(), changed, status };
        assert_eq!(anstream::adapter::strip_str(&line(&outcome)).to_string(), expected);
    }

    #[test]
    fn a_line_tells_what_changed() {
        check(true, Some(Status::Stopped), "time is stopped");
        check(false, Some(Status::Stopped), "time is already stopped");
        check(true, None, "time is removed");
    }
}
