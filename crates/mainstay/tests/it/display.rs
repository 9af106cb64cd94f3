//! Output for users: tables that fit the terminal, times in the local zone, and completions.

use crate::env::{TestEnv, fixture, shell_server, until};

#[test]
fn a_table_fits_the_terminal_and_is_complete_in_a_pipe() {
    let env = TestEnv::new();
    let name = "a-server-with-quite-a-long-name";
    env.run_server(name, &[], &[&fixture()]);
    let shown = env.on_terminal(&["ls"]);
    let lines = without_colors(&shown);
    assert_eq!(lines.len(), 2, "{shown}");
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(lines[1].contains(name) && lines[1].ends_with('…'), "{shown}");
    let piped = env.ok(["ls"]);
    assert!(piped.contains("TRANSPORT") && piped.contains(&format!("/{name}/mcp\n")), "{piped}");
}

#[test]
fn log_lines_have_local_times_and_can_be_selected() {
    // East of Greenwich by 5 h 30 min, in a form that needs no time zone database.
    let env = TestEnv::new().with_var("TZ", "<+0530>-5:30");
    let server = |first: &str| {
        shell_server(&format!("printf '{first} one\\n{first} two\\n' >&2; read -r line"))
    };
    env.run_server("a", &[], &["/bin/sh", "-c", &server("a")]);
    env.run_server("long", &[], &["/bin/sh", "-c", &server("long")]);
    let all = until("both servers have written", || {
        let all = env.ok(["logs", "a", "long", "--grep", "^(a|long) o", "--since", "1h"]);
        (all.lines().count() == 2).then_some(all)
    });
    let lines: Vec<&str> = all.lines().collect();
    let (time, text) = lines[0].strip_prefix("a     ").unwrap().split_once("  ").unwrap();
    assert!(text == "a one" && lines[1].starts_with("long  20"), "{all}");
    let utc = env.ok(["logs", "a", "--grep", "one", "--utc"]);
    let (utc, _) = utc.split_once("  ").unwrap();
    assert_ne!(time[..16], utc[..16], "local and UTC");
    assert_eq!(time[17..], utc[17..], "the same second");
    assert!(env.ok(["why", "a"]).contains(" +0530 "), "{}", env.ok(["why", "a"]));
    assert!(env.ok(["status", "a", "--utc"]).contains(" UTC, "));

    assert_eq!(env.ok(["logs", "a", "--since", "2100-01-01"]), "");
    assert_eq!(env.ok(["logs", "a", "--tail", "1", "--grep", "one", "--raw"]), "a one\n");
    for (args, message) in [
        (["logs", "a", "--since", "soon"], "--since: `soon` is not a time"),
        (["logs", "a", "--grep", "("], "the pattern is invalid"),
    ] {
        let refused = env.run(args);
        assert!(refused.code != 0 && refused.stderr.contains(message), "{refused}");
    }
    let missing = env.run(["logs", "a", "none"]);
    assert_eq!(missing.code, 3, "{missing}");
}

#[test]
fn a_log_of_an_older_version_stays_readable() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["stop", "time"]);
    let log = env.mainstay_home().join("state/logs/time.log");
    std::fs::write(&log, "--- run 1 started, pid 7 ---\nold words\n").unwrap();
    env.ok(["start", "time"]);
    env.once_running("time", 2);
    let lines = env.ok(["logs", "time"]);
    assert!(lines.starts_with("--- run 1 started, pid 7 ---\nold words\n20"), "{lines}");
    assert!(!env.ok(["logs", "time", "--since", "1h"]).contains("old words"));
}

#[test]
fn an_orderly_stop_is_logged_as_one() {
    let env = TestEnv::new();
    env.run_server("time", &[], &["/bin/sh", "-c", &shell_server("exec sleep 600")]);
    env.ok(["stop", "time"]);
    let log = env.ok(["logs", "time", "--raw"]);
    assert!(log.ends_with("--- run 1 stopped by Mainstay ---\n"), "{log}");
    assert_eq!(env.ok(["ps", "-a"]), env.ok(["ls", "-a"]));
    assert_eq!(env.ok(["list", "-a"]), env.ok(["ls", "-a"]));
}

#[test]
fn why_has_a_line_per_run_and_names_a_variable_that_is_not_set() {
    let env = TestEnv::new();
    let script = "echo 'KeyError: API_KEY' >&2; exit 1";
    let options = ["--restart-max", "2", "--restart-initial", "1ms"];
    env.run_failing("time", &options, &["/bin/sh", "-c", script]);
    let why = until("all three runs have ended", || {
        let why = env.ok(["why", "time"]);
        why.contains("run 3  ").then_some(why)
    });
    for run in ["run 1  ", "run 2  ", "run 3  "] {
        assert_eq!(why.matches(run).count(), 1, "{why}");
    }
    assert!(why.contains("`-e API_KEY`"), "{why}");
}

/// What a shell offers for the last word of a line.
fn offered(env: &TestEnv, line: &[&str]) -> Vec<String> {
    let mut command = env.command([&["--", "mainstay"], line].concat());
    command.env("MAINSTAY_COMPLETE", "fish");
    let output = env.run_prepared(command);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output}");
    output.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn a_shell_completes_commands_servers_tools_and_clients() {
    let env = TestEnv::new();
    assert_eq!(offered(&env, &["status", "t"]), [""; 0]);
    assert_eq!(env.run(["daemon", "status"]).code, 4, "completing starts no daemon");
    env.run_server("time", &[], &[&fixture()]);
    env.run_server("tide", &[], &[&fixture()]);
    let check = |line: &[&str], expected: &[&str]| assert_eq!(offered(&env, line), expected);
    check(&["resta"], &["restart"]);
    check(&["status", "ti"], &["tide", "time"]);
    check(&["stop", "time", "ti"], &["tide", "time"]);
    check(&["call", "time", "ec"], &["echo"]);
    check(&["client", "add", "curs"], &["cursor"]);
    check(&["__"], &[]);

    let unknown = env.run(["why", "tmie"]);
    assert_eq!(unknown.code, 3, "{unknown}");
    assert!(unknown.stderr.contains("did you mean `time`?"), "{unknown}");
}

#[test]
fn tools_of_a_stopped_server_are_shown_as_those_of_its_last_run() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let running = env.run(["tools", "time"]);
    assert_eq!(running.stderr, "", "{running}");
    env.ok(["stop", "time"]);
    let stopped = env.run(["tools", "time"]);
    assert_eq!(stopped.stdout, running.stdout);
    let note = "time is stopped: this is the list of its last run\n";
    assert_eq!(stopped.stderr, note);
}

/// Lines without their colours.
fn without_colors(text: &str) -> Vec<String> {
    let mut plain = String::new();
    for (number, piece) in text.split("\u{1b}[").enumerate() {
        let rest =
            if number == 0 { piece } else { piece.split_once('m').map_or("", |(_, rest)| rest) };
        plain.push_str(rest);
    }
    plain.lines().map(str::to_owned).collect()
}
