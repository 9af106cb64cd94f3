//! `mainstay client ls`

use std::path::Path;

use mainstay_api::ClientInfo;

use super::ask;
use crate::clients::{Problem, is_in_file, is_managed, problems_of_all};
use crate::context::Context;
use crate::error::CliError;
use crate::text::{Cell, Fit, home_as_tilde, table, tilde};
use crate::ui::paint;

const HEAD: [&str; 6] = ["CLIENT", "PRODUCT", "INSTALLED", "CHOSEN", "SERVERS", "FILE"];

/// Columns that a narrow terminal does not get, the least useful first.
const FIT: Fit<'static> = Fit { dispensable: &["PRODUCT", "INSTALLED"], essential: None };

pub(super) const NONE_FOUND: &str = "no client was found on this machine; `mainstay client ls -a` \
                                     lists all known clients and their files";

/// List installed clients, and how many of your servers each has
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show clients that are not installed too
    #[arg(short, long)]
    all: bool,
    /// Print all clients as a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let clients = ask(ctx).await?;
    let home = ctx.caller.home();
    let width = ctx.ui.width();
    ctx.ui
        .answer(args.json, &clients, |clients| page(clients, args.all, home.as_deref(), width))?;
    if !args.json {
        for line in notes(&clients, home.as_deref()) {
            ctx.ui.message(line);
        }
    }
    Ok(())
}

/// The table, or nothing if there is nothing to show.
fn page(clients: &[ClientInfo], all: bool, home: Option<&Path>, width: Option<usize>) -> String {
    let shown = clients.iter().filter(|client| all || is_of_interest(client));
    let rows: Vec<_> = shown.map(|client| row(client, home)).collect();
    if rows.is_empty() { String::new() } else { table(&HEAD, rows, &FIT, width) }
}

fn is_of_interest(client: &ClientInfo) -> bool {
    client.installed || client.chosen || client.entries.iter().any(is_managed)
}

fn row(client: &ClientInfo, home: Option<&Path>) -> Vec<Cell> {
    let yes = |so| if so { Cell::painted("yes", paint::good) } else { Cell::new("-") };
    let servers = client.entries.iter().filter(|entry| is_in_file(entry)).count();
    let paint = if client.exists { str::to_owned } else { paint::faint };
    vec![
        Cell::painted(&client.id, paint::strong),
        Cell::new(&client.product),
        yes(client.installed),
        yes(client.chosen),
        Cell::new(servers.to_string()),
        Cell::painted(tilde(&client.file, home), paint),
    ]
}

/// Problems and hints that are not in the table.
fn notes(clients: &[ClientInfo], home: Option<&Path>) -> Vec<String> {
    let line = |(ids, problem): (Vec<&str>, Problem)| {
        let ids = paint::warning(&format!("{}:", ids.join(", ")));
        home_as_tilde(&format!("{ids} {}; {}", problem.what, problem.help), home)
    };
    problems_of_all(clients).into_iter().map(line).chain(next(clients)).collect()
}

/// The hint if no client has been added yet.
fn next(clients: &[ClientInfo]) -> Option<String> {
    if clients.iter().any(|client| client.chosen) {
        return None;
    }
    Some(match clients.iter().find(|client| client.installed) {
        Some(ClientInfo { id, .. }) => {
            format!(
                "no client has been added yet: `mainstay client add {id}` adds your servers to this one"
            )
        }
        None => NONE_FOUND.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use mainstay_api::EntryStanding as S;

    use super::*;
    use crate::clients::tests::{client, entry};

    fn clients() -> Vec<ClientInfo> {
        let mut cursor = client(
            "cursor",
            vec![entry("time", S::Ours), entry("web", S::Withdrawn), entry("yours", S::Foreign)],
        );
        cursor.chosen = true;
        let mut codex = client("codex", Vec::new());
        codex.exists = false;
        codex.file = "/etc/codex.toml".into();
        let mut zed = client("zed", vec![entry("yours", S::Foreign)]);
        zed.installed = false;
        let mut kiro = client("kiro", vec![entry("time", S::Away)]);
        kiro.installed = false;
        vec![cursor, codex, zed, kiro]
    }

    fn shown(clients: &[ClientInfo], all: bool) -> String {
        let page = page(clients, all, Some(Path::new("/home/me")), None);
        anstream::adapter::strip_str(&page).to_string()
    }

    #[test]
    fn the_table_shows_installed_and_added_clients() {
        insta::assert_snapshot!(shown(&clients(), false), @"
        CLIENT  PRODUCT  INSTALLED  CHOSEN  SERVERS  FILE
        cursor  Cursor   yes        yes     1        ~/.cursor/mcp.json
        codex   Codex    yes        -       0        /etc/codex.toml
        kiro    Kiro     -          -       0        ~/.kiro/mcp.json
        ");
        assert!(shown(&clients(), true).contains("\nzed "));
    }

    #[test]
    fn problems_are_listed_below_the_table() {
        let notes = notes(&clients(), None).join("\n");
        insta::assert_snapshot!(anstream::adapter::strip_str(&notes), @"
        cursor: `web` was removed by hand and is not added again; `mainstay client add cursor` adds it again
        kiro: `time` is removed until its server is ready; see `mainstay why time`
        ");
    }

    #[test]
    fn without_added_clients_there_is_a_hint() {
        let mut clients = clients();
        clients[0].chosen = false;
        let line = next(&clients).unwrap();
        assert!(line.contains("`mainstay client add cursor`"), "{line}");
        let absent = &mut clients[2..3];
        assert_eq!(shown(absent, false), "");
        assert!(next(absent).unwrap().contains("`mainstay client ls -a`"));
    }
}
