//! `mainstay start`, `stop`, `restart` and `rm`.

use mainstay_api::{ClientReport, Outcome, Request, Which};
use mainstay_core::{ServerName, Status};

use super::readiness::{self, Wait};
use crate::clients;
use crate::context::{Context, now};
use crate::error::CliError;
use crate::ui::paint;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    servers: Servers,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    args: Args,
    /// Return at once, before they are ready
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Servers {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Start,
    Stop,
    Restart,
    Remove,
    /// Servers of a file were added.
    Import,
}

pub(crate) async fn run(change: Change, args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let outcomes = ask(change, args.servers, ctx).await?;
    print_outcomes(change, args.json, &outcomes, ctx)
}

/// `start` and `restart`: waits until every server is ready or has failed.
pub(crate) async fn start(
    change: Change,
    args: StartArgs,
    ctx: &mut Context,
) -> Result<(), CliError> {
    let StartArgs { args: Args { servers, json }, no_wait } = args;
    let since = now();
    let mut outcomes = ask(change, servers, ctx).await?;
    if no_wait || outcomes.is_empty() {
        return print_outcomes(change, json, &outcomes, ctx);
    }
    let mut failures = Vec::new();
    for outcome in &mut outcomes {
        let is_starting = matches!(outcome.status, Some(Status::Starting | Status::Restarting));
        if !outcome.changed && !is_starting {
            print(json, line(change, outcome), ctx)?;
            continue;
        }
        let name = outcome.name.clone();
        let wait = Wait { name: &name, since: Some(since), through_absence: false };
        let Some(server) = wait.finish(ctx).await? else {
            return Err(readiness::interrupted(&name, ctx));
        };
        outcome.status = Some(server.status);
        match readiness::verdict(&server, true) {
            Ok(text) => print(json, text, ctx)?,
            Err(text) => {
                failures.push((text + &readiness::failure_report(&server, ctx).await, name));
            }
        }
    }
    if json {
        ctx.ui.json(&outcomes)?;
    }
    failed(failures)
}

fn print(json: bool, text: String, ctx: &mut Context) -> Result<(), CliError> {
    if json { Ok(()) } else { ctx.ui.print(text) }
}

/// The error for servers that did not become ready, if there are any.
fn failed(failures: Vec<(String, ServerName)>) -> Result<(), CliError> {
    let Some((_, first)) = failures.first() else { return Ok(()) };
    let help = format!("see `mainstay why {first}`");
    let texts: Vec<String> = failures.into_iter().map(|(text, _)| text).collect();
    Err(CliError::failed(texts.join("\n"), help))
}

async fn ask(
    change: Change,
    servers: Servers,
    ctx: &mut Context,
) -> Result<Vec<Outcome>, CliError> {
    let which = servers.into();
    let (waiting, request) = match change {
        Change::Start | Change::Import => ("starting", Request::Start { which }),
        Change::Stop => ("stopping", Request::Stop { which }),
        Change::Restart => ("restarting", Request::Restart { which }),
        Change::Remove => ("removing", Request::Remove { which }),
    };
    ctx.ask(waiting, &request).await
}

/// Prints one line per server, then what was done to clients' files.
pub(super) fn print_outcomes(
    change: Change,
    json: bool,
    outcomes: &Vec<Outcome>,
    ctx: &mut Context,
) -> Result<(), CliError> {
    if outcomes.is_empty() && !json {
        ctx.ui.message("there are no servers");
    }
    ctx.ui.answer(json, outcomes, |outcomes| {
        outcomes.iter().map(|outcome| line(change, outcome)).collect::<Vec<_>>().join("\n")
    })?;
    if !json {
        let reports = outcomes.iter().flat_map(|outcome| &outcome.clients);
        let is_wanted = |_: &ClientReport| change != Change::Remove;
        let lines = clients::lines(reports.clone(), is_wanted, ctx.caller.home().as_deref());
        for line in lines.into_iter().chain(clients::retry_hint(reports, None)) {
            ctx.ui.message(line);
        }
    }
    Ok(())
}

/// Stops and removals are complete, so the status is shown. Starts and restarts without a wait have only begun, so the
/// request is shown.
fn line(change: Change, outcome: &Outcome) -> String {
    let Outcome { name, changed, status, clients: _ } = outcome;
    let Some(status) = *status else { return format!("{name} is removed") };
    let shown = |status: Status| paint::status(status)(status.as_str());
    match (change, changed) {
        (Change::Import, false) => format!("{name} is unchanged"),
        (Change::Restart, _) => format!("{name} is being restarted"),
        (_, false) => format!("{name} is {} already", shown(status)),
        (Change::Start | Change::Import, true) => format!("{name} is {}", shown(Status::Starting)),
        (Change::Stop | Change::Remove, true) => format!("{name} is {}", shown(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: Change, changed: bool, status: Option<Status>, expected: &str) {
        let outcome =
            Outcome { name: "time".parse().unwrap(), changed, status, clients: Vec::new() };
        let line = line(change, &outcome);
        assert_eq!(anstream::adapter::strip_str(&line).to_string(), expected);
    }

    #[test]
    fn a_line_names_the_requested_change() {
        use Change as C;
        check(C::Start, true, Some(Status::Starting), "time is starting");
        check(C::Start, true, Some(Status::Stopping), "time is starting");
        check(C::Start, false, Some(Status::Running), "time is running already");
        check(C::Start, false, Some(Status::Starting), "time is starting already");
        check(C::Stop, true, Some(Status::Stopped), "time is stopped");
        check(C::Stop, false, Some(Status::Stopped), "time is stopped already");
        check(C::Restart, true, Some(Status::Stopping), "time is being restarted");
        check(C::Restart, true, Some(Status::Starting), "time is being restarted");
        check(C::Import, true, Some(Status::Starting), "time is starting");
        check(C::Import, false, Some(Status::Running), "time is unchanged");
        check(C::Remove, true, None, "time is removed");
        check(C::Remove, true, Some(Status::Removing), "time is removing");
    }
}
