//! The update from 0.1.0, whose daemon leaked its end of the holder's socket to every server.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use super::count;
use super::setup::{Setup, built};
use crate::attacks::descriptors::{descriptors, targets};
use crate::env::{is_alive, pid_of, shell_server, until, until_dead};
use crate::proxy::raw::{Raw, parts};
use crate::real_servers::tool;
use crate::restarts::setup::Knocker;

#[test]
fn leaked_descriptors_of_0_1_0_do_no_harm_after_the_update() {
    let setup = Setup::running_program(Path::new(&tool("mainstay-f24f622")));
    let (server, daemon) = (setup.env.server("fx"), setup.daemon());
    let holder = u32::try_from(daemon["holder"].as_u64().unwrap()).unwrap();
    let (leaked, leaky) = (targets(pid_of(&daemon)), run_leaky(&setup));
    let open = descriptors(leaky);
    assert!(open.iter().any(|(number, it)| *number == 3 && leaked.contains(it)), "{open:?}");
    let session = Raw::open(server["url"].as_str().unwrap());
    let knocker = Knocker::tcp(&parts(server["url"].as_str().unwrap()).0);
    let mut connected = Connected::start(&setup, "fx");
    assert_eq!(count(&session, 1), "1");
    assert_eq!(connected.call(1, "count"), "2");

    let output = setup.update(Path::new(built()));
    assert_eq!(output.code, 0, "{output}");
    until_dead(holder);
    let now = until("there is another holder", || {
        let now = setup.daemon();
        (now["holder"] != daemon["holder"]).then_some(now)
    });
    assert_ne!(now["pid"], daemon["pid"]);

    fs::write(setup.env.work().join("send"), "").unwrap();
    let result = until("the server has sent", || {
        fs::read_to_string(setup.env.work().join("result")).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(result, "dead\n");

    assert_eq!(count(&session, 2), "3", "the session and the server's memory are kept");
    assert_eq!(connected.call(2, "count"), "4", "so is a `connect` of the old program");
    assert_eq!(setup.env.server("fx")["pid"], server["pid"]);
    assert_eq!((&setup.daemon()["pid"], &setup.daemon()["holder"]), (&now["pid"], &now["holder"]));
    assert_eq!(mainstays(&setup).len(), 2, "one holder and one daemon");
    knocker.was_always_welcome();
    let restarted = setup.env.json(["restart", "leaky", "--json"]);
    let open = descriptors(pid_of(&setup.env.once_running("leaky", 2)));
    assert_eq!(open.len(), 3, "{open:?} {restarted}");
}

/// The holders and daemons of this environment.
fn mainstays(setup: &Setup) -> BTreeSet<u32> {
    let is_one = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains("\0daemon\0run") || words.contains("\0__take-over")
    };
    setup.env.processes().into_iter().filter(|pid| is_alive(*pid)).filter(is_one).collect()
}

/// A server that sends half a message into descriptor 3 on request.
fn run_leaky(setup: &Setup) -> u32 {
    let send = "( while ! [ -e send ]; do sleep 0.05; done
        if printf '\\010\\377' >&3; then echo alive; else echo dead; fi > result ) &
        while read -r line; do :; done";
    let script = shell_server(send);
    setup.ok(&["run", "leaky", "--wait", "--json", "--", "/bin/sh", "-c", &script]);
    pid_of(&setup.env.server("leaky"))
}

/// `mainstay connect` of the program as it was when it was started.
struct Connected {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Connected {
    fn start(setup: &Setup, name: &str) -> Self {
        let mut command = setup.command(&setup.program, &["connect", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut connected = Self { child, to, from: BufReader::new(from) };
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        connected.ask(0, "initialize", &params);
        writeln!(connected.to, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#)
            .unwrap();
        connected
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.to, "{request}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "it hung up");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    fn call(&mut self, id: u64, tool: &str) -> String {
        let result = self.ask(id, "tools/call", &json!({"name": tool, "arguments": {}}));
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
