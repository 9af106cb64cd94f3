//! `mainstay ls`

use jiff::Timestamp;
use mainstay_api::{Request, ServerInfo};
use mainstay_core::{Status, human_duration};

use crate::context::{Context, now};
use crate::error::CliError;
use crate::text::{Cell, Fit, ago, due, plain_line, since, table};
use crate::ui::paint;

const HEAD: [&str; 8] =
    ["NAME", "STATUS", "RESTARTS", "UPTIME", "ENGINE", "TRANSPORT", "SESSIONS", "URL"];

/// Columns that a narrow terminal does not get, the least useful first. A URL is useless if it is cut.
const FIT: Fit<'static> =
    Fit { dispensable: &["TRANSPORT", "SESSIONS", "ENGINE"], essential: Some("URL") };

/// The most servers whose silence is explained.
const MAX_SILENT: usize = 10;

/// List servers
///
/// A narrow terminal gets fewer columns, and long values are cut; a file or a pipe gets everything. Standard error says
/// what servers do that do not answer, or do not become ready.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show stopped servers too
    #[arg(short, long)]
    all: bool,
    /// Print all servers as a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let servers: Vec<ServerInfo> = ctx.ask("asking the daemon", &Request::List).await?;
    let now = now();
    if !args.json
        && let Some(hint) = hint(&servers, args.all)
    {
        ctx.ui.message(hint);
    }
    if !args.json && servers.iter().any(|server| server.url.is_none()) {
        ctx.warn_if_not_listening().await;
    }
    let width = ctx.ui.width();
    ctx.ui.answer(args.json, &servers, |servers| page(servers, args.all, now, width))?;
    if !args.json {
        let silent = servers.iter().filter_map(silent).take(MAX_SILENT);
        silent.for_each(|line| ctx.ui.message(line));
    }
    Ok(())
}

/// What is known about a server that does not answer, or does not become ready.
fn silent(server: &ServerInfo) -> Option<String> {
    let is_silent = server.silence.is_some() || server.start.is_some();
    is_silent.then(|| format!("{}: {}", server.name, plain_line(&server.reason)))
}

/// The table, or nothing if there is nothing to show.
fn page(servers: &[ServerInfo], all: bool, now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<_> = servers
        .iter()
        .filter(|server| all || !hidden(server))
        .map(|server| row(server, now))
        .collect();
    if rows.is_empty() { String::new() } else { table(&HEAD, rows, &FIT, width) }
}

fn row(server: &ServerInfo, now: Timestamp) -> Vec<Cell> {
    let uptime = server.started_at.filter(|_| server.status.is_up());
    vec![
        Cell::painted(server.name.as_str(), paint::strong),
        Cell::painted(status(server, now), paint::status(server.status)),
        Cell::new(restarts(server, now)),
        Cell::new(uptime.map_or("-".to_owned(), |at| human_duration(since(at, now)))),
        Cell::new(&server.engine),
        Cell::new(&server.transport),
        Cell::new(server.sessions.to_string()),
        Cell::new(server.url.as_deref().unwrap_or("-")),
    ]
}

/// The status; of a server that waits for its next restart, also when that is due.
fn status(server: &ServerInfo, now: Timestamp) -> String {
    match (server.status, server.next_restart_at) {
        (Status::Restarting, Some(at)) => format!("{} {}", server.status, due(at, now)),
        (status, _) => status.to_string(),
    }
}

/// All restarts and how long ago the last one was: "7 (34 s ago)".
pub(super) fn restarts(server: &ServerInfo, now: Timestamp) -> String {
    let total = server.restarts_total;
    match server.last_restart_at {
        Some(at) if total > 0 => format!("{total} ({})", ago(at, now)),
        Some(_) | None => total.to_string(),
    }
}

fn hidden(server: &ServerInfo) -> bool {
    server.status == Status::Stopped
}

/// Hints that are not in the table.
fn hint(servers: &[ServerInfo], all: bool) -> Option<String> {
    if servers.is_empty() {
        return Some(
            "no servers yet; the first one: mainstay run time -- uvx mcp-server-time".to_owned(),
        );
    }
    match servers.iter().filter(|server| hidden(server)).count() {
        0 => None,
        _ if all => None,
        1 => Some("1 stopped server not shown: mainstay ls -a".to_owned()),
        count => Some(format!("{count} stopped servers not shown: mainstay ls -a")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mainstay_api::SilenceInfo;

    use super::*;

    /// A call that has waited for long.
    pub(crate) fn overdue() -> SilenceInfo {
        SilenceInfo {
            verdict: "overdue".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            call: Some("slow".to_owned()),
            call_sent_at: Some(Timestamp::UNIX_EPOCH),
            overdue_calls: 1,
            unread_bytes: Some(0),
            quiet_since: None,
            waits_for: None,
            unanswered_probes: Vec::new(),
            holds_requests: false,
            stopped_pid: None,
            kill_at: None,
        }
    }

    /// A server in this status, as the daemon would describe it.
    pub(crate) fn server(name: &str, status: Status) -> ServerInfo {
        ServerInfo {
            name: name.parse().unwrap(),
            status,
            reason: String::new(),
            engine: "process".to_owned(),
            transport: "stdio".to_owned(),
            url: None,
            generation: 1,
            restarts: 0,
            restart_max: 10,
            restarts_total: 0,
            last_restart_at: None,
            started_at: None,
            ready_at: None,
            next_restart_at: None,
            last_exit: None,
            start: None,
            silence: None,
            sessions: 0,
            pid: None,
            container_id: None,
        }
    }

    #[test]
    fn the_table_shows_what_is_not_stopped() {
        let mut time = server("time", Status::Running);
        time.started_at = Some(Timestamp::from_second(0).unwrap());
        time.restarts_total = 7;
        time.last_restart_at = Some(Timestamp::from_second(7_226).unwrap());
        let mut loops = server("loops", Status::Restarting);
        loops.next_restart_at = Some(Timestamp::from_second(7_280).unwrap());
        let mut web = server("web", Status::Error);
        web.url = Some("http://127.0.0.1:8080/mcp".to_owned());
        let servers = [time, loops, web, server("old", Status::Stopped)];
        let now = Timestamp::from_second(7_260).unwrap();
        let show_within =
            |all, width| anstream::adapter::strip_str(&page(&servers, all, now, width)).to_string();
        let show = |all| show_within(all, None);
        insta::assert_snapshot!(show(false), @"
        NAME   STATUS              RESTARTS      UPTIME     ENGINE   TRANSPORT  SESSIONS  URL
        time   running             7 (34 s ago)  2 h 1 min  process  stdio      0         -
        loops  restarting in 20 s  0             -          process  stdio      0         -
        web    error               0             -          process  stdio      0         http://127.0.0.1:8080/mcp
        ");
        insta::assert_snapshot!(show_within(false, Some(80)), @"
        NAME   STATUS              RESTARTS      UPTIME     URL
        time   running             7 (34 s ago)  2 h 1 min  -
        loops  restarting in 20 s  0             -          -
        web    error               0             -          http://127.0.0.1:8080/mcp
        ");
        let narrow = show_within(false, Some(64));
        assert!(narrow.contains("  http://127.0.0.1:8080/mcp"), "{narrow}");
        assert!(show(true).contains("\nold "));
        assert_eq!(hint(&servers, false).unwrap(), "1 stopped server not shown: mainstay ls -a");
        assert_eq!(hint(&servers, true), None);
    }

    #[test]
    fn without_servers_there_is_no_table() {
        assert_eq!(page(&[], false, Timestamp::UNIX_EPOCH, None), "");
        assert!(hint(&[], true).unwrap().contains("mainstay run"));
    }
}
