//! `mainstay why`: explains why a server does not work.

mod advice;
mod steps;

use jiff::Timestamp;
use mainstay_api::{EventRecord, LastExit, Request, ServerInfo, WhyReport};
use mainstay_core::{ServerName, Status};

use self::advice::advice;
use self::steps::{Step, steps};
use crate::context::{Context, now};
use crate::error::CliError;
use crate::text::{Cell, ago, clip, columns, due, plain_line, reason};
use crate::times::{Zone, ZoneArgs};
use crate::ui::paint;

const INDENT: &str = "  ";

/// Longer log lines are cut; `mainstay logs` prints them in full.
const LONGEST_LINE: usize = 500;

/// Explain what happened to a server, why, and what happens next
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let report = ask(args.name, ctx).await?;
    let when = When { now: now(), zone: args.zone.zone() };
    let width = ctx.ui.width();
    ctx.ui.answer(args.json, &report, |report| page(report, &when, width))
}

/// Now, and how times are printed.
struct When {
    now: Timestamp,
    zone: Zone,
}

/// Requests the report about a server, without the lines of its log that Mainstay wrote.
pub(super) async fn ask(name: ServerName, ctx: &Context) -> Result<WhyReport, CliError> {
    let mut report: WhyReport = ctx.ask("asking the daemon", &Request::Why { name }).await?;
    report.stderr.retain(|line| !is_marker(line));
    Ok(report)
}

/// The whole page: the status first, then each section that is not empty.
fn page(report: &WhyReport, when: &When, width: Option<usize>) -> String {
    let width = width.map(|width| width.saturating_sub(INDENT.len()));
    let server = &report.server;
    let sections = [
        ("What happened", what_happened(report, when, width)),
        (
            "Last end",
            server.last_exit.as_ref().map(|exit| last_end(exit, server, when)).unwrap_or_default(),
        ),
        ("Last lines on standard error", last_lines(&report.stderr, width)),
        ("On standard output, which is for MCP messages only", last_lines(&report.stdout, width)),
        ("Restarts", restarts(server, when.now)),
        ("What happens next", next(server, when)),
        ("What you can do", bullets(&advice(report))),
    ];
    let mut page = verdict(server);
    for (title, body) in sections.iter().filter(|(_, body)| !body.is_empty()) {
        page.push_str("\n\n");
        page.push_str(&paint::strong(title));
        for line in body.lines() {
            page.push('\n');
            page.push_str(INDENT);
            page.push_str(line);
        }
    }
    page
}

/// The first line: the status and its reason.
fn verdict(server: &ServerInfo) -> String {
    let ServerInfo { name, status, .. } = server;
    let word = if *status == Status::Error { "down" } else { status.as_str() };
    let line = format!("{name} is {}", paint::status(*status)(word));
    let reason = reason(server);
    match reason.as_deref().map(|reason| (reason, reason.strip_prefix(word))) {
        // "blocked in `add` for 3 min"
        Some((_, Some(rest))) if rest.starts_with(' ') => format!("{line}{rest}"),
        Some((reason, _)) => format!("{line}: {reason}"),
        None => line,
    }
}

/// The timeline of the server. Events of an earlier server with the same name are left out.
fn what_happened(report: &WhyReport, when: &When, width: Option<usize>) -> String {
    let WhyReport { server, events, .. } = report;
    let removal = events.iter().rposition(|event| event.event == "removed");
    let Some(removal) = removal.filter(|_| server.status != Status::Removing) else {
        return timeline(events, when, width);
    };
    let ago = ago(events[removal].at, when.now);
    format!(
        "an earlier server of this name was removed {ago}; see `mainstay events {}`\n{}",
        server.name,
        timeline(&events[removal + 1..], when, width)
    )
}

fn timeline(events: &[EventRecord], when: &When, width: Option<usize>) -> String {
    let row = |step: &Step| {
        let EventRecord { at, run, event, .. } = step.shown();
        let run = run.map(|run| format!("run {run}")).unwrap_or_default();
        vec![
            Cell::painted(when.zone.clock(*at), paint::faint),
            Cell::painted(ago(*at, when.now), paint::faint),
            Cell::new(run),
            Cell::new(event),
            Cell::new(step.detail()),
        ]
    };
    columns(width, steps(events).iter().map(row))
}

/// When and how the last run ended. The first line of the page may have the description already.
fn last_end(exit: &LastExit, server: &ServerInfo, when: &When) -> String {
    let mut facts = vec![format!("cause {}", exit.cause)];
    facts.extend(exit.code.map(|code| format!("exit code {code}")));
    facts.extend(exit.signal.map(|signal| format!("signal {signal}")));
    facts.extend(exit.oom.then(|| "out of memory".to_owned()));
    let facts = facts.join(", ");
    let time = format!("{} ({})", ago(exit.at, when.now), when.zone.clock(exit.at));
    if reason(server).is_some_and(|reason| reason.contains(&plain_line(&exit.detail))) {
        return format!("{time}, {facts}");
    }
    format!("{}, {time}\n{facts}", plain_line(&exit.detail))
}

/// Whether Mainstay wrote a line of a log to mark the begin or end of a run, as in
/// `--- run 7 started, pid 4711, ... ---` and `--- run 7, container 3f2a9c01b7d4 ---`.
pub(super) fn is_marker(line: &str) -> bool {
    let inner = line.strip_prefix("--- run ").and_then(|line| line.strip_suffix(" ---"));
    let number = inner.and_then(|inner| inner.split_once([' ', ','])).map(|(number, _)| number);
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The last lines of the server. A terminal gets two rows of each at most.
fn last_lines(lines: &[String], width: Option<usize>) -> String {
    let longest = width.map_or(LONGEST_LINE, |width| (2 * width).clamp(40, LONGEST_LINE) - 20);
    let shown = |line: &String| {
        let line = plain_line(line);
        let (count, cut) = (line.chars().count(), clip(&line, longest));
        let note = if count > longest { format!(" ({count} characters)") } else { String::new() };
        format!("{} {cut}{}", paint::faint("|"), paint::faint(&note))
    };
    lines.iter().map(shown).collect::<Vec<_>>().join("\n")
}

fn restarts(server: &ServerInfo, now: Timestamp) -> String {
    let (used, max) = (server.restarts, server.restart_max);
    let mut facts = vec![match max {
        0 => "none: it is never restarted".to_owned(),
        _ => format!("{used} of {max} used, {} left", max.saturating_sub(used)),
    }];
    facts.extend(server.next_restart_at.map(|at| format!("the next one {}", due(at, now))));
    let all = server.restarts_total;
    let last = server.last_restart_at.map(|at| format!(", the last one {}", ago(at, now)));
    facts.extend((all > 0).then(|| format!("{all} in total{}", last.unwrap_or_default())));
    facts.join("; ")
}

fn next(server: &ServerInfo, when: &When) -> String {
    match (server.status, server.next_restart_at) {
        (Status::Restarting, Some(at)) => {
            format!("It is restarted {} ({}).", due(at, when.now), when.zone.clock(at))
        }
        (Status::Starting, _) | (Status::Restarting, None) => {
            let starting = "It is starting; it is ready when it has answered `initialize`.";
            match server.start.as_ref().and_then(|start| start.kill_at) {
                Some(at) => {
                    let (due, clock) = (due(at, when.now), when.zone.clock(at));
                    format!("{starting} Otherwise it is ended {due} ({clock}, `--start-timeout`).")
                }
                None => starting.to_owned(),
            }
        }
        (Status::Running, _) if is_overdue(server) => {
            if server.silence.as_ref().is_some_and(|silence| silence.holds_requests) {
                let limit = limit(server, "--hang-after", when);
                format!("New requests wait until it reads again. {limit}")
            } else {
                "The call is waited for. The server is not killed for this.".to_owned()
            }
        }
        (Status::Running, _) if server.restart_max > 0 => {
            "It is watched, and restarted when it ends.".to_owned()
        }
        (Status::Running, _) => "It is watched, but not restarted when it ends.".to_owned(),
        (Status::Busy, _) => {
            format!("New requests wait until it reads again. {}", limit(server, "--busy-limit", when))
        }
        (Status::Blocked, _) => {
            format!("New requests wait until this call ends. {}", limit(server, "--block-limit", when))
        }
        (Status::Hung, _) => "It is killed and restarted.".to_owned(),
        (Status::Suspended, _) => {
            "Requests wait until its process continues. It is never killed for this.".to_owned()
        }
        (Status::Unresponsive, _) => {
            "Requests wait until it answers; new connections to it are tried. It is not killed, because what it does cannot be seen.".to_owned()
        }
        (Status::Unhealthy, _) => "If it does not answer, it is killed and restarted.".to_owned(),
        (Status::Waiting, _) => {
            "It continues when what it waits for is back; this does not count toward the restart limit.".to_owned()
        }
        (Status::Stopping, _) => "It is being stopped.".to_owned(),
        (Status::Removing, _) => "It is being stopped and removed.".to_owned(),
        (Status::Error, _) if is_given_up(server) => {
            "It is started again when a client calls it, at most once in 5 minutes.".to_owned()
        }
        (Status::Stopped | Status::Error, _) => "Nothing, until you start it.".to_owned(),
    }
}

/// When a silent server is killed by this option.
fn limit(server: &ServerInfo, option: &str, when: &When) -> String {
    match server.silence.as_ref().and_then(|silence| silence.kill_at) {
        Some(at) => {
            let (due, clock) = (due(at, when.now), when.zone.clock(at));
            format!("If it stays as it is, it is killed {due} ({clock}, `{option}`).")
        }
        None => format!("It is not killed: `{option}` is `never`."),
    }
}

/// Whether a server that is running has not answered a call for long, and nothing is proven about it.
pub(super) fn is_overdue(server: &ServerInfo) -> bool {
    server.silence.as_ref().is_some_and(|silence| !silence.is_proven())
}

/// Whether a server that failed was running, unlike one that cannot start at all.
fn is_given_up(server: &ServerInfo) -> bool {
    server.last_exit.as_ref().is_some_and(|exit| exit.cause != "cannot-start")
}

fn bullets(lines: &[String]) -> String {
    lines.iter().map(|line| format!("- {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use mainstay_core::Wanted;

    use super::super::ls::tests::{overdue, server};
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(second: i64, event: &str, detail: &str) -> EventRecord {
        EventRecord {
            at: at(second),
            server: None,
            run: Some(4),
            event: event.to_owned(),
            cause: None,
            detail: detail.to_owned(),
        }
    }

    fn shown(report: &WhyReport) -> String {
        anstream::adapter::strip_str(&page(report, &When { now: at(100), zone: Zone::utc() }, None))
            .to_string()
    }

    #[test]
    fn a_crash_loop_has_a_complete_page() {
        let mut time = server("time", Status::Restarting);
        time.reason = "exited 1 after 3 s, restart 4 of 10 in 20 s".to_owned();
        time.restarts = 4;
        time.restarts_total = 9;
        time.last_restart_at = Some(at(98));
        time.next_restart_at = Some(at(120));
        time.last_exit = Some(LastExit {
            cause: "exited".to_owned(),
            detail: "exited 1 after 3 s".to_owned(),
            code: Some(1),
            signal: None,
            oom: false,
            at: at(98),
        });
        let report = WhyReport {
            server: time,
            wanted: Wanted::On,
            events: vec![event(95, "started", ""), event(98, "ended", "exited 1 after 3 s")],
            stderr: vec!["\u{1b}[31mNo module named mcp\u{1b}[0m".to_owned()],
            stdout: Vec::new(),
            log: "/state/logs/time.log".into(),
            session_logs: None,
            clients: None,
        };
        insta::assert_snapshot!(shown(&report), @"
        time is restarting: exited 1 after 3 s, restart 4 of 10 in 20 s

        What happened
          00:01:38 UTC  2 s ago  run 4  ended  exited 1 after 3 s

        Last end
          2 s ago (00:01:38 UTC), cause exited, exit code 1

        Last lines on standard error
          | No module named mcp

        Restarts
          4 of 10 used, 6 left; the next one in 20 s; 9 in total, the last one 2 s ago

        What happens next
          It is restarted in 20 s (00:02:00 UTC).

        What you can do
          - it exited with an error: its last lines usually show why
          - `mainstay logs time` prints its whole log (/state/logs/time.log)
          - `mainstay restart time` restarts it now and resets the counter; `mainstay stop time` stops it
        ");
    }

    #[test]
    fn a_failed_server_is_retried_unless_it_cannot_start() {
        let next_of = |cause: &str| {
            let exit = LastExit {
                cause: cause.to_owned(),
                detail: String::new(),
                code: None,
                signal: None,
                oom: false,
                at: at(0),
            };
            let failed = ServerInfo { last_exit: Some(exit), ..server("time", Status::Error) };
            next(&failed, &When { now: at(1), zone: Zone::utc() })
        };
        assert!(next_of("exited").contains("at most once in 5 minutes"), "{}", next_of("exited"));
        assert!(next_of("cannot-start").starts_with("Nothing,"), "{}", next_of("cannot-start"));
    }

    #[test]
    fn run_markers_are_recognized() {
        assert!(is_marker("--- run 1 started, pid 4711, 2026-05-01T14:03:59Z ---"));
        assert!(is_marker("--- run 12 exited with code 3 ---"));
        assert!(is_marker("--- run 1, container 3f2a9c01b7d4 ---"));
        for word in ["--- run 1 ---", "--- run x started ---", "run 1 started", "--- run 1 began"] {
            assert!(!is_marker(word), "{word}");
        }
    }

    #[test]
    fn the_end_of_a_limit_is_shown() {
        let check = |status, kill_at, expected: &str| {
            let mut server = server("time", status);
            server.silence = Some(mainstay_api::SilenceInfo { kill_at, ..overdue() });
            let when = When { now: at(0), zone: Zone::utc() };
            assert_eq!(next(&server, &when), expected);
        };
        check(
            Status::Blocked,
            Some(at(90)),
            "New requests wait until this call ends. If it stays as it is, it is killed in 1 min 30 s (00:01:30 UTC, `--block-limit`).",
        );
        let endless =
            "New requests wait until it reads again. It is not killed: `--busy-limit` is `never`.";
        check(Status::Busy, None, endless);
    }

    #[test]
    fn the_end_of_a_slow_start_is_shown() {
        let mut server = server("time", Status::Starting);
        let when = When { now: at(0), zone: Zone::utc() };
        let starting = "It is starting; it is ready when it has answered `initialize`.";
        assert_eq!(next(&server, &when), starting);
        server.start = Some(mainstay_api::StartInfo {
            activity: "downloading".to_owned(),
            description: String::new(),
            child: None,
            has_read: None,
            unread_bytes: None,
            connections: 0,
            quiet_since: None,
            waits_for: None,
            kill_at: Some(at(90)),
        });
        let ended = " Otherwise it is ended in 1 min 30 s (00:01:30 UTC, `--start-timeout`).";
        assert_eq!(next(&server, &when), format!("{starting}{ended}"));
    }

    #[test]
    fn a_healthy_server_has_a_short_page() {
        let mut time = server("time", Status::Running);
        time.reason = "ready".to_owned();
        let report = WhyReport {
            server: time,
            wanted: Wanted::On,
            events: Vec::new(),
            stderr: Vec::new(),
            stdout: Vec::new(),
            log: "/state/logs/time.log".into(),
            session_logs: None,
            clients: None,
        };
        insta::assert_snapshot!(shown(&report), @"
        time is running: ready

        Restarts
          0 of 10 used, 10 left

        What happens next
          It is watched, and restarted when it ends.
        ");
    }
}
