//! Commands that wait for a silent server: what they say, and how they are cancelled.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread;

use rustix::process::Signal;

use super::{NAME, Setup, lines};
use crate::env::{TestEnv, kill, until};

/// A command whose messages are read as they come.
struct Waiting {
    child: Child,
    messages: BufReader<std::process::ChildStderr>,
}

impl Waiting {
    fn start(env: &TestEnv, args: &[&str]) -> Self {
        let mut command = env.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let messages = BufReader::new(child.stderr.take().unwrap());
        Self { child, messages }
    }

    fn message(&mut self) -> String {
        let mut line = String::new();
        self.messages.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its exit code, its standard output, and the rest of its messages.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = until("the command ended", || self.child.try_wait().unwrap());
        let (mut output, mut messages) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        self.messages.read_to_string(&mut messages).unwrap();
        (status.code(), output, messages)
    }
}

#[test]
fn a_call_says_what_it_waits_for_and_prints_only_its_result() {
    let setup = Setup::new(&["--hang-after", "20s"], &[]);
    let mut waiting = Waiting::start(&setup.env, &["call", NAME, "wait"]);
    assert_eq!(
        waiting.message(),
        "waiting for `wait`: silent has read it and has not answered yet"
    );
    let mut second = Waiting::start(&setup.env, &["call", NAME, "append", "--json"]);
    let unread = second.message();
    assert!(unread.starts_with("waiting for `append`: silent has not read it yet ("), "{unread}");
    let blocked = waiting.message();
    assert!(blocked.contains("waiting for `wait`: silent is blocked in `wait` for"), "{blocked}");
    let blocked = second.message();
    assert!(blocked.contains("waiting for `append`: silent is blocked in `wait`"), "{blocked}");
    setup.release();
    let (code, output, messages) = waiting.end();
    assert_eq!((code, output.as_str(), messages.as_str()), (Some(0), "waited\n", ""));
    let (code, output, _) = second.end();
    let result: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &result["content"][0]["text"]), (Some(0), &"appended".into()));
    setup.assert_never_killed();
}

#[test]
fn a_call_of_a_server_that_is_starting_says_what_that_does() {
    let env = TestEnv::new();
    env.ok(["run", NAME, "--", "sh", "-c", "sleep 600; :"]);
    let mut waiting = Waiting::start(&env, &["tools", NAME]);
    let message = waiting.message();
    assert!(message.starts_with("waiting for the list of tools: silent is starting"), "{message}");
    kill(waiting.child.id(), Signal::INT);
    let (code, _, messages) = waiting.end();
    assert_eq!(code, Some(130));
    assert!(messages.ends_with("cancelled the list of tools\n"), "{messages}");
    // At the limit, and before there is a line.
    let output = env.run(["call", NAME, "wait", "--timeout", "1s"]).to_string();
    assert!(output.contains("it was not sent to silent, and not executed"), "{output}");
}

#[test]
fn ctrl_c_cancels_the_call_at_the_server() {
    let setup = Setup::new(&["--hang-after", "60s"], &["threads", "note-cancels"]);
    let mut waiting = Waiting::start(&setup.env, &["call", NAME, "wait"]);
    waiting.message();
    kill(waiting.child.id(), Signal::INT);
    let (code, output, messages) = waiting.end();
    assert_eq!((code, output.as_str()), (Some(130), ""));
    assert_eq!(messages, "cancelled `wait`; silent may have executed it\n");
    until("the server was told", || (lines(&setup.effects) == 1).then_some(()));
    setup.release();
    setup.assert_never_killed();
}

#[test]
fn a_fast_call_says_nothing_else() {
    let setup = Setup::new(&[], &[]);
    let (code, output, messages) = Waiting::start(&setup.env, &["call", NAME, "append"]).end();
    assert_eq!((code, output.as_str(), messages.as_str()), (Some(0), "appended\n", ""));
    thread::scope(|scope| {
        let slow = scope.spawn(|| setup.env.run(["call", NAME, "wait", "--timeout", "3s"]));
        let output = slow.join().unwrap();
        assert!(output.to_string().contains("silent has not answered within 3 s"), "{output}");
    });
    setup.release();
}
