//! The daemon is killed while a container answers. What was said meanwhile is in the engine's log, with
//! much that was received before: every answer comes once, and no notification twice.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::setup::{Setup, Wire};
use crate::env::{kill, pid_of, until, until_dead};
use crate::proxy::client::text_of;
use crate::proxy::raw::{BOTH, Raw, Response, call, request};

/// Where the server of a story sees its directory.
const NOTES: &str = "/notes";

/// How long a slow call takes: longer than the daemon is away, and than it takes to kill it.
const SLOW: u64 = 2_500;

/// How often a call tells of its progress: for the first time after it has become one that outlives the
/// daemon, which takes 150 ms.
const STEPS: u64 = 10;

#[test]
fn answers_of_a_container_without_a_daemon_are_delivered_once() {
    let story = Story::begin();
    let (writing, telling) = (story.write(1), story.tell(2));
    story.kill_until(|log| log.contains("appended") && log.contains(&done()));
    story.end(writing, telling);
}

#[test]
fn output_of_a_container_during_reattachment_is_delivered_once() {
    let story = Story::begin();
    let (writing, telling) = (story.write(1), story.tell(2));
    story.kill_until(|_| true);
    story.end(writing, telling);
}

/// A container that writes down what it executes, and a session with it.
struct Story {
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

impl Story {
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

    /// Begins a call that tells of its progress, and returns when it has done so.
    fn tell(&self, id: u64) -> Cut {
        let arguments = json!({"steps": STEPS, "ms": SLOW / STEPS, "die_at": STEPS + 1});
        let meta = json!({"progressToken": "t"});
        let params = json!({"name": "progress_die", "arguments": arguments, "_meta": meta});
        let mut telling = Cut::new(self.session.post(BOTH, &request(id, "tools/call", &params)));
        assert_eq!(telling.message()["params"]["progress"], 1);
        telling
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

    /// Takes up what was cut, and asserts that all of it came once.
    fn end(self, writing: Cut, telling: Cut) {
        let answered = writing.resumed(&self.session);
        let [answer] = &*answered else { panic!("not one answer: {answered:?}") };
        assert_eq!((&answer["id"], &*text_of(&answer["result"], 0)), (&json!(1), "appended"));

        let mut reported = telling.resumed(&self.session);
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
        let event = self.stream.event().expect("the stream goes on");
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

/// What the call that tells of its progress answers.
fn done() -> String {
    format!("{STEPS} steps")
}

/// A resource of the server.
fn number(n: u64) -> String {
    format!("fixture://numbers/{n}")
}

/// Has the session hear of a resource.
fn subscribe(session: &Raw, n: u64) {
    session.ask(10 + n, "resources/subscribe", &json!({"uri": number(n)}));
}

/// Has the server say that a resource has changed.
fn touch(session: &Raw, n: u64) {
    let call = json!({"name": "touch", "arguments": {"uri": number(n)}});
    assert_eq!(text_of(&session.ask(20 + n, "tools/call", &call), 0), "touched");
}
