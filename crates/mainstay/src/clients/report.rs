//! Describes what was done to clients' files.
//!
//! First the changes, one line for all clients that a server was added to or removed from. A failure is a warning, one
//! line for all servers of a file. Last the steps that make clients read their files.

use std::collections::BTreeSet;
use std::path::Path;

use mainstay_api::{ClientDone, ClientReport};
use mainstay_clients::Client;
use mainstay_core::ServerName;

use super::notice;
use crate::text::{and, home_as_tilde, plain_line};
use crate::ui::paint;

/// What was done to clients' files, then the steps for the user. `is_wanted` is true if the entry was to be added, false
/// if it was to be removed.
pub(crate) fn lines<'a>(
    reports: impl IntoIterator<Item = &'a ClientReport>,
    is_wanted: impl Fn(&ClientReport) -> bool,
    home: Option<&Path>,
) -> Vec<String> {
    let shown: Vec<_> =
        reports.into_iter().filter(|report| report.done.is_worth_telling()).collect();
    let line = |group: &Vec<&ClientReport>| line(group, is_wanted(group[0]), home);
    grouped(&shown).iter().map(line).chain(required_steps(&shown)).collect()
}

/// When files that could not be edited are tried again, if there are any; `again` is the command that retries at once.
pub(crate) fn retry_hint<'a>(
    reports: impl IntoIterator<Item = &'a ClientReport>,
    again: Option<&str>,
) -> Option<String> {
    let failed = reports.into_iter().filter(|report| report.done == ClientDone::Failed);
    let ids = failed.map(|report| report.client.as_str()).filter(|id| !id.is_empty());
    let ids: BTreeSet<&str> = ids.collect();
    let what = match ids.len() {
        0 => return None,
        1 => "the file",
        _ => "the files",
    };
    let help = paint::note("help:");
    let line = format!("{help} fix {what}; Mainstay tries again within a minute");
    let ids = ids.into_iter().collect::<Vec<_>>().join(" ");
    Some(match again {
        Some(again) => format!("{line}, or at once with `{again} {ids}`"),
        None => line,
    })
}

/// What the reports of one line have in common.
#[derive(PartialEq, Eq)]
enum Subject<'a> {
    /// The same was done for one server, in one client or several.
    Change(&'a ServerName, ClientDone),
    /// One server waits for the same, in one client or several.
    Wait(&'a ServerName, String),
    /// The same message about one client, for one server or several.
    Special(&'a str, &'a str),
}

impl<'a> Subject<'a> {
    fn of(report: &'a ClientReport) -> Self {
        let ClientReport { client, server, done, text } = report;
        // Other texts contain more than the file.
        let is_usual = text.ends_with(')');
        match done {
            ClientDone::Added | ClientDone::Updated | ClientDone::Removed if is_usual => {
                Self::Change(server, *done)
            }
            ClientDone::Waits => Self::Wait(server, text.replacen(product(client), "", 1)),
            ClientDone::Added
            | ClientDone::Updated
            | ClientDone::Removed
            | ClientDone::Nothing
            | ClientDone::Left
            | ClientDone::Failed => Self::Special(client, text),
        }
    }
}

/// Groups reports that are shown as one line, in order. No group is empty.
fn grouped<'a>(reports: &[&'a ClientReport]) -> Vec<Vec<&'a ClientReport>> {
    let mut groups: Vec<(Subject, Vec<&ClientReport>)> = Vec::new();
    for report in reports {
        let subject = Subject::of(report);
        match groups.iter_mut().find(|(other, _)| *other == subject) {
            Some((_, group)) => group.push(report),
            None => groups.push((subject, vec![report])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn line(group: &[&ClientReport], is_wanted: bool, home: Option<&Path>) -> String {
    let ClientReport { client, server, done, text } = group[0];
    let products: Vec<&str> = group.iter().map(|report| product(&report.client)).collect();
    let products = and(&products);
    let text = home_as_tilde(&plain_line(text), home);
    let warning = paint::warning("warning:");
    match done {
        ClientDone::Added if group.len() > 1 => format!("added `{server}` to {products}"),
        ClientDone::Updated if group.len() > 1 => {
            format!("updated `{server}` in {products}")
        }
        ClientDone::Removed if group.len() > 1 => format!("removed `{server}` from {products}"),
        ClientDone::Waits => text.replacen(product(client), &products, 1),
        ClientDone::Added | ClientDone::Updated | ClientDone::Removed | ClientDone::Nothing => text,
        ClientDone::Left if is_wanted => {
            format!("{warning} {text}; see `mainstay client show {client}`")
        }
        ClientDone::Left => format!("{warning} {text}"),
        ClientDone::Failed => format!("{warning} {}{text}", consequence(group, is_wanted)),
    }
}

/// The consequence of a file that could not be edited.
fn consequence(group: &[&ClientReport], is_wanted: bool) -> String {
    let servers: Vec<String> = group.iter().map(|report| format!("`{}`", report.server)).collect();
    let (names, are) = (and(&servers), if servers.len() > 1 { "are" } else { "is" });
    // A problem without a client is about the ledger.
    match Client::by_id(&group[0].client) {
        Some(client) if is_wanted => format!("{names} {are} not in {} yet: ", client.product),
        Some(client) => format!("{names} {are} still in {}: ", client.product),
        None => format!("{names}: "),
    }
}

/// The steps that make clients read their files, each client once.
fn required_steps(reports: &[&ClientReport]) -> Vec<String> {
    let (there, gone): (Vec<&ClientReport>, Vec<_>) = reports
        .iter()
        .filter(|report| is_change(report.done))
        .partition(|report| report.done != ClientDone::Removed);
    let has_more = |report: &&ClientReport| there.iter().any(|one| one.client == report.client);
    let gone: Vec<&ClientReport> = gone.into_iter().filter(|report| !has_more(report)).collect();
    let see = if is_of_one_server(&there) { "see it" } else { "see them" };
    let see_gone =
        if is_of_one_server(&gone) { "see that it is gone" } else { "see that they are gone" };
    [(there, see), (gone, see_gone)]
        .into_iter()
        .filter_map(|(changed, to)| {
            notice::required_step(changed.iter().map(|report| report.client.as_str()), to)
        })
        .collect()
}

fn is_of_one_server(reports: &[&ClientReport]) -> bool {
    reports.windows(2).all(|pair| pair[0].server == pair[1].server)
}

/// Whether the file was changed.
fn is_change(done: ClientDone) -> bool {
    matches!(done, ClientDone::Added | ClientDone::Updated | ClientDone::Removed)
}

/// The product name of a client.
pub(crate) fn product(id: &str) -> &str {
    Client::by_id(id).map_or(id, |client| client.product)
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    fn shown(reports: &[ClientReport], is_wanted: bool) -> String {
        let lines = lines(reports, |_| is_wanted, Some(Path::new("/home/me"))).join("\n");
        anstream::adapter::strip_str(&lines).to_string()
    }

    /// A report about another server.
    fn about(server: &str, report: ClientReport) -> ClientReport {
        ClientReport { server: server.parse().unwrap(), ..report }
    }

    #[test]
    fn several_clients_share_a_line_and_one_is_shown_with_its_file() {
        use ClientDone as D;
        let mut reports: Vec<_> = ["claude-desktop", "cursor", "codex"]
            .map(|id| report(id, D::Added, "added `time` to it (/home/me/its/file)"))
            .into();
        let in_zed = "added `web` to Zed (/home/me/.config/zed/settings.json)";
        reports.push(about("web", report("zed", D::Added, in_zed)));
        reports.push(report("kiro", D::Nothing, "`time` is already in Kiro (/home/me/.kiro)"));
        insta::assert_snapshot!(shown(&reports, true), @"
        added `time` to Claude Desktop, Cursor and Codex
        added `web` to Zed (~/.config/zed/settings.json)
        restart Claude Desktop and Codex to see them
        ");
        assert_eq!(shown(&reports[4..], true), "");
    }

    #[test]
    fn a_removal_names_the_clients_to_restart() {
        let gone = |id: &str| report(id, ClientDone::Removed, "removed `time` from it (/its/file)");
        insta::assert_snapshot!(shown(&["codex", "claude-code"].map(gone), false), @"
        removed `time` from Codex and Claude Code
        restart Codex and Claude Code to see that it is gone
        ");
        let both = [gone("codex"), about("web", gone("codex"))];
        assert!(shown(&both, false).ends_with("restart Codex to see that they are gone"));
        let mut unnamed = gone("codex");
        unnamed.text.push_str("; it no longer names that client");
        let shown_more = shown(&[unnamed, gone("zed")], false);
        assert!(
            shown_more.starts_with("removed `time` from it (/its/file); it no"),
            "{shown_more}"
        );
        let moved = [gone("codex"), about("web", report("codex", ClientDone::Added, "added"))];
        assert!(shown(&moved, true).ends_with("\nrestart Codex to see it"));
    }

    #[test]
    fn a_restart_is_requested_only_after_a_change() {
        use ClientDone as D;
        let waits = |id: &str| {
            report(id, D::Waits, &format!("`time` is added to {} once it is ready", product(id)))
        };
        let left = "left `time` in Codex (/home/me/.codex/config.toml) alone: Mainstay did not write this entry";
        let reports =
            [waits("codex"), waits("zed"), report("codex", D::Left, left), waits("claude-code")];
        insta::assert_snapshot!(shown(&reports, true), @"
        `time` is added to Codex, Zed and Claude Code once it is ready
        warning: left `time` in Codex (~/.codex/config.toml) alone: Mainstay did not write this entry; see `mainstay client show codex`
        ");
    }

    #[test]
    fn a_warning_names_client_servers_and_consequence() {
        let text = "/home/me/.factory/mcp.json was left as it is: line 1\u{7}";
        let closed = report("factory", ClientDone::Failed, text);
        let both = [closed.clone(), about("web", closed.clone())];
        insta::assert_snapshot!(shown(&both, true), @"warning: `time` and `web` are not in Factory Droid yet: ~/.factory/mcp.json was left as it is: line 1");
        insta::assert_snapshot!(shown(&both[..1], false), @"warning: `time` is still in Factory Droid: ~/.factory/mcp.json was left as it is: line 1");
        let helped = |again| retry_hint(&both, again).unwrap_or_default();
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        insta::assert_snapshot!(plain(&helped(None)), @"help: fix the file; Mainstay tries again within a minute");
        insta::assert_snapshot!(plain(&helped(Some("mainstay client add"))), @"help: fix the file; Mainstay tries again within a minute, or at once with `mainstay client add factory`");
        assert_eq!(retry_hint(&[], None), None);
        let ledger = ClientReport { client: String::new(), ..closed };
        insta::assert_snapshot!(shown(&[ledger], true), @"warning: `time`: ~/.factory/mcp.json was left as it is: line 1");
    }
}
