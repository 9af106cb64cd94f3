//! `mainstay client show`

use std::path::Path;

use mainstay_api::{ClientEntry, ClientInfo, EntryStanding};
use serde_json::Value;

use super::ask;
use crate::clients::{IdParser, Problem, ReloadStep, problems};
use crate::context::Context;
use crate::error::CliError;
use crate::text::{Cell, columns, facts, home_as_tilde, plain_line, tilde};
use crate::ui::paint;

/// Show one client, its file and the entries in it
///
/// Of your own entries, and of your own fields in Mainstay's entries, only the names are shown: their
/// values may be secret.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the client; `mainstay client ls -a` lists all of them
    #[arg(value_parser = IdParser, hide_possible_values = true)]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let found = ask(ctx).await?.into_iter().find(|client| client.id == args.id);
    let client = found.ok_or_else(|| {
        CliError::failed(
            format!("the daemon does not know the client `{}`", args.id),
            "it is an older version: run `mainstay daemon reload`, then try again",
        )
    })?;
    let home = ctx.caller.home();
    let width = ctx.ui.width();
    ctx.ui.answer(args.json, &client, |client| page(client, home.as_deref(), width))
}

/// Lines of `key: value`, the entries, and what is wrong.
fn page(client: &ClientInfo, home: Option<&Path>, width: Option<usize>) -> String {
    let mut sections = vec![head(client, home)];
    if !client.entries.is_empty() {
        let width = width.map(|width| width.saturating_sub(2));
        let rows = columns(width, client.entries.iter().map(entry_row));
        sections.push(format!("{}\n{}", paint::strong("Entries"), indented(&rows)));
    }
    let line =
        |problem: &Problem| home_as_tilde(&format!("- {}; {}", problem.what, problem.help), home);
    let wrong: Vec<String> = problems(client).iter().map(line).collect();
    if !wrong.is_empty() {
        let title = paint::strong("What is wrong");
        sections.push(format!("{title}\n{}", indented(&wrong.join("\n"))));
    }
    sections.join("\n\n")
}

fn head(client: &ClientInfo, home: Option<&Path>) -> String {
    let installed = match (&client.installed_because, client.installed) {
        (Some(why), true) => format!("yes: {}", home_as_tilde(&plain_line(why), home)),
        (None, true) => "yes".to_owned(),
        (_, false) => "no".to_owned(),
    };
    let chosen = if client.chosen { "yes: it gets every server" } else { "no" };
    let file = tilde(&client.file, home);
    let changes = ReloadStep::of(&client.id).to_do(&client.product);
    let lines = [
        ("client", client.id.clone()),
        ("product", client.product.clone()),
        ("installed", installed),
        ("chosen", chosen.to_owned()),
        ("file", if client.exists { file } else { format!("{file} (does not exist yet)") }),
        ("changes", changes.map_or("seen at once".to_owned(), |how| format!("{how} to see them"))),
    ];
    facts(lines)
}

fn entry_row(entry: &ClientEntry) -> Vec<Cell> {
    let (standing, paint): (_, fn(&str) -> String) = match entry.standing {
        EntryStanding::Ours => ("added by Mainstay", paint::good),
        EntryStanding::Drifted => ("changed by hand", paint::warning),
        EntryStanding::Away => ("removed until the server is ready", paint::warning),
        EntryStanding::Withdrawn => ("removed by hand", paint::warning),
        EntryStanding::Missing => ("missing", paint::warning),
        EntryStanding::Foreign if entry.leads_to_server => ("your own, same server", paint::good),
        EntryStanding::Foreign if entry.wanted => ("your own", paint::warning),
        EntryStanding::Foreign => ("your own", paint::faint),
    };
    vec![
        Cell::painted(plain_line(&entry.name), paint::strong),
        Cell::painted(standing, paint),
        Cell::new(fields(entry)),
    ]
}

/// Mainstay's fields with their values, then the names of the user's own.
fn fields(entry: &ClientEntry) -> String {
    let says = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    };
    let mut parts: Vec<String> = entry.says.iter().map(says).collect();
    if !entry.own_fields.is_empty() {
        parts.push(format!("yours: {}", entry.own_fields.join(", ")));
    }
    plain_line(&parts.join("; "))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clients::tests::{client, entry};

    fn shown(client: &ClientInfo) -> String {
        let page = page(client, Some(Path::new("/home/me")), None);
        anstream::adapter::strip_str(&page).to_string()
    }

    #[test]
    fn a_client_is_shown_with_its_entries() {
        let mut time = entry("time", EntryStanding::Ours);
        time.says = [("url".to_owned(), json!("http://127.0.0.1:7433/time/mcp"))].into();
        time.own_fields = ["disabled", "headers"].map(str::to_owned).into();
        let mut web = entry("web", EntryStanding::Drifted);
        web.says = [
            ("command".to_owned(), json!("mainstay")),
            ("args".to_owned(), json!(["connect", "web"])),
        ]
        .into();
        web.drifted = vec!["args".to_owned()];
        let mut git = entry("git", EntryStanding::Foreign);
        (git.wanted, git.leads_to_server) = (true, true);
        let entries = vec![entry("mine", EntryStanding::Foreign), git, time, web];
        let mut cursor = client("cursor", entries);
        cursor.chosen = true;
        insta::assert_snapshot!(shown(&cursor), @r#"
        client:     cursor
        product:    Cursor
        installed:  yes: ~/.cursor exists
        chosen:     yes: it gets every server
        file:       ~/.cursor/mcp.json
        changes:    seen at once

        Entries
          mine  your own
          git   your own, same server
          time  added by Mainstay      url http://127.0.0.1:7433/time/mcp; yours: disabled, headers
          web   changed by hand        args ["connect","web"]; command mainstay

        What is wrong
          - `web` was changed by hand (args); `mainstay client add cursor` restores it
        "#);
    }

    #[test]
    fn a_client_that_is_not_installed_has_a_short_page() {
        let mut codex = client("codex", Vec::new());
        (codex.installed, codex.installed_because, codex.exists) = (false, None, false);
        insta::assert_snapshot!(shown(&codex), @"
        client:     codex
        product:    Codex
        installed:  no
        chosen:     no
        file:       ~/.codex/mcp.json (does not exist yet)
        changes:    restart Codex to see them
        ");
    }
}
