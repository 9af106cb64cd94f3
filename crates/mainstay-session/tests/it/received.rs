//! What clients get, and whether it is right.

use bytes::Bytes;
use mainstay_mcp::frame::{Kind as MessageKind, Method as McpMethod, Parsed};

use crate::event::Event;
use crate::model::ClientState;
use crate::script::{Engine, Form, Kind, Method};
use crate::world::World;

/// What follows a text, up to a quotation mark.
pub(crate) fn tag<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    text[start..].split('"').next()
}

pub(crate) fn text_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("messages are UTF-8")
}

impl World {
    /// A client gets a message of a response.
    pub(crate) fn receive(&mut self, response: usize, number: u64, text: &Bytes, is_answer: bool) {
        let it = &mut self.responses[response];
        // Progress of Mainstay itself is not part of the stream, and has the number of the message before it.
        let is_shown = number == it.seen && !is_answer && progress_of(text_of(text)).is_some();
        if is_shown {
            let client = it.client;
            it.items.push((number, text.clone()));
            return self.receive_message(client, Some(response), text);
        }
        assert!(number > it.seen, "message {number} of a response came after {}", it.seen);
        let before = it.ever.entry(number).or_insert_with(|| text.clone());
        assert_eq!(before, text, "another message under the same number");
        it.seen = number;
        it.items.push((number, text.clone()));
        let client = it.client;
        if !is_answer {
            return self.receive_message(client, Some(response), text);
        }
        // The answer may have been there since the client was disconnected.
        it.answered_at.get_or_insert(it.unanswered_at.unwrap_or(self.now));
        let parts = match text.first() {
            Some(b'[') => mainstay_mcp::frame::split(text),
            _ => vec![&text[..]],
        };
        let calls = self.responses[response].calls.clone();
        for part in parts {
            let answer = Parsed::read(Bytes::copy_from_slice(part)).expect("answers are JSON");
            let id = answer.id().map(|id| id.get().to_owned()).unwrap_or_default();
            let call = calls.iter().copied().find(|call| self.calls[*call].id == id);
            let call =
                call.unwrap_or_else(|| panic!("the answer {:?} has a wrong id", text_of(text)));
            self.answered(response, call, &answer);
        }
    }

    pub(crate) fn answered(&mut self, response: usize, call: usize, answer: &Parsed) {
        let text = text_of(answer.text());
        let it = &mut self.calls[call];
        it.answers += 1;
        it.is_answered = true;
        assert_eq!(it.answers, 1, "{} is answered twice", it.key);
        let (key, method) = (it.key.clone(), it.spec.method);
        if let Some(other) = tag(text, "done ").filter(|other| *other != key) {
            self.check_late_result(call, other, method, text);
        }
        let it = &self.calls[call];
        let (client, is_initialize) = (it.client, it.is_initialize);
        let is_certain = self.daemons.len() == 1 && self.script.engine != Engine::Remote;
        if text.contains("the server stopped") && is_certain {
            let executions = self.executions.iter().filter(|execution| execution.call == call);
            let runs: Vec<_> = executions.map(|execution| &self.runs[execution.run]).collect();
            let has_stopped = runs.is_empty() || runs.iter().any(|run| !run.is_alive);
            assert!(has_stopped, "a run that continues has stopped: {text}");
        }
        let is_events = matches!(self.clients[client].form, Form::Events | Form::Connect);
        if let Some(said) = tag(text, "after ").and_then(|said| said.parse::<u32>().ok())
            && is_events
            && !self.responses[response].is_lossy
        {
            let seen = self.progress_seen(response, &self.calls[call].key);
            assert!(
                seen >= f64::from(said),
                "{} has seen progress {seen} of {said}",
                self.calls[call].key
            );
        }
        if is_initialize {
            let is_open = answer.result().is_some() && (!self.is_removed || self.is_local(client));
            self.clients[client].state =
                if is_open { ClientState::Ready } else { ClientState::Over };
            if is_open {
                let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
                self.after(1, Event::ClientReply { client, text: text.to_owned() });
                self.listen(client);
            }
        }
    }

    /// A call is answered with the result of an earlier one: of the same client, which has given it up, and only once.
    fn check_late_result(&mut self, call: usize, earlier: &str, method: Method, text: &str) {
        let client = self.calls[call].client;
        let earlier = self.call_of(earlier);
        let it = &mut self.calls[earlier];
        let is_error = text.contains("\"error\"");
        assert!(
            is_error || text.contains("mainstay/late-result"),
            "the answer to another call: {text}"
        );
        assert!(
            it.client == client && it.spec.method == method,
            "the result of another call: {text}"
        );
        assert!(
            matches!(method, Method::Read | Method::Write | Method::Replayed),
            "not a tool: {text}"
        );
        let response = &self.responses[it.response];
        let is_abandoned = it.is_given_up || response.lost_at.is_some();
        assert!(is_abandoned && !it.is_answered, "its client waits for it: {text}");
        let delivered_to = *it.delivered_to.get_or_insert(call);
        assert_eq!(delivered_to, call, "a result was delivered twice: {text}");
        // The client does not come back to it.
        it.is_given_up = true;
    }

    /// The progress of a call in its response.
    pub(crate) fn progress_seen(&self, response: usize, key: &str) -> f64 {
        highest_progress(&self.responses[response].items, key)
    }

    /// A client gets a message that is not an answer.
    pub(crate) fn receive_message(&mut self, client: usize, response: Option<usize>, text: &Bytes) {
        let message = Parsed::read(text.clone()).expect("messages are JSON");
        let text = text_of(text);
        if message.method() == Some(&McpMethod::Progress) {
            let Some(token) =
                tag(text, "\"progressToken\":\"").filter(|token| token.starts_with('k'))
            else {
                panic!("progress without a token of ours: {text}");
            };
            let call = self.call_of(token);
            assert_eq!(self.calls[call].client, client, "progress of another session: {text}");
            if let Some(response) = response {
                assert_eq!(self.calls[call].response, response, "progress of another call: {text}");
                let (_, earlier) =
                    self.responses[response].items.split_last().expect("it was just added");
                let highest = highest_progress(earlier, token);
                assert!(progress_of(text) > Some(highest), "progress falls from {highest}: {text}");
            }
            return;
        }
        if let Some(uri) = tag(text, "\"uri\":\"res:") {
            assert_eq!(uri, client.to_string(), "a resource of another session: {text}");
        }
        if let Some(owner) = tag(text, "\"owner\":\"c") {
            assert_eq!(owner, client.to_string(), "a message for another session: {text}");
        }
        if let Some(key) = tag(text, "\"key\":\"") {
            let call = &self.calls[self.call_of(key)];
            // A shared run does not say whom it means, and the call may be over.
            let is_shared = match self.script.kind {
                Kind::Shared => true,
                Kind::Isolated => self.is_local(call.client),
                Kind::Http => false,
            };
            let is_certain = !is_shared || call.is_open();
            let is_certain = is_certain && self.responses[call.response].lost_at.is_none();
            assert!(call.client == client || !is_certain, "client {client} got {text}");
        }
        if let Some(number) = tag(text, "\"number\":\"").and_then(|number| number.parse().ok()) {
            self.check_number(client, response, number);
        }
        if message.kind() == MessageKind::Request
            && let Some(id) = message.id()
        {
            let key = tag(text, "\"key\":\"").unwrap_or_default();
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"key":"{key}"}}}}"#, id.get());
            self.after(5, Event::ClientReply { client, text });
        }
    }

    /// A client gets a message of this number, in a response or in the general stream. What was not confirmed to a
    /// daemon that was killed may come twice.
    pub(crate) fn check_number(&mut self, client: usize, response: Option<usize>, number: u64) {
        if self.daemons.len() > 1 {
            return;
        }
        let at = match response {
            Some(response) => self.responses[response].seen,
            None => self.clients[client].general_seen,
        };
        let is_stdio = self.script.kind != Kind::Http;
        let it = &mut self.clients[client];
        let place = *it.numbered.entry(number).or_insert((response, at));
        assert_eq!(place, (response, at), "message {number} came twice");
        // Those of JSON responses are moved to the general stream, at another time.
        if is_stdio && it.form != Form::Json {
            let earlier = it.numbered.iter().filter(|(_, (other, _))| *other == response);
            let mut others = earlier.filter(|(other, _)| **other != number);
            let is_ordered = others.all(|(other, (_, place))| (*other < number) == (*place < at));
            assert!(is_ordered, "message {number} is not in order");
        }
    }

    pub(crate) fn call_of(&self, key: &str) -> usize {
        self.calls
            .iter()
            .position(|call| call.key == key)
            .unwrap_or_else(|| panic!("no call {key}"))
    }
}

pub(crate) fn is_answer(text: &Bytes) -> bool {
    text.first() == Some(&b'[')
        || Parsed::read(text.clone())
            .is_ok_and(|message| matches!(message.kind(), MessageKind::Result | MessageKind::Error))
}

/// The highest progress of a call among these messages.
fn highest_progress(items: &[(u64, Bytes)], key: &str) -> f64 {
    let token = format!("\"progressToken\":\"{key}\"");
    let mine = items.iter().filter(|(_, text)| text_of(text).contains(&token));
    mine.filter_map(|(_, text)| progress_of(text_of(text))).fold(0.0, f64::max)
}

fn progress_of(text: &str) -> Option<f64> {
    Some(Parsed::read(text.to_owned().into()).ok()?.progress()?.value)
}
