//! Many connections at once, and a daemon with few descriptors.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::env::TestEnv;
use crate::proxy::raw::parts;

/// How many connections a flood has: more than the usual limit of descriptors.
pub(super) const FLOOD: usize = 1300;

/// Starts the daemon of an environment with `ulimit` and these options in effect.
pub(super) fn start_with_limit(env: &TestEnv, options: &str) {
    let like = env.command(["ls"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("ulimit {options}; exec \"$0\" ls")]).arg(like.get_program());
    command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(env.run_prepared(command).code, 0);
}

/// Lets this test have more connections than a usual limit allows.
pub(super) fn allow_many_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Opens connections to the server at a URL, each of which sends this text. Those that the daemon closes
/// stay, too.
pub(super) fn connections(url: &str, count: usize, text: &str) -> Vec<TcpStream> {
    let (address, _) = parts(url);
    let connect = |_| {
        let mut connection = TcpStream::connect(&address).unwrap();
        // It may be closed before that.
        let _closed = connection.write_all(text.as_bytes());
        connection
    };
    (0..count).map(connect).collect()
}

/// The resident memory of a process, in pages.
pub(super) fn resident(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}
