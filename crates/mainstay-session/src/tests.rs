//! A server in virtual time with one run that is up, for unit tests.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::Parsed;
use mainstay_mcp::upstream::{Hello, Identity};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::action::{Action, HttpOperation};
use crate::availability::Availability;
use crate::call_timeout::CallTimeouts;
use crate::calls::Arrival;
use crate::http::OperationKey;
use crate::links::{LinkKey, LinkTarget, RunInfo};
use crate::record::{
    Sent, SessionRecord, StateStore, StreamChange, StreamKey, StreamRecord, UpstreamRecord,
};
use crate::server::{Config, Server, Settings};
use crate::session::SessionKey;
use crate::session_clock::SessionClock;
use crate::session_id::SessionIds;
use crate::stream::{EventId, Read, Start};
use crate::streams::{Commit, StreamRef};

pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) now: Instant,
    pub(crate) store: Arc<TestStore>,
    link: Option<LinkKey>,
    /// The lines that the run got.
    lines: VecDeque<Value>,
    /// The actions that are not lines to the run.
    pub(crate) actions: Vec<Action>,
}

/// A request of a client, and its reader.
#[derive(Debug, Clone)]
pub(crate) struct TestCall {
    pub(crate) stream: StreamRef,
    pub(crate) turn: u64,
    /// Its id at a stdio run.
    pub(crate) run_id: Value,
}

impl TestServer {
    pub(crate) fn new() -> Self {
        let mut test = Self::without_run();
        test.attach(LinkTarget::Stdio { written: 0, earlier_output: None });
        test
    }

    /// The server speaks HTTP.
    pub(crate) fn http() -> Self {
        let mut test = Self::without_run();
        test.attach(LinkTarget::Http);
        test
    }

    pub(crate) fn without_run() -> Self {
        let now = tokio::time::Instant::now().into_std();
        let store = Arc::<TestStore>::default();
        let config = Config {
            name: "time".into(),
            settings: Settings {
                hold: Duration::from_secs(45),
                replay: BTreeSet::new(),
                quiet_restart: true,
                late_results: true,
                block_limit: Some(Duration::from_secs(15 * 60)),
                isolate: false,
                isolate_idle: Duration::from_secs(1800),
                call_timeouts: CallTimeouts::default(),
            },
            store: Arc::<TestStore>::clone(&store),
            identity: Identity { name: "mainstay".to_owned(), version: "0".to_owned() },
            clock: SessionClock::resumed(Duration::ZERO, now),
            ids: SessionIds::new(&[7; 32], 0),
        };
        let server = Server::new(config, None);
        let (link, lines, actions) = (None, VecDeque::new(), Vec::new());
        Self { server, now, store, link, lines, actions }
    }

    pub(crate) fn attach(&mut self, target: LinkTarget) {
        let info = json!({"name": "fake", "version": "7"});
        let hello =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info});
        let hello = RawValue::from_string(hello.to_string()).unwrap();
        let known = Some(Hello::read(hello, None).unwrap());
        let info = RunInfo { generation: 1, after: None, known, epoch: 1, session: None };
        self.link = Some(self.server.attach(self.now, target, info));
        self.take_actions();
        let attached = self.actions.drain(..).find_map(|action| match action {
            Action::Attached(_, run) => Some(run.unwrap()),
            _ => None,
        });
        let up = Availability::Up(attached.expect("it was attached at once"));
        self.server.set_availability(self.now, up);
        self.take_actions();
    }

    /// The run is connected to the next daemon.
    pub(crate) fn attach_again(&mut self) {
        self.attach(LinkTarget::Stdio { written: 9, earlier_output: None });
    }

    /// The session of this number, which is initialized.
    pub(crate) fn session(&mut self, number: u32) -> SessionKey {
        let id = session_id(number);
        let version = "2025-11-25".to_owned();
        let upstream = UpstreamRecord { run: 1, id: None, version: version.clone() };
        let record = SessionRecord {
            id: id.clone(),
            server: "time".to_owned(),
            params: json!({"protocolVersion": version, "capabilities": {}}).to_string().into(),
            version,
            initialized: true,
            level: None,
            subscriptions: Vec::new(),
            run: None,
            upstream: Some(upstream),
            used_at: Duration::ZERO,
        };
        self.server.restore(self.now, record);
        self.take_actions();
        self.server.session(&id).unwrap()
    }

    /// A client sends a request with the id 7, which the run gets.
    pub(crate) fn request(&mut self, session: SessionKey) -> TestCall {
        let message = Parsed::read(request()).unwrap();
        let (stream, turn) = self.server.request(self.now, session, message, Arrival::New);
        let run_id = self.last_run_id();
        TestCall { stream, turn, run_id }
    }

    /// The id of the request that the run got last; null if it got nothing.
    pub(crate) fn last_run_id(&mut self) -> Value {
        self.last_line()["id"].take()
    }

    /// The last line that the run got and no test has taken.
    pub(crate) fn last_line(&mut self) -> Value {
        self.take_actions();
        self.lines.pop_back().unwrap_or_default()
    }

    /// The head of the response is sent, with an event from which it can be resumed.
    pub(crate) fn commit(&mut self, call: &TestCall) -> EventId {
        let event = self.commit_without_id(call);
        self.server.event_id_sent(call.stream);
        event
    }

    pub(crate) fn commit_without_id(&mut self, call: &TestCall) -> EventId {
        let journal_at = self.now + JOURNALED;
        let commit = Commit { is_events: true, is_repeated: false, journal_at };
        let event = self.server.commit(self.now, call.stream, commit);
        self.take_actions();
        event.expect("the session has not ended")
    }

    pub(crate) fn read(&mut self, call: &TestCall) -> Read {
        let read = self.server.read(call.stream, call.turn);
        self.take_actions();
        read
    }

    /// The numbers of what is there to read now, and whether the last is the answer.
    pub(crate) fn read_all(&mut self, call: &TestCall) -> (Vec<u64>, bool) {
        let (mut numbers, mut is_answered) = (Vec::new(), false);
        while let Read::Item(item) = self.read(call) {
            numbers.push(item.number);
            is_answered |= item.is_answer;
        }
        (numbers, is_answered)
    }

    /// The reader stops reading.
    pub(crate) fn leaves(&mut self, call: &TestCall) {
        self.server.reader_left(self.now, call.stream, call.turn);
        self.take_actions();
    }

    /// The client comes back.
    pub(crate) fn resumes(&mut self, call: &mut TestCall, start: Start) {
        let attached = self.server.attach_reader(self.now, call.stream, start);
        call.turn = attached.expect("the stream is kept").0;
        self.take_actions();
    }

    /// The client cancels its only request.
    pub(crate) fn cancels(&mut self, session: SessionKey) {
        let text =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
        self.server.post(self.now, session, &Parsed::read(text.into()).unwrap());
        self.take_actions();
    }

    pub(crate) fn link(&self) -> LinkKey {
        self.link.expect("there is a run")
    }
    /// The methods of the lines that the run got and no test has taken.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        self.take_actions();
        self.lines.drain(..).map(|line| line["method"].as_str().unwrap().to_owned()).collect()
    }

    /// The run writes a line.
    pub(crate) fn says(&mut self, line: Bytes) {
        self.server.receive(self.now, self.link.unwrap(), [line]);
        self.take_actions();
    }

    /// The run answers.
    pub(crate) fn answers(&mut self, call: &TestCall) {
        let answer = json!({"jsonrpc": "2.0", "id": call.run_id, "result": {}});
        self.says(answer.to_string().into());
    }

    /// The call of this stream has this answer.
    pub(crate) fn answers_with(&mut self, call: &TestCall, answer: Bytes) {
        let stream = self.server.streams.get(call.stream).unwrap();
        let key = stream.as_request().and_then(|request| request.call).unwrap();
        self.server.answer(self.now, key, Some(answer));
        self.take_actions();
    }

    /// Whether the call was cancelled at the run.
    pub(crate) fn is_cancelled(&self, call: &TestCall) -> bool {
        self.lines.iter().any(|line| line["params"]["requestId"] == call.run_id)
    }

    pub(crate) fn is_forgotten(&self, call: &TestCall) -> bool {
        self.server.stream_state(call.stream).is_none()
    }

    /// Whether the reader of the call was woken since this was asked last.
    pub(crate) fn is_woken(&mut self, call: &TestCall) -> bool {
        let is_wake = |action: &Action| matches!(action, Action::Wake(it) if *it == call.stream);
        self.actions.drain(..).any(|action| is_wake(&action))
    }

    /// The operation with which the last request was sent to an HTTP server.
    pub(crate) fn http_request(&self) -> OperationKey {
        let request = self.actions.iter().rev().find_map(|action| match action {
            Action::Http(key, _, HttpOperation::Request { .. }) => Some(*key),
            _ => None,
        });
        request.expect("a request was sent")
    }

    pub(crate) fn passes(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(deadline) = self.server.deadline().filter(|deadline| *deadline <= until) {
            self.now = self.now.max(deadline);
            self.server.handle_timers(self.now);
            self.take_actions();
        }
        self.now = until;
    }

    pub(crate) fn take_actions(&mut self) {
        while let Some(action) = self.server.next_action() {
            match action {
                Action::SendLine(_, line) => {
                    self.lines.push_back(serde_json::from_slice(&line).unwrap());
                }
                action => self.actions.push(action),
            }
        }
    }
}

/// When requests are journaled after their commit.
pub(crate) const JOURNALED: Duration = Duration::from_millis(150);

pub(crate) fn session_id(number: u32) -> String {
    format!("{number:032x}")
}

pub(crate) fn request() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"method":"slow"}"#)
}

pub(crate) fn notification(text: impl std::fmt::Display) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"{text}"}}"#).into()
}

/// All that was noted of streams, in order.
#[derive(Debug, Default)]
pub(crate) struct TestStore(Mutex<Vec<(StreamKey, StreamChange)>>);

impl TestStore {
    /// What a later daemon finds of the only stream there is, if anything.
    pub(crate) fn record(&self) -> Option<StreamRecord> {
        let changes = self.0.lock().unwrap();
        let key = changes.first()?.0.clone();
        let mut record = StreamRecord {
            key,
            request: None,
            sent: None,
            attempts: 0,
            messages: Vec::new(),
            answer: None,
            abandoned: None,
        };
        for (_, change) in changes.iter().cloned() {
            match change {
                StreamChange::Begun(request) => record.request = Some(request),
                StreamChange::BegunSent(request, sent, attempts) => {
                    (record.request, record.sent) = (Some(request), Some(sent));
                    record.attempts = attempts;
                }
                StreamChange::Sent(sent) => {
                    // The line of a request is noted after the run.
                    let is_known = record.sent == Some(Sent { line: None, ..sent });
                    record.attempts += u32::from(!(is_known && sent.line.is_some()));
                    record.sent = Some(sent);
                }
                StreamChange::Message(number, message) => record.messages.push((number, message)),
                StreamChange::Answered(number, answer) => record.answer = Some((number, answer)),
                StreamChange::Abandoned(abandoned) => record.abandoned = Some(abandoned),
                StreamChange::Over => return None,
            }
        }
        Some(record)
    }

    /// What was noted, in short.
    pub(crate) fn summary(&self) -> String {
        let changes = self.0.lock().unwrap();
        let changes = changes.iter().map(|(_, change)| match change {
            StreamChange::Begun(_) => "begun".to_owned(),
            StreamChange::BegunSent(_, sent, _) => format!("begun and sent {}", sent.generation),
            StreamChange::Sent(sent) => format!("sent {}", sent.generation),
            StreamChange::Message(number, _) => format!("message {number}"),
            StreamChange::Answered(number, _) => format!("answered {number}"),
            StreamChange::Abandoned(_) => "abandoned".to_owned(),
            StreamChange::Over => "over".to_owned(),
        });
        changes.collect::<Vec<_>>().join(", ")
    }
}

impl StateStore for TestStore {
    fn save(&self, _record: SessionRecord) {}

    fn touched(&self, _now: Duration, _used: Vec<(String, Duration)>) {}

    fn move_to_disk(&self, _record: SessionRecord) -> bool {
        false
    }

    fn remove(&self, _id: &str) {}

    fn save_copy(&self, _server: &str, _copy: Vec<u8>) {}

    fn remove_server(&self, _server: &str) {}

    fn append_to_journal(&self, stream: &StreamKey, change: StreamChange) -> bool {
        self.0.lock().unwrap().push((stream.clone(), change));
        true
    }
}

#[test]
fn held_requests_are_sent_in_the_order_of_their_arrival() {
    let mut test = TestServer::without_run();
    let session = test.session(1);
    let hold = |test: &mut TestServer, method: &str| {
        let message = format!(r#"{{"jsonrpc":"2.0","id":"{method}","method":"{method}"}}"#);
        let message = Parsed::read(message.into()).unwrap();
        let (stream, turn) = test.server.request(test.now, session, message, Arrival::New);
        TestCall { stream, turn, run_id: Value::Null }
    };
    let given_up = ["a", "b"].map(|method| hold(&mut test, method));
    hold(&mut test, "c");
    for call in &given_up {
        test.leaves(call);
    }
    // These get the places of the first ones.
    hold(&mut test, "d");
    hold(&mut test, "e");
    test.attach(LinkTarget::Stdio { written: 0, earlier_output: None });
    let methods = test.lines.iter().filter_map(|line| line["method"].as_str());
    let sent: Vec<_> = methods.filter(|method| method.len() == 1).collect();
    assert_eq!(sent, ["c", "d", "e"]);
}
