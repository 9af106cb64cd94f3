//! What a user can do about a server in a container.

use mainstay_api::{LastExit, ServerInfo, WhyReport};

use super::{STDIO, port};
use crate::text::short_id;

const SIGKILL: i32 = 9;

/// Whether a server runs in a container.
pub(super) fn is_contained(server: &ServerInfo) -> bool {
    matches!(server.engine.as_str(), "docker" | "podman")
}

/// Advice that depends on the exit. None if it is the same as for other servers.
pub(super) fn on_exit(exit: &LastExit, report: &WhyReport, ever_ready: bool) -> Option<String> {
    let server = &report.server;
    let ServerInfo { name, engine, transport, .. } = server;
    let code = exit.code.filter(|_| exit.signal.is_none());
    Some(match (exit.cause.as_str(), code) {
        _ if exit.oom => format!(
            "it ran out of memory: give it more (`mainstay run {name} --replace --image IMAGE --memory \
             SIZE`), or less to do"
        ),
        ("cannot-start", _) => on_start(&exit.detail, server),
        ("stopped", _) => format!(
            "it was stopped by `{engine} stop`; use `mainstay stop {name}` instead, or `--on-stop respect` to leave it stopped after `{engine} stop`"
        ),
        ("restarted", _) => {
            format!("it was restarted by `{engine} restart`; this does not count toward the restart limit")
        }
        ("removed", _) => format!(
            "its container was removed by `{engine} rm`; `mainstay run {name} --image IMAGE` adds it again"
        ),
        ("engine-away", _) => engine_away(engine),
        ("machine-restarted", _) => "it ended with the machine".to_owned(),
        ("hung" | "not-ready", _) if !ever_ready && transport == STDIO => format!(
            "it never answered `initialize`: check that the image is an MCP server that uses stdio, or give it more time with `--start-timeout`{}",
            port::instead_of_stdio(&report.stderr)
        ),
        ("hung" | "not-ready", _) if !ever_ready => {
            "it never answered `initialize`: check that it listens at `--target-port`, on all addresses \
             of its container (0.0.0.0), and answers at `--path` (default /mcp), or give it more time \
             with `--start-timeout`"
                .to_owned()
        }
        (_, Some(126 | 127)) => format!(
            "exit code 126 or 127 usually means that its entry point found no program to run: check \
             the image and the arguments (`mainstay status {name}`)"
        ),
        (_, Some(0)) => format!(
            "it exited without an error, but a server should keep running: check whether its entry point needs an argument (`mainstay status {name}` shows its arguments)"
        ),
        (_, None) if exit.signal == Some(SIGKILL) => format!(
            "it was killed (by `{engine} kill`?); the engine reports that memory did not run out"
        ),
        (_, Some(_) | None) => return None,
    })
}

/// What to do while it waits for something.
pub(super) fn on_wait(server: &ServerInfo) -> String {
    let ServerInfo { name, engine, reason, .. } = server;
    if reason.starts_with("another engine answers") {
        return format!(
            "start the engine that has its container; or run it on this engine: `mainstay rm {name}`, then `mainstay run {name} --image IMAGE`"
        );
    }
    if !reason.starts_with("paused") {
        return engine_away(engine);
    }
    let container = server.container_id.as_deref().map_or("CONTAINER", short_id);
    format!("`{engine} unpause {container}` resumes it, `mainstay restart {name}` restarts it")
}

fn engine_away(engine: &str) -> String {
    format!(
        "check that its engine runs (`{engine} info`); the server continues when the engine answers"
    )
}

/// What to do, given the engine's message about a failed start.
fn on_start(detail: &str, server: &ServerInfo) -> String {
    let ServerInfo { name, engine, .. } = server;
    let detail = detail.to_lowercase();
    let contains = |words: &[&str]| words.iter().any(|word| detail.contains(word));
    let first = if contains(&["no container engine", "no docker answers", "no podman answers"]) {
        "start Docker or Podman (`mainstay doctor` shows which engines are found)".to_owned()
    } else if contains(&["port is already", "address already in use", "port is taken"]) {
        "free that port, or choose another one".to_owned()
    } else if contains(&["mount", "bind source"]) {
        "check that the source of every volume exists".to_owned()
    } else if contains(&["executable file not found", "no such file or directory"]) {
        format!("check the image and its arguments (`mainstay status {name}`)")
    } else if contains(&["network"]) {
        format!("create the network (`{engine} network create`), or choose another one")
    } else if contains(&["image"]) {
        format!("pull the image (`{engine} pull`), or build it")
    } else {
        "fix the problem above".to_owned()
    };
    format!(
        "{first}, then `mainstay restart {name}`, or change it: `mainstay run {name} --replace --image IMAGE`"
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_core::Status;

    use super::super::tests::report;
    use super::*;

    fn contained(transport: &str) -> WhyReport {
        let mut report = report(Status::Error, None);
        report.server.engine = "podman".to_owned();
        report.server.transport = transport.to_owned();
        report
    }

    fn exit(cause: &str, detail: &str) -> LastExit {
        LastExit {
            cause: cause.to_owned(),
            detail: detail.to_owned(),
            code: None,
            signal: None,
            oom: false,
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn check(exit: &LastExit, expected: &str) {
        let advice = on_exit(exit, &contained("stdio"), false).unwrap();
        assert!(advice.starts_with(expected), "{advice}");
        assert!(!advice.contains("COMMAND"), "{advice}");
    }

    #[test]
    fn the_cause_decides() {
        check(&exit("stopped", ""), "it was stopped by `podman stop`; use `mainstay stop time`");
        check(&exit("restarted", ""), "it was restarted by `podman restart`");
        check(&exit("removed", ""), "its container was removed by `podman rm`");
        check(&exit("engine-away", ""), "check that its engine runs (`podman info`)");
        check(&exit("hung", ""), "it never answered `initialize`: check that the image");
        let http = on_exit(&exit("hung", ""), &contained("streamable-http"), false).unwrap();
        for part in ["`--target-port`", "(0.0.0.0)", "`--path` (default /mcp)"] {
            assert!(http.contains(part), "{http}");
        }
        let mut chatty = contained("stdio");
        chatty.stderr.push("listening on :8000".to_owned());
        let stdio = on_exit(&exit("hung", ""), &chatty, false).unwrap();
        assert!(stdio.contains("`--transport streamable-http --target-port 8000`"), "{stdio}");
        check(&LastExit { code: Some(127), ..exit("exited", "") }, "exit code 126 or 127");
        check(&LastExit { code: Some(0), ..exit("exited", "") }, "it exited without");
        let oom = LastExit { code: Some(137), signal: Some(9), oom: true, ..exit("exited", "") };
        check(
            &oom,
            "it ran out of memory: give it more (`mainstay run time --replace --image IMAGE",
        );
        let killed = LastExit { code: Some(137), signal: Some(9), ..exit("exited", "") };
        check(&killed, "it was killed (by `podman kill`?); the engine reports that memory did not");
        let crashed = LastExit { code: Some(139), signal: Some(11), ..exit("exited", "") };
        assert_eq!(on_exit(&crashed, &contained("stdio"), true), None);
    }

    #[test]
    fn a_failed_start_is_explained_by_the_engines_message() {
        let check = |detail: &str, expected: &str| check(&exit("cannot-start", detail), expected);
        check("cannot start: no container engine answers", "start Docker or Podman");
        check("cannot start: no Podman answers", "start Docker or Podman");
        check("cannot start: the image `a:1` is not there", "pull the image (`podman pull`");
        check("Bind for 127.0.0.1:80 failed: port is already allocated", "free that port");
        check("network mine not found", "create the network (`podman network create`)");
        check("bind source path does not exist: /a", "check that the source of every volume");
        check("exec: \"x\": executable file not found in $PATH", "check the image and its");
        check("unknown capability", "fix the problem above, then `mainstay restart time`");
    }

    #[test]
    fn a_waiting_server_has_one_advice() {
        let mut time = contained("stdio").server;
        time.reason = "paused by someone else".to_owned();
        time.container_id = Some("3f2a9c01b7d4e5f60718".to_owned());
        assert!(on_wait(&time).starts_with("`podman unpause 3f2a9c01b7d4` resumes it"));
        time.reason = "the engine has been away for 3 s".to_owned();
        assert!(on_wait(&time).starts_with("check that its engine runs (`podman info`)"));
    }
}
