//! A name server that does not answer, in namespaces of the daemon's own. It needs the programs that are installed with
//! the engines.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mainstay_testkit::docker::enter_network;

use crate::attacks::bystander::with_bystander;
use crate::env::{Follower, TestEnv, fixture, until};

/// Packets to the name server leave by an interface behind which there is nothing.
const SILENT: &str = r#"
set -e
ip link set lo up
ip link add nowhere type veth peer name nothing
ip addr add 192.0.2.2/24 dev nowhere
ip link set nowhere up
ip link set nothing up
ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev nowhere nud permanent
echo 'nameserver 192.0.2.1' >resolv.conf
mount --bind resolv.conf /etc/resolv.conf
exec "$@"
"#;

/// A command takes no longer because of servers that it is not about.
const LIMIT: Duration = Duration::from_secs(3);

#[expect(clippy::disallowed_methods, reason = "how long commands take is what is tested")]
fn within_the_limit(env: &TestEnv, args: &[&str]) {
    let begun = Instant::now();
    env.ok(args);
    let took = begun.elapsed();
    assert!(took < LIMIT, "{args:?} took {took:?}");
}

#[test]
fn a_silent_name_server_blocks_nothing_else() {
    let env = TestEnv::new();
    let ls = env.command(["ls"]);
    let mut first = Command::new("unshare");
    first.args(["--net", "--mount", "bash", "-c", SILENT, "bash"]);
    first.arg(ls.get_program()).args(ls.get_args()).env_clear().current_dir(env.work());
    first.envs(ls.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let started = env.run_prepared(first);
    assert_eq!(started.code, 0, "{started}");

    enter_network(Path::new(&format!("/proc/{}/ns/net", env.daemon())));
    let mut bystander = with_bystander(&env);
    env.run_server("fx", &[], &[&fixture()]);
    // They are kept and retried, although `run` fails.
    let runs: Vec<Follower> = (0..8)
        .map(|n| {
            let (name, url) = (format!("r{n}"), format!("http://host{n}.example.org/mcp"));
            env.follow(["run", &name, "--url", &url])
        })
        .collect();
    bystander.during("eight servers whose names cannot be resolved", || {
        until("all of them are known", || {
            (env.json(["ls", "--json"]).as_array()?.len() == 10).then_some(())
        });
    });
    bystander.during("commands while names cannot be resolved", || {
        for _ in 0..3 {
            within_the_limit(&env, &["call", "fx", "echo", r#"{"text": "x"}"#]);
            within_the_limit(&env, &["stop", "fx"]);
            within_the_limit(&env, &["start", "fx"]);
            within_the_limit(&env, &["ls"]);
        }
    });
    bystander.during("`reload` while names cannot be resolved", || {
        within_the_limit(&env, &["daemon", "reload"]);
    });
    within_the_limit(&env, &["daemon", "stop"]);
    drop(runs);
}
