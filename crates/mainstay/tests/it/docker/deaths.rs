//! The daemon is killed while a container answers. The engine's log has the output from meanwhile, and output that was
//! received before: every answer is delivered once, and no notification twice.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::{Setup, Wire};
use crate::env::{kill, pid_of, until, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, Raw, Response, call, request};

/// The directory of a test in its container.
const NOTES: &str = "/notes";

/// How long a slow call takes: longer than the daemon is away, and than it takes to kill it.
const SLOW: u64 = 2_500;

/// How often a call reports its progress. The first report comes after the 150 ms that it takes to make the call
/// survive the daemon.
const STEPS: u64 = 10;

#[test]
fn answers_of_a_container_without_a_daemon_are_delivered_once() {
    let test = Test::begin();
    let (writing, progressing) = (test.write(1), test.report_progress(2));
    test.kill_until(|log| log.contains("appended") && log.contains(&done()));
    test.end(writing, progressing);
}

#[test]
fn output_of_a_container_during_reattachment_is_delivered_once() {
    let test = Test::begin();
    let (writing, progressing) = (test.write(1), test.report_progress(2));
    test.kill_until(|_| true);
    test.end(writing, progressing);
}

/// A container that writes down what it executes, and a session with it.
struct Test {
    setup: Setup,
    session: Raw,
    container: String,
    /// The session's general stream, on which one notification was received.
    listening: Cut,
}

/// A stream that was read so far.
struct Cut {
    stream: Response,
    last: String,
}

impl Test {
    fn begin() -> Self {
        let counted = format!("{NOTES}/executed");
        let volume = format!(".:{NOTES}");
        let setup = Setup::new(Wire::Stdio, &["-v", &volume], &["--count-file", &counted]);
        let session = setup.raw();
        subscribe(&session, 1);
        let mut listening = Cut::new(session.get(None));
        touch(&session, 1);
        assert_eq!(listening.message()["params"]["uri"], number(1));
        let container = setup.container();
        Self { setup, session, container, listening }
    }

    /// Begins a call with an effect, and returns when it has had it.
    fn write(&self, id: u64) -> Cut {
        let arguments = json!({"path": format!("{NOTES}/effects"), "line": "x", "ms": SLOW});
        let writing = Cut::new(self.session.post(BOTH, &call(id, "append", &arguments)));
        until("it has its effect", || (self.noted("effects") == "x\n").then_some(()));
        writing
    }

    /// Begins a call with progress, and returns after its first report.
    fn report_progress(&self, id: u64) -> Cut {
        let arguments = json!({"steps": STEPS, "ms": SLOW / STEPS, "die_at": STEPS + 1});
        let meta = json!({"progressToken": "t"});
        let params = json!({"name": "progress_die", "arguments": arguments, "_meta": meta});
        let mut progressing =
            Cut::new(self.session.post(BOTH, &request(id, "tools/call", &params)));
        assert_eq!(progressing.message()["params"]["progress"], 1);
        progressing
    }

    /// Kills the daemon, and lets the next one come when the engine has logged so much.
    fn kill_until(&self, is_enough: impl Fn(&str) -> bool) {
        let about = self.setup.env.json(["daemon", "status", "--json"]);
        let holder = u32::try_from(about["holder"].as_u64().unwrap()).unwrap();
        kill(holder, Signal::STOP);
        kill(pid_of(&about), Signal::KILL);
        until_dead(pid_of(&about));
        until("the container has said so much", || {
            is_enough(&self.setup.engine.docker(&["logs", &self.container])).then_some(())
        });
        kill(holder, Signal::CONT);
    }

    /// Resumes the streams that were cut, and asserts that everything is delivered once.
    fn end(self, writing: Cut, progressing: Cut) {
        let answered = writing.resumed(&self.session);
        let [answer] = &*answered else { panic!("not one answer: {answered:?}") };
        assert_eq!((&answer["id"], &*text_of(&answer["result"], 0)), (&json!(1), "appended"));

        let mut reported = progressing.resumed(&self.session);
        let answer = reported.pop().expect("the stream ends with an answer");
        assert_eq!((&answer["id"], text_of(&answer["result"], 0)), (&json!(2), done()));
        let progress = reported.iter().map(|reported| reported["params"]["progress"].as_u64());
        let progress: Vec<u64> = progress.map(|step| step.expect("progress alone")).collect();
        let ordered = [&[1], &*progress].concat();
        assert!(ordered.is_sorted_by(|one, next| one < next), "{progress:?}");

        let mut listening = self.session.get(Some(&self.listening.last));
        subscribe(&self.session, 2);
        touch(&self.session, 2);
        let uris = std::iter::from_fn(|| Some(listening.message()?["params"]["uri"].clone()));
        let received: Vec<_> = uris.take_while(|uri| *uri != number(2)).collect();
        // What changed while it was not there a daemon cannot know, so it says that once by itself.
        assert!(received.is_empty() || received == [number(1)], "{received:?}");

        let executed = "touch\nappend\nprogress_die\ntouch\n";
        assert_eq!(self.noted("executed"), executed, "each was executed once");
        assert_eq!(self.noted("effects"), "x\n");
        let server = self.setup.server();
        let kept = json!([server["container_id"], server["restarts_total"], server["sessions"]]);
        assert_eq!(kept, json!([self.container, 0, 1]));
    }

    fn noted(&self, file: &str) -> String {
        fs::read_to_string(self.setup.env.work().join(file)).unwrap_or_default()
    }
}

impl Cut {
    /// Reads as far as the first event, from which the stream can be resumed.
    fn new(mut stream: Response) -> Self {
        assert_eq!(stream.status, 200);
        let last = stream.event().and_then(|event| event.id).expect("an id to resume from");
        Self { stream, last }
    }

    /// Reads on to the next message.
    fn message(&mut self) -> Value {
        let event = self.stream.event().expect("the stream continues");
        self.last = event.id.expect("a message has an id");
        serde_json::from_str(&event.data).unwrap()
    }

    /// All messages to the end of the stream that were not read.
    fn resumed(self, session: &Raw) -> Vec<Value> {
        drop(self.stream);
        let mut resumed = session.get(Some(&self.last));
        assert_eq!(resumed.status, 200);
        std::iter::from_fn(|| resumed.message()).collect()
    }
}

/// The answer to the call with progress.
fn done() -> String {
    format!("{STEPS} steps")
}

/// A resource of the server.
fn number(n: u64) -> String {
    format!("fixture://numbers/{n}")
}

/// Subscribes the session to a resource.
fn subscribe(session: &Raw, n: u64) {
    session.ask(10 + n, "resources/subscribe", &json!({"uri": number(n)}));
}

/// Makes the server send a notification that a resource has changed.
fn touch(session: &Raw, n: u64) {
    let call = json!({"name": "touch", "arguments": {"uri": number(n)}});
    assert_eq!(text_of(&session.ask(20 + n, "tools/call", &call), 0), "touched");
}
