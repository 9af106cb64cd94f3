//! `mainstay logs`

use std::cell::RefCell;

use futures_util::future::try_join_all;
use jiff::Timestamp;
use mainstay_api::{LogLine, Request, ServerInfo};
use mainstay_core::ServerName;

use crate::context::{Context, now};
use crate::error::CliError;
use crate::remote::Remote;
use crate::times::{Zone, ZoneArgs};
use crate::ui::{Ui, paint};

/// Print the logs of servers
///
/// A log has what a server wrote to standard error, and lines on standard output that are not MCP
/// messages. Each line is printed with the time at which it was written; lines of 0.1.0 have none. On a
/// terminal only text and colours are printed; a file or a pipe gets the bytes that the server wrote.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of servers; with several, each line begins with the name
    #[arg(required = true, value_name = "NAME")]
    names: Vec<ServerName>,
    /// Keep printing new lines
    #[arg(short, long)]
    follow: bool,
    /// Print only the last N lines of each server
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Print only lines since this time: `10m`, `2h`, `14:30`, `2026-05-01 14:30`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Print only lines that match this regular expression
    #[arg(long, value_name = "PATTERN")]
    grep: Option<String>,
    /// Print the lines only, without times and names
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print each line as a JSON object
    #[arg(long)]
    json: bool,
}

/// How lines are printed.
struct Format {
    json: bool,
    raw: bool,
    /// The width of the names, if there are several.
    names: Option<usize>,
    zone: Zone,
    /// Whether names and times are painted.
    painted: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let zone = args.zone.zone();
    let since = args.since.as_deref().map(|text| zone.moment(text, now())).transpose();
    let since = since.map_err(|error| CliError::usage(format!("--since: {error}")))?;
    let remote = Remote::of(ctx)?;
    let several = args.names.len() > 1;
    let widest = args.names.iter().map(|name| name.as_str().len()).max();
    let format = Format {
        json: args.json,
        raw: args.raw,
        names: widest.filter(|_| several),
        zone,
        painted: ctx.ui.is_terminal(),
    };
    for name in remote_among(&args.names, ctx).await? {
        ctx.ui.message(format!("{name} is a remote server, which has no log here"));
    }
    let ui = RefCell::new(&mut ctx.ui);
    let collected = RefCell::new(Vec::new());
    let streams = args.names.iter().map(|name| {
        let request = Request::Logs {
            name: name.clone(),
            tail: args.tail,
            follow: args.follow,
            since,
            grep: args.grep.clone(),
        };
        let (remote, format, ui, collected) = (&remote, &format, &ui, &collected);
        async move {
            let each = |lines: Vec<LogLine>| {
                // Lines of several servers are printed in the order of their times.
                if several && !args.follow {
                    collected.borrow_mut().extend(lines);
                    return Ok(());
                }
                print(&lines, format, &mut ui.borrow_mut())
            };
            remote.stream::<LogLine, ()>(&request, each).await
        }
    });
    try_join_all(streams).await?;
    print(&in_order(collected.take()), &format, &mut ui.borrow_mut())
}

/// The remote servers of these names.
async fn remote_among(names: &[ServerName], ctx: &Context) -> Result<Vec<ServerName>, CliError> {
    let servers: Vec<ServerInfo> = ctx.ask("asking the daemon", &Request::List).await?;
    let remote = servers.into_iter().filter(ServerInfo::is_remote).map(|server| server.name);
    Ok(remote.filter(|name| names.contains(name)).collect())
}

fn print(lines: &[LogLine], format: &Format, ui: &mut Ui) -> Result<(), CliError> {
    if format.json {
        return ui.items(true, lines, |line| line.line.clone());
    }
    let text: String = lines.iter().map(|line| shown(line, format) + "\n").collect();
    ui.data(&text)
}

fn shown(line: &LogLine, format: &Format) -> String {
    let mut text = String::new();
    if !format.raw {
        let paint = |paint: fn(&str) -> String, text: &str| {
            if format.painted { paint(text) } else { text.to_owned() }
        };
        if let (Some(width), Some(server)) = (format.names, &line.server) {
            text.push_str(&paint(paint::note, &format!("{:<width$}", server.as_str())));
            text.push_str("  ");
        }
        if let Some(at) = line.at {
            text.push_str(&paint(paint::faint, &format.zone.to_the_millisecond(at)));
            text.push_str("  ");
        }
    }
    text + &line.line
}

/// Lines of several servers by their times. One without a time stays behind the one before it.
fn in_order(lines: Vec<LogLine>) -> Vec<LogLine> {
    let mut last = (None, Timestamp::MIN);
    let mut timed: Vec<(Timestamp, LogLine)> = Vec::with_capacity(lines.len());
    for line in lines {
        if last.0 != line.server {
            last = (line.server.clone(), Timestamp::MIN);
        }
        last.1 = line.at.unwrap_or(last.1);
        timed.push((last.1, line));
    }
    timed.sort_by_key(|(at, _)| *at);
    timed.into_iter().map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(server: &str, second: Option<i64>, text: &str) -> LogLine {
        LogLine {
            server: Some(server.parse().unwrap()),
            at: second.map(|second| Timestamp::from_second(second).unwrap()),
            line: text.to_owned(),
        }
    }

    #[test]
    fn a_line_is_shown_with_its_time_and_among_several_servers_its_name() {
        let check = |names, raw, line: &LogLine, expected: &str| {
            let format = Format { json: false, raw, names, zone: Zone::utc(), painted: false };
            assert_eq!(shown(line, &format), expected);
        };
        let up = line("time", Some(1), "up");
        check(None, false, &up, "1970-01-01 00:00:01.000  up");
        check(Some(6), false, &up, "time    1970-01-01 00:00:01.000  up");
        check(Some(6), true, &up, "up");
        check(None, false, &line("time", None, "old"), "old");
    }

    #[test]
    fn lines_of_several_servers_are_in_the_order_of_their_times() {
        let lines = vec![
            line("a", None, "a0"),
            line("a", Some(1), "a1"),
            line("a", Some(3), "a2"),
            line("a", None, "a3"),
            line("b", Some(2), "b1"),
        ];
        let order: Vec<String> = in_order(lines).into_iter().map(|line| line.line).collect();
        assert_eq!(order, ["a0", "a1", "b1", "a2", "a3"]);
    }
}
