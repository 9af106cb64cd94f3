//! Advice about a server, from its status, exit, events and output.

mod clients;
mod container;
mod port;
mod variable;

use mainstay_api::{EventRecord, LastExit, ServerInfo, WhyReport};
use mainstay_core::{ServerName, Status};

use super::is_overdue;

/// The transport without an address.
const STDIO: &str = "stdio";

/// Advice, most useful first. None for a healthy server without a recent problem of a session's own run.
pub(super) fn advice(report: &WhyReport) -> Vec<String> {
    on_status(report)
        .into_iter()
        .chain(on_session_logs(report))
        .chain(clients::on_events(&report.events, report.clients.as_ref()))
        .collect()
}

fn on_status(report: &WhyReport) -> Vec<String> {
    let server = &report.server;
    let name = &server.name;
    let ended = server.last_exit.as_ref().map(|exit| on_exit(exit, report));
    match server.status {
        Status::Stopping | Status::Removing => Vec::new(),
        Status::Stopped => vec![format!("`mainstay start {name}` starts it")],
        Status::Running if is_overdue(server) => {
            let seen = if server.is_remote() { "look at it where it runs" } else { "its log may show what it does" };
            let has_call = server.silence.as_ref().is_some_and(|silence| silence.overdue_calls > 0);
            let cancel = if has_call { "; the client can cancel the call" } else { "" };
            vec![
                format!("{seen}{cancel}"),
                format!("`mainstay restart {name}` restarts it now"),
            ]
        }
        Status::Running => ended.into_iter().collect(),
        Status::Busy => vec![
            format!(
                "wait, or `mainstay restart {name}`: calls that it has not read go to the next run"
            ),
            format!(
                "`mainstay run {name} --replace --busy-limit TIME` changes the limit, and restarts it now"
            ),
        ],
        Status::Blocked => vec![
            "end what it waits for, such as a login; or let the client cancel the call: if it still reads nothing then, \
             it is killed after `--hang-after`"
                .to_owned(),
            format!("`mainstay restart {name}`: calls that it has not read go to the next run"),
            format!(
                "`mainstay run {name} --replace --block-limit TIME` changes the limit, and restarts it now"
            ),
        ],
        Status::Suspended => {
            vec![resume(server), format!("`mainstay restart {name}` kills it and restarts it")]
        }
        Status::Unresponsive if server.is_remote() => vec![format!(
            "look at it where it runs; `mainstay restart {name}` opens new sessions with it"
        )],
        Status::Hung | Status::Unresponsive => {
            vec![format!("its log may show why; `mainstay restart {name}` restarts it now")]
        }
        // Its last exit is not what it waits for.
        Status::Waiting if container::is_contained(server) => vec![container::on_wait(server)],
        Status::Starting
        | Status::Restarting
        | Status::Unhealthy
        | Status::Waiting
        | Status::Error => {
            let unset = variable::advice(name, &report.stderr);
            let ended = unset.into_iter().chain(ended);
            on_slow_start(server).into_iter().chain(ended).chain(on_output(report)).chain(on_fix(server)).collect()
        }
    }
}

/// Advice on a start that takes long.
fn on_slow_start(server: &ServerInfo) -> Vec<String> {
    let Some(start) = server.start.as_ref().filter(|_| server.status == Status::Starting) else {
        return Vec::new();
    };
    if start.activity == "suspended" && start.child.is_none() {
        return vec![resume(server)];
    }
    let name = &server.name;
    let later = "starts it again, with more time";
    vec![
        format!("`mainstay logs {name} -f` shows what it prints"),
        format!("`mainstay run {name} --replace --start-timeout TIME` {later}"),
    ]
}

fn resume(server: &ServerInfo) -> String {
    let stopped = server.silence.as_ref().and_then(|silence| silence.stopped_pid).or(server.pid);
    stopped.map_or_else(
        || "let its process continue (SIGCONT)".to_owned(),
        |pid| format!("`kill -CONT {pid}` lets its process continue, unless a debugger or a frozen cgroup holds it"),
    )
}

/// What was known about the last run that ended, when it ended.
fn last_verdict(events: &[EventRecord]) -> Option<&str> {
    let end = events.iter().rposition(|event| event.event == "ended")?;
    let (earlier, ended) = (&events[..end], &events[end]);
    let is_verdict = |event: &&EventRecord| {
        event.run == ended.run && EventRecord::VERDICTS.contains(&event.event.as_str())
    };
    earlier.iter().rfind(is_verdict).map(|event| event.event.as_str())
}

/// Advice that depends on the exit.
fn on_exit(exit: &LastExit, report: &WhyReport) -> String {
    let ServerInfo { name, transport, .. } = &report.server;
    let is_remote = report.server.is_remote();
    let ever_ready = report.events.iter().any(|event| event.event == "ready");
    let verdict = last_verdict(&report.events);
    if container::is_contained(&report.server)
        && let Some(advice) = container::on_exit(exit, report, ever_ready)
    {
        return advice;
    }
    if let Some(advice) = on_last_activity(exit, name) {
        return advice;
    }
    // A container may have both; the signal is more specific.
    let code = exit.code.filter(|_| exit.signal.is_none());
    match (exit.cause.as_str(), code, exit.signal) {
        _ if exit.oom => "it ran out of memory: give it more memory, or less to do".to_owned(),
        ("cannot-start", ..) if is_remote => format!(
            "fix the problem above, then `mainstay restart {name}`, or change it: `mainstay run {name} --replace --url URL --header NAME=VALUE`"
        ),
        ("hung" | "not-ready", ..) if is_remote && !ever_ready => format!(
            "something answers at that URL, but not as an MCP server: check the URL (`mainstay status {name}`) \
             and the headers, then `mainstay run {name} --replace --url URL --header NAME=VALUE`"
        ),
        ("hung" | "not-ready", ..) if is_remote => {
            "it no longer answered: ask its operator".to_owned()
        }
        ("cannot-start" | "hung" | "not-ready", ..) if is_port_conflict(exit) => format!(
            "stop the other program, then `mainstay restart {name}`, or give this server another port: \
             `mainstay run {name} --replace --transport {transport} --target-port PORT -- COMMAND`"
        ),
        ("cannot-start", ..) => format!(
            "fix the problem above, then `mainstay restart {name}`, or change it: `mainstay run {name} --replace -- COMMAND`"
        ),
        ("hung" | "not-ready", ..) if exit.detail.contains("404") && transport != STDIO => format!(
            "it answers, but not at that path: give the path of its MCP endpoint with `--path`, as in \
             `mainstay run {name} --replace --transport {transport} --target-port PORT --path /mcp -- COMMAND`"
        ),
        ("hung" | "not-ready", ..) if !ever_ready && transport == STDIO => format!(
            "it never answered `initialize`: check that the command starts an MCP server that uses stdio, or give it more time with `--start-timeout`{}",
            port::instead_of_stdio(&report.stderr)
        ),
        ("hung" | "not-ready", ..) if !ever_ready => format!(
            "it never answered `initialize`: check that the command starts an MCP server that uses {transport} at `--target-port` and `--path` (default /mcp), or give it more time \
             with `--start-timeout`"
        ),
        ("hung", ..) if matches!(verdict, Some("busy" | "blocked")) => {
            "a call took longer than that limit: raise it if such calls are normal".to_owned()
        }
        ("hung", ..) if verdict.is_some() => format!(
            "`mainstay logs {name}` shows what each of its threads waited for; `--hang-after never` leaves such a server alone"
        ),
        ("hung" | "not-ready", ..) => {
            "it ran but no longer answered: its log may show why".to_owned()
        }
        ("engine-away", ..) => "check that its engine runs".to_owned(),
        ("asked", ..) => "it was stopped on request".to_owned(),
        ("machine-restarted", ..) => "it ended with the machine".to_owned(),
        (_, Some(127), _) => format!(
            "exit code 127 usually means that a shell did not find a program: check the command \
             (`mainstay status {name}`) and the PATH it gets (`-e PATH`)"
        ),
        (_, Some(126), _) => {
            "exit code 126 usually means that a file is not executable: check its mode".to_owned()
        }
        (_, Some(0), _) => "it exited without an error, but a server should keep running: check whether the command needs an argument"
            .to_owned(),
        (_, Some(_), _) => {
            "it exited with an error: its last lines usually show why".to_owned()
        }
        (_, None, Some(9)) => "it was killed (kill -9); the kernel's log (`dmesg`) shows whether memory ran out"
            .to_owned(),
        (_, None, Some(4 | 6 | 7 | 8 | 11)) => {
            "it crashed: look for a newer version of it, or report this to its authors".to_owned()
        }
        (_, None, Some(_)) => "a signal ended it".to_owned(),
        (_, None, None) if is_remote => "how it ended is unknown: ask its operator".to_owned(),
        (_, None, None) => "how it ended is unknown: see its log".to_owned(),
    }
}

/// Advice after a start that took too long, by what the server did at the end.
fn on_last_activity(exit: &LastExit, name: &ServerName) -> Option<String> {
    let (_, doing) = exit.detail.split_once("at the end, ")?;
    let more_time = format!("`mainstay run {name} --replace --start-timeout TIME`");
    let is = |what: &str| doing.contains(what);
    if is(" waits for a file lock") {
        let restart = format!("`mainstay restart {name}`");
        Some(format!(
            "end the other process that has the lock, such as a second installation, or wait for it; then {restart}"
        ))
    } else if is(" is stopped (") {
        Some("let its process continue (SIGCONT): SIGSTOP, a debugger or a frozen cgroup has stopped it".to_owned())
    } else if is(" is downloading") || is(" is compiling") {
        Some(format!(
            "it was still being prepared: give it more time with {more_time}, or run that step once by hand"
        ))
    } else if is(" is working") {
        Some(format!("it was still working: give it more time with {more_time}"))
    } else {
        None
    }
}

/// Whether something else listens on its port, or should.
fn is_port_conflict(exit: &LastExit) -> bool {
    let detail = &exit.detail;
    detail.contains("port ")
        && [" in use by ", " --target-port of "].iter().any(|part| detail.contains(part))
}

/// Where its output is.
fn on_output(report: &WhyReport) -> Option<String> {
    let name = &report.server.name;
    let ran = report.server.generation > 0 || !report.stderr.is_empty();
    let here = !report.server.is_remote();
    (ran && here)
        .then(|| format!("`mainstay logs {name}` prints its whole log ({})", report.log.display()))
}

/// Where the evidence about sessions' own runs is, whose events are among those of the server.
fn on_session_logs(report: &WhyReport) -> Option<String> {
    let is_trouble = |event: &EventRecord| {
        let event = event.event.as_str();
        event == "hung" || (event != "responsive" && EventRecord::VERDICTS.contains(&event))
    };
    let logs = report.session_logs.as_ref().filter(|_| report.events.iter().any(is_trouble))?;
    Some(format!("the process of each session has a log of its own: {}", logs.display()))
}

/// What to do after the fix.
fn on_fix(server: &ServerInfo) -> Option<String> {
    let name = &server.name;
    // The advice for a server that cannot start contains this already.
    let cannot_start = server.last_exit.as_ref().is_some_and(|exit| exit.cause == "cannot-start");
    if server.status == Status::Error && !cannot_start {
        return Some(format!("after the fix, `mainstay restart {name}` starts it again"));
    }
    let waits = server.status == Status::Restarting && server.next_restart_at.is_some();
    waits.then(|| {
        format!(
            "`mainstay restart {name}` restarts it now and resets the counter; \
             `mainstay stop {name}` stops it"
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;
    use mainstay_api::EventRecord;
    use mainstay_core::Wanted;

    use super::super::super::ls::tests::{overdue, server};
    use super::*;

    pub(super) fn report(status: Status, exit: Option<LastExit>) -> WhyReport {
        let mut server = server("time", status);
        server.last_exit = exit;
        WhyReport {
            server,
            wanted: Wanted::On,
            events: Vec::new(),
            stderr: Vec::new(),
            stdout: Vec::new(),
            log: "/log".into(),
            session_logs: None,
            clients: None,
        }
    }

    fn exit(cause: &str, code: Option<i32>, signal: Option<i32>) -> LastExit {
        let at = Timestamp::UNIX_EPOCH;
        LastExit { cause: cause.to_owned(), detail: String::new(), code, signal, oom: false, at }
    }

    fn check(exit: LastExit, first: &str) {
        let given = advice(&report(Status::Error, Some(exit)));
        assert!(given[0].starts_with(first), "{given:?}");
        assert!(given.iter().any(|line| line.contains("mainstay restart time")), "{given:?}");
    }

    #[test]
    fn the_exit_decides_the_first_advice() {
        check(exit("exited", Some(127), None), "exit code 127 usually means");
        check(exit("exited", Some(126), None), "exit code 126 usually means");
        check(exit("exited", Some(0), None), "it exited without an error");
        check(exit("exited", Some(1), None), "it exited with an error");
        check(exit("exited", None, Some(9)), "it was killed");
        check(exit("exited", None, Some(11)), "it crashed");
        check(exit("exited", None, Some(15)), "a signal ended it");
        check(exit("exited", None, None), "how it ended is unknown");
        check(exit("cannot-start", None, None), "fix the problem above");
        check(LastExit { oom: true, ..exit("exited", None, Some(9)) }, "it ran out of memory");
    }

    #[test]
    fn a_server_that_never_answered_differs_from_one_that_stopped_answering() {
        let mut report = report(Status::Starting, Some(exit("hung", None, None)));
        assert!(advice(&report)[0].starts_with("it never answered `initialize`"));
        report.events.push(EventRecord {
            at: Timestamp::UNIX_EPOCH,
            server: None,
            run: Some(1),
            event: "ready".to_owned(),
            cause: None,
            detail: String::new(),
        });
        assert!(advice(&report)[0].starts_with("it ran but no longer answered"));
    }

    #[test]
    fn a_start_that_took_too_long_has_advice_for_what_it_did() {
        let check = |doing: &str, first: &str| {
            let detail =
                format!("not ready: did not answer `initialize` within 2 min: at the end, {doing}");
            check(LastExit { detail, ..exit("not-ready", None, None) }, first);
        };
        check("it waits for a file lock that another process has", "end the other process");
        check(
            "its child `npm install` is downloading (2 connections)",
            "it was still being prepared",
        );
        check("its process is stopped (SIGSTOP or a debugger)", "let its process continue");
        check(
            "it is working; it has not read `initialize` (9 bytes unread)",
            "it was still working",
        );
        check("it has read `initialize`, but does not answer", "it never answered `initialize`");
    }

    #[test]
    fn a_server_that_never_answered_may_use_another_transport_or_address() {
        let mut report = report(Status::Starting, Some(exit("hung", None, None)));
        report.stderr = vec!["Uvicorn running on http://0.0.0.0:8000 (press ^C)".to_owned()];
        insta::assert_snapshot!(
            advice(&report)[0],
            @"it never answered `initialize`: check that the command starts an MCP server that uses stdio, or give it more time with `--start-timeout`, or, if it uses HTTP, give `--transport streamable-http --target-port 8000`"
        );
        report.server.transport = "streamable-http".to_owned();
        insta::assert_snapshot!(
            advice(&report)[0],
            @"it never answered `initialize`: check that the command starts an MCP server that uses streamable-http at `--target-port` and `--path` (default /mcp), or give it more time with `--start-timeout`"
        );
    }

    #[test]
    fn a_server_that_answers_404_has_another_path_or_url() {
        let mut refused = exit("not-ready", None, None);
        refused.detail = "not ready: POST /mcp: 404 Not Found".to_owned();
        let mut report = report(Status::Restarting, Some(refused));
        report.server.transport = "streamable-http".to_owned();
        assert!(advice(&report)[0].contains("`--path`"), "{:?}", advice(&report));
        report.server.engine = "remote".to_owned();
        let given = advice(&report).join("\n");
        assert!(given.contains("check the URL") && !given.contains("the command"), "{given}");
    }

    #[test]
    fn a_server_whose_port_is_in_use_needs_another_one() {
        let mut conflict = exit("cannot-start", None, None);
        conflict.detail = "cannot start: port 80 is already in use by the server `a`".to_owned();
        let mut report = report(Status::Error, Some(conflict));
        report.server.transport = "streamable-http".to_owned();
        insta::assert_snapshot!(
            advice(&report)[0],
            @"stop the other program, then `mainstay restart time`, or give this server another port: `mainstay run time --replace --transport streamable-http --target-port PORT -- COMMAND`"
        );
    }

    #[test]
    fn a_failed_start_has_one_advice_to_restart() {
        let mut report = report(Status::Error, Some(exit("cannot-start", None, None)));
        report.server.generation = 1;
        for engine in ["process", "docker", "remote"] {
            report.server.engine = engine.to_owned();
            let given = advice(&report).join("\n");
            assert_eq!(given.matches("mainstay restart time").count(), 1, "{given}");
        }
    }

    #[test]
    fn a_remote_server_has_a_url_and_no_log() {
        let mut report = report(Status::Error, Some(exit("cannot-start", None, None)));
        report.server.generation = 1;
        report.server.engine = "remote".to_owned();
        let given = advice(&report);
        assert!(given[0].contains("--url URL --header NAME=VALUE"), "{given:?}");
        assert!(!given.iter().any(|line| line.contains("mainstay logs")), "{given:?}");
    }

    #[test]
    fn sessions_have_logs_of_their_own() {
        let mut report = report(Status::Running, None);
        report.session_logs = Some("/logs/time-*.log".into());
        assert_eq!(advice(&report), [""; 0]);
        let blocked = super::super::steps::tests::client_event(1, "", "blocked in `add`");
        report.events.push(EventRecord { event: "blocked".to_owned(), ..blocked });
        let expected = "the process of each session has a log of its own: /logs/time-*.log";
        assert_eq!(advice(&report), [expected]);
    }

    #[test]
    fn a_crash_loop_can_be_cut_short() {
        let mut report = report(Status::Restarting, Some(exit("exited", Some(1), None)));
        report.server.next_restart_at = Some(Timestamp::UNIX_EPOCH);
        assert!(advice(&report).last().unwrap().contains("`mainstay stop time`"));
    }

    #[test]
    fn a_silent_server_has_advice_for_its_status() {
        let first = |status, pid, silence| {
            let mut report = report(status, Some(exit("exited", Some(1), None)));
            (report.server.pid, report.server.silence) = (pid, silence);
            advice(&report).remove(0)
        };
        let suspended = first(Status::Suspended, Some(7), None);
        assert_eq!(
            suspended,
            "`kill -CONT 7` lets its process continue, unless a debugger or a frozen cgroup holds it"
        );
        assert!(
            first(Status::Blocked, None, None)
                .starts_with("end what it waits for, such as a login")
        );
        assert!(first(Status::Busy, None, None).contains("`mainstay restart time`"));
        let overdue = first(Status::Running, None, Some(overdue()));
        assert!(overdue.starts_with("its log may show what it does"), "{overdue}");
        let mut remote = report(Status::Running, None);
        remote.server.engine = "remote".to_owned();
        remote.server.silence = Some(super::super::super::ls::tests::overdue());
        assert!(advice(&remote)[0].starts_with("look at it where it runs"), "{remote:?}");
    }

    #[test]
    fn a_stopped_server_needs_only_a_start_and_a_healthy_one_nothing() {
        let stopped = advice(&report(Status::Stopped, Some(exit("asked", None, None))));
        assert_eq!(stopped, ["`mainstay start time` starts it"]);
        assert_eq!(advice(&report(Status::Running, None)), [""; 0]);
    }
}
