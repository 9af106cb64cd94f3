//! Nothing but standard input, output and error reaches a program that Mainstay starts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::bystander::with_bystander;
use crate::env::{TestEnv, fixture, free_port, kill, pid_of, shell_server, shim_of, until_dead};

/// The descriptors of a process: number and what each leads to.
pub(crate) fn descriptors(pid: u32) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(Result::unwrap);
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?))
        })
        .collect();
    all.sort();
    all
}

/// What the descriptors of a process lead to, except what is not shared by being open twice.
pub(crate) fn targets(pid: u32) -> BTreeSet<PathBuf> {
    let is_one = |target: &PathBuf| {
        !target.starts_with("/dev/null") && !target.to_string_lossy().starts_with("anon_inode:")
    };
    descriptors(pid).into_iter().map(|(_, target)| target).filter(is_one).collect()
}

#[track_caller]
fn assert_three_streams(server: &Value) {
    let open = descriptors(pid_of(server));
    let numbers: Vec<u32> = open.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2], "{open:?}");
}

/// A shell that stays and opens nothing by itself.
fn run_shell(env: &TestEnv, name: &str) -> Value {
    let script = shell_server("while read -r line; do :; done");
    env.run_server(name, &[], &["/bin/sh", "-c", &script])
}

#[test]
fn a_server_inherits_three_streams_from_every_daemon() {
    let env = TestEnv::new();
    let mut bystander = with_bystander(&env);
    let mut check = |name: &str| {
        let case = format!("descriptors of a server, {name}");
        assert_three_streams(&bystander.after(case, || run_shell(&env, name)));
    };
    check("first");
    kill(env.daemon(), Signal::KILL);
    check("after-a-kill");
    env.ok(["daemon", "reload"]);
    check("after-a-reload");
    let holder = env.json(["daemon", "status", "--json"])["holder"].as_u64().unwrap();
    let holder = u32::try_from(holder).unwrap();
    kill(holder, Signal::KILL);
    until_dead(holder);
    check("without-its-holder");
    let restarted = bystander.during("descriptors of a server after its restart", || {
        env.ok(["restart", "first"]);
        env.once_running("first", 2)
    });
    assert_three_streams(&restarted);
}

#[test]
fn an_http_server_inherits_three_streams() {
    let env = TestEnv::new();
    let mut bystander = with_bystander(&env);
    let port = free_port().to_string();
    let list = env.root().join("list");
    let script = format!("{}; exec '{}' --http 127.0.0.1:{port}", list_inherited(&list), fixture());
    let options = ["--transport", "streamable-http", "--target-port", &port];
    bystander.during("descriptors of an HTTP server", || {
        env.run_server("web", &options, &["/bin/sh", "-c", &script])
    });
    assert_eq!(fs::read_to_string(&list).unwrap(), THREE_STREAMS);
}

/// What a shell's program inherits, one number a line; the fourth is the directory that `ls` reads.
const THREE_STREAMS: &str = "0\n1\n2\n3\n";

/// Has a shell list what its programs inherit: what it has inherited itself, and nothing of its own.
fn list_inherited(to: &Path) -> String {
    format!("ls /proc/self/fd > '{}'", to.display())
}

/// The command that starts the daemon runs in a shell with open descriptors.
#[test]
fn descriptors_inherited_from_the_caller_are_closed() {
    let env = TestEnv::new();
    let script = "exec 7</dev/zero 8</dev/full; exec \"$0\" ls";
    let like = env.command(["ls"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(like.get_program()).env_clear();
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(env.run_prepared(command).code, 0);
    let mut bystander = with_bystander(&env);
    let case = "a daemon that a shell with open descriptors started";
    let server = bystander.during(case, || run_shell(&env, "sh"));
    assert_three_streams(&server);
    for pid in env.mainstays().into_iter().chain([shim_of(&server)]) {
        let open = descriptors(pid);
        let leaked =
            |(_, target): &(u32, PathBuf)| target.ends_with("zero") || target.ends_with("full");
        assert!(!open.iter().any(leaked), "{open:?}");
    }
}

#[test]
fn a_shim_shares_no_descriptor_with_daemon_or_holder() {
    let env = TestEnv::new();
    let mut bystander = with_bystander(&env);
    let server = bystander.during("descriptors of a shim", || run_shell(&env, "sh"));
    let shim = targets(shim_of(&server));
    for pid in env.mainstays() {
        let shared: Vec<_> = targets(pid).intersection(&shim).cloned().collect();
        assert!(shared.is_empty(), "{shared:?}");
    }
}

#[test]
fn a_login_shell_that_is_asked_for_its_path_inherits_three_streams() {
    let env = TestEnv::new();
    let (shell, list) = (env.root().join("shell"), env.root().join("list"));
    let script = format!("#!/bin/sh\n{}\nexec /bin/sh \"$@\"\n", list_inherited(&list));
    fs::write(&shell, script).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o700)).unwrap();
    let env = env.with_var("SHELL", shell.to_str().unwrap());
    with_bystander(&env).during("descriptors of a login shell", || {
        env.run_failing("none", &[], &["no-such-program-anywhere"])
    });
    let listed = fs::read_to_string(&list).expect("the login shell was asked");
    assert_eq!(listed, THREE_STREAMS);
}
