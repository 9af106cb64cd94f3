//! `mainstay client`: the AI clients that get entries for servers.

mod ls;
mod show;

use clap::Subcommand;
use mainstay_api::{ClientDone, ClientInfo, ClientReport, Request};

use crate::clients;
use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::ui::paint;

/// Choose the AI clients that get your servers
///
/// A client that was added once has an entry for every server from then on: in its own config file, of
/// which nothing else is changed. An entry of yours is never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Ls(ls::Args),
    /// Register all servers with clients, now and from now on
    ///
    /// Entries of ours that were changed or taken out by hand are set right.
    Add(ChangeArgs),
    /// Take all our entries out of clients' files
    ///
    /// Servers that are run from now on are not registered with them.
    #[command(visible_alias = "rm")]
    Remove(ChangeArgs),
    Show(show::Args),
}

#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Ids of clients; `mainstay client ls -a` lists all of them
    #[arg(value_name = "ID", required = true, value_parser = clients::id_parser(),
          hide_possible_values = true)]
    ids: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    match args.action {
        Action::Ls(args) => ls::run(args, ctx).await,
        Action::Add(args) => change(Change::Add, args, ctx).await,
        Action::Remove(args) => change(Change::Remove, args, ctx).await,
        Action::Show(args) => show::run(args, ctx).await,
    }
}

/// Every client, as the daemon finds it.
async fn ask(ctx: &Context) -> Result<Vec<ClientInfo>, CliError> {
    let request = Request::Clients { around: clients::around(&ctx.caller) };
    ctx.ask("asking the daemon", &request).await
}

async fn change(change: Change, args: ChangeArgs, ctx: &mut Context) -> Result<(), CliError> {
    let ids = each_once(args.ids);
    let request = match change {
        Change::Add => {
            let around = clients::around(&ctx.caller);
            Request::ChooseClients { ids: ids.clone(), around }
        }
        Change::Remove => Request::DropClients { ids: ids.clone() },
    };
    let mut reports: Vec<ClientReport> = ctx.ask("asking the daemon", &request).await?;
    // The daemon looks at the entries of all clients; nobody asked about the others.
    reports.retain(|report| ids.contains(&report.client));
    if args.json {
        ctx.ui.answer(true, &reports, |_| String::new())?;
    } else {
        for line in told(change, &ids, &reports) {
            ctx.ui.say(line);
        }
    }
    let failed = reports.iter().any(|report| report.done == ClientDone::Failed);
    if failed { Err(CliError::Answered(Exit::Failed)) } else { Ok(()) }
}

/// What was done and what to do where it failed, or that there was nothing to do.
fn told(change: Change, ids: &[String], reports: &[ClientReport]) -> Vec<String> {
    let lines = clients::lines(reports);
    if !lines.is_empty() {
        return lines.into_iter().chain(help(change, reports)).collect();
    }
    let ids = ids.join(", ");
    vec![match change {
        Change::Add if reports.is_empty() => {
            format!("{ids}: chosen; every server that you run from now on is registered")
        }
        Change::Add => format!("{ids}: nothing to do, every server is registered already"),
        Change::Remove => {
            format!("{ids}: no entry is ours, and servers are not registered from now on")
        }
    }]
}

/// How to try again with those whose files could not be edited.
fn help(change: Change, reports: &[ClientReport]) -> Option<String> {
    let failed = reports.iter().filter(|report| report.done == ClientDone::Failed);
    let failed = each_once(failed.map(|report| report.client.clone()).collect());
    let again = match change {
        Change::Add => "add",
        Change::Remove => "remove",
    };
    (!failed.is_empty()).then(|| {
        let (help, ids) = (paint::note("help:"), failed.join(" "));
        format!("{help} put the file in order, then try again: `mainstay client {again} {ids}`")
    })
}

fn each_once(mut ids: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::report;

    #[test]
    fn nothing_to_do_is_told_too() {
        let ids = each_once(["zed", "cursor", "zed"].map(str::to_owned).into());
        assert_eq!(ids, ["zed", "cursor"]);
        let check = |change, reports: &[ClientReport], expected: &str| {
            assert_eq!(told(change, &ids, reports), [expected]);
        };
        let same = report("zed", ClientDone::Nothing, "time is there already");
        let chosen = "zed, cursor: chosen; every server that you run from now on is registered";
        check(Change::Add, &[], chosen);
        let registered = "zed, cursor: nothing to do, every server is registered already";
        check(Change::Add, &[same], registered);
        check(
            Change::Remove,
            &[],
            "zed, cursor: no entry is ours, and servers are not registered from now on",
        );
        let broken = report("zed", ClientDone::Failed, "Zed's file cannot be read");
        let lines = told(Change::Remove, &ids, &[broken.clone(), broken]).join("\n");
        insta::assert_snapshot!(anstream::adapter::strip_str(&lines), @"
        warning: Zed's file cannot be read
        help: put the file in order, then try again: `mainstay client remove zed`
        ");
        let gone = report("zed", ClientDone::Removed, "removed time from Zed");
        check(Change::Remove, &[gone], "removed time from Zed");
    }
}
