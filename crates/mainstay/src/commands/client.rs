//! `mainstay client`: the AI clients that get entries for servers.

mod ls;
mod show;

use std::path::Path;

use clap::Subcommand;
use mainstay_api::{ClientDone, ClientInfo, ClientReport, Request};

use crate::clients::{self, IdParser, is_managed};
use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::text::and;

/// Choose the AI clients that get your servers
///
/// A client that you add gets an entry for every server in its own config file, also for servers that
/// you run later. Nothing else in the file is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    #[command(visible_alias = "list")]
    Ls(ls::Args),
    /// Add all servers to clients, also those that you run later
    ///
    /// Entries of Mainstay that were changed or removed by hand are restored.
    Add {
        #[command(flatten)]
        which: AddWhich,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all entries of Mainstay from clients' files
    ///
    /// Servers that you run later are not added to these clients.
    #[command(visible_alias = "rm")]
    Remove {
        #[command(flatten)]
        which: RemoveWhich,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Show(show::Args),
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct AddWhich {
    /// Ids of clients; `mainstay client ls -a` lists all of them
    #[arg(value_name = "ID", value_parser = IdParser, hide_possible_values = true)]
    ids: Vec<String>,
    /// All clients that are installed
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct RemoveWhich {
    /// Ids of clients; `mainstay client ls` lists those you have
    #[arg(value_name = "ID", value_parser = IdParser, hide_possible_values = true)]
    ids: Vec<String>,
    /// All clients that were added, or have an entry of Mainstay
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    match args.action {
        Action::Ls(args) => ls::run(args, ctx).await,
        Action::Add { which, json } => {
            let named = (!which.all).then_some(which.ids);
            change(Change::Add, named, json, ctx).await
        }
        Action::Remove { which, json } => {
            let named = (!which.all).then_some(which.ids);
            change(Change::Remove, named, json, ctx).await
        }
        Action::Show(args) => show::run(args, ctx).await,
    }
}

/// Every client, as the daemon finds it.
async fn ask(ctx: &Context) -> Result<Vec<ClientInfo>, CliError> {
    let request = Request::Clients { around: clients::around(&ctx.caller) };
    ctx.ask("asking the daemon", &request).await
}

/// Executes a change for the named clients, or else for all to which it applies.
async fn change(
    change: Change,
    named: Option<Vec<String>>,
    json: bool,
    ctx: &mut Context,
) -> Result<(), CliError> {
    let ids = match named {
        Some(ids) => each_once(ids),
        None => all(change, &ask(ctx).await?),
    };
    let reports = if ids.is_empty() { Vec::new() } else { carry_out(change, &ids, ctx).await? };
    if json {
        ctx.ui.json(&reports)?;
    } else {
        for line in messages(change, &ids, &reports, ctx.caller.home().as_deref()) {
            ctx.ui.message(line);
        }
    }
    let failed = reports.iter().any(|report| report.done == ClientDone::Failed);
    let found_none = ids.is_empty() && change == Change::Add;
    if failed || found_none { Err(CliError::Answered(Exit::Failed)) } else { Ok(()) }
}

/// The clients that `--all` selects.
fn all(change: Change, clients: &[ClientInfo]) -> Vec<String> {
    let is_meant = |client: &&ClientInfo| match change {
        Change::Add => client.installed,
        Change::Remove => client.chosen || client.entries.iter().any(is_managed),
    };
    clients.iter().filter(is_meant).map(|client| client.id.clone()).collect()
}

async fn carry_out(
    change: Change,
    ids: &[String],
    ctx: &Context,
) -> Result<Vec<ClientReport>, CliError> {
    let request = match change {
        Change::Add => {
            let around = clients::around(&ctx.caller);
            Request::ChooseClients { ids: ids.to_vec(), around }
        }
        Change::Remove => Request::DropClients { ids: ids.to_vec() },
    };
    let mut reports: Vec<ClientReport> = ctx.ask("asking the daemon", &request).await?;
    // The daemon reports about all clients; others than the requested ones are left out. A report without a client is
    // about the ledger and concerns all of them.
    reports.retain(|report| ids.contains(&report.client) || report.client.is_empty());
    Ok(reports)
}

/// The changes and the failures with their help, or that there was nothing to do.
fn messages(
    change: Change,
    ids: &[String],
    reports: &[ClientReport],
    home: Option<&Path>,
) -> Vec<String> {
    let lines = clients::lines(reports, |_| change == Change::Add, home);
    if !lines.is_empty() {
        let again = match change {
            Change::Add => "mainstay client add",
            Change::Remove => "mainstay client remove",
        };
        return lines.into_iter().chain(clients::retry_hint(reports, Some(again))).collect();
    }
    let products: Vec<&str> = ids.iter().map(|id| clients::product(id)).collect();
    let products = and(&products);
    vec![match change {
        Change::Add if ids.is_empty() => ls::NONE_FOUND.to_owned(),
        Change::Remove if ids.is_empty() => {
            "nothing to do: no client was added, and no file has an entry of Mainstay".to_owned()
        }
        Change::Add if reports.is_empty() => {
            format!("{products}: every server that you run will be added")
        }
        Change::Add => format!("{products}: nothing to do, all servers are there already"),
        Change::Remove => {
            format!("{products} had no Mainstay entries. New servers will not be added.")
        }
    }]
}

fn each_once(mut ids: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids
}

#[cfg(test)]
mod tests {
    use mainstay_api::EntryStanding;

    use super::*;
    use crate::clients::tests::{client, entry, report};

    #[test]
    fn a_change_without_effect_is_reported() {
        let ids = each_once(["zed", "cursor", "zed"].map(str::to_owned).into());
        assert_eq!(ids, ["zed", "cursor"]);
        let check = |change, reports: &[ClientReport], expected: &str| {
            assert_eq!(messages(change, &ids, reports, None), [expected]);
        };
        let same = report("zed", ClientDone::Nothing, "time is there already");
        let chosen = "Zed and Cursor: every server that you run will be added";
        check(Change::Add, &[], chosen);
        let registered = "Zed and Cursor: nothing to do, all servers are there already";
        check(Change::Add, &[same], registered);
        check(
            Change::Remove,
            &[],
            "Zed and Cursor had no Mainstay entries. New servers will not be added.",
        );
        let gone = report("zed", ClientDone::Removed, "removed `time` from Zed (/its/file)");
        check(Change::Remove, &[gone], "removed `time` from Zed (/its/file)");
        assert_eq!(messages(Change::Add, &[], &[], None), [ls::NONE_FOUND]);
        let none = "nothing to do: no client was added, and no file has an entry of Mainstay";
        assert_eq!(messages(Change::Remove, &[], &[], None), [none]);
    }

    #[test]
    fn a_failure_names_the_next_retry() {
        let broken = report("zed", ClientDone::Failed, "/its/file cannot be read");
        let lines = messages(Change::Remove, &["zed".to_owned()], &[broken], None).join("\n");
        insta::assert_snapshot!(anstream::adapter::strip_str(&lines), @"
        warning: `time` is still in Zed: /its/file cannot be read
        help: fix the file; Mainstay tries again within a minute, or at once with `mainstay client remove zed`
        ");
    }

    #[test]
    fn all_selects_the_clients_a_change_applies_to() {
        let mut added = client("cursor", Vec::new());
        (added.chosen, added.installed) = (true, false);
        let named = client("zed", vec![entry("time", EntryStanding::Ours)]);
        let other = client("kiro", vec![entry("mine", EntryStanding::Foreign)]);
        let clients = [added, named, other];
        assert_eq!(all(Change::Add, &clients), ["zed", "kiro"]);
        assert_eq!(all(Change::Remove, &clients), ["cursor", "zed"]);
    }
}
