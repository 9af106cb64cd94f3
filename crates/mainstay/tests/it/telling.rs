//! What is told of servers that are not there, or do not come up.

use insta::assert_snapshot;

use crate::env::{TestEnv, fixture};

#[test]
fn events_of_a_server_that_never_was() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    let unknown = env.run(["events", "tiem"]).to_string();
    assert_snapshot!(unknown, @"
    exit: 3
    --- stderr
    error: there is no server `tiem`
    help: did you mean `time`? `mainstay ls -a` shows all servers
    ");
    assert_eq!(env.run(["events", "-f", "tiem"]).to_string(), unknown);
    env.ok(["rm", "time"]);
    let events = env.run(["events", "time"]);
    assert_eq!((events.code, events.stderr.as_str()), (0, ""), "it left some");
    assert!(events.stdout.contains("ready"), "{events}");
}

#[test]
fn a_server_that_was_removed_is_told_as_that() {
    let env = TestEnv::new();
    env.run_server("time", &[], &[&fixture()]);
    env.ok(["rm", "time"]);
    for line in ["status time", "why time", "logs time", "tools time", "call time echo"] {
        let output = env.run(line.split(' '));
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{line}: {output}");
        assert!(output.stderr.starts_with("error: `time` was removed "), "{line}: {output}");
        assert!(
            output.stderr.ends_with(" ago\nhelp: `mainstay events time` tells more\n"),
            "{output}"
        );
    }
}

#[test]
fn whoever_waits_for_a_crash_loop_hears_of_every_end() {
    let env = TestEnv::new();
    let options = ["--restart-max", "2", "--restart-initial", "100ms"];
    let failed = env.run_failing("bad", &options, &["sh", "-c", "exit 3"]);
    let told: Vec<&str> =
        failed.stderr.lines().filter(|line| line.starts_with("bad: exited 3 after ")).collect();
    assert!(told.iter().any(|line| line.contains(", restart 2 of 2 in ")), "{failed}");
    assert!(failed.stderr.contains("error: bad is down: gave up after 2 restarts"), "{failed}");
    assert!(failed.stdout.starts_with('{'), "only data on stdout: {failed}");
}
