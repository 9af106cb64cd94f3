//! Clients, and the front that serves them.

use bytes::Bytes;
use mainstay_mcp::frame::{Kind as MessageKind, Method as McpMethod, Parsed};
use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{
    Arrival, Commit, Found, Peek, Read, RelayNews, SessionKey, Start, StreamRef,
};

use crate::model::{Call, Client, ClientState, Response};
use crate::script::{CallSpec, End, Form, Kind, Method};
use crate::world::{Event, Reader, World};

/// After this time the head of a response is sent.
const COMMIT: u64 = 150;

/// What follows a text, up to a quotation mark.
pub(crate) fn tag<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    text[start..].split('"').next()
}

fn text_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("messages are UTF-8")
}

impl World {
    pub(crate) fn open(&mut self, version: u8, form: Form, listens: bool) {
        let now = self.instant();
        let Some(server) = self.server() else { return };
        let local = (form == Form::Local).then(|| server.open_local(now));
        let key = match local {
            Some(key) => key,
            None => server.open(now).expect("there is room"),
        };
        let session = server.session_id(key).expect("it is new").to_string();
        let version = ProtocolVersion::ALL[usize::from(version) % 4];
        self.clients.push(Client {
            form,
            version,
            state: ClientState::Opening,
            session,
            local,
            wants_to_listen: (listens || form == Form::Connect) && form != Form::Local,
            general_event: None,
            general: std::collections::BTreeMap::new(),
            general_seen: 0,
            next_call: 0,
            heard: std::collections::BTreeMap::new(),
        });
        let client = self.clients.len() - 1;
        let spec = CallSpec {
            method: Method::Ping,
            takes: 0,
            progress: 0,
            asks: false,
            logs: false,
            end: End::Answer,
        };
        self.send(client, &[spec], key, true, false);
    }

    pub(crate) fn call(&mut self, client: usize, specs: &[CallSpec], is_batch: bool) {
        let it = &self.clients[client];
        if it.state != ClientState::Ready {
            return;
        }
        let is_batch =
            is_batch && it.version == ProtocolVersion::V2025_03_26 && it.form != Form::Local;
        let Some(key) = self.session(client) else { return };
        self.send(client, if is_batch { specs } else { &specs[..1] }, key, false, is_batch);
    }

    /// The session of a client, which may have to be loaded.
    pub(crate) fn session(&mut self, client: usize) -> Option<SessionKey> {
        let now = self.instant();
        let (id, local) = (self.clients[client].session.clone(), self.clients[client].local);
        if self.clients[client].state == ClientState::Over {
            return None;
        }
        let server = self.server()?;
        if local.is_some() {
            return local;
        }
        if let Some(key) = server.session(&id) {
            return Some(key);
        }
        server.begin_load(&id);
        let record = self.store.state().session(&id);
        let key = self.server()?.loaded(now, &id, record, None);
        if key.is_none() {
            let is_connect = self.clients[client].form == Form::Connect;
            assert!(
                is_connect || self.clients[client].state == ClientState::Opening,
                "session {id} is not known"
            );
            self.end_client(client);
        }
        key
    }

    pub(crate) fn end_client(&mut self, client: usize) {
        self.clients[client].state = ClientState::Over;
        for call in self.calls.iter_mut().filter(|call| call.client == client) {
            call.is_given_up = true;
        }
    }

    fn send(
        &mut self,
        client: usize,
        specs: &[CallSpec],
        key: SessionKey,
        is_initialize: bool,
        is_batch: bool,
    ) {
        let now = self.instant();
        let response = self.responses.len();
        let mut calls = Vec::new();
        let mut messages = Vec::new();
        for spec in specs {
            self.clients[client].next_call += 1;
            let number = self.clients[client].next_call;
            let name = format!("k{client}.{number}");
            let id = if number % 3 == 0 { format!("\"i{number}\"") } else { number.to_string() };
            let text = if is_initialize {
                initialize(&id, self.clients[client].version)
            } else {
                request(&id, &name, client, spec)
            };
            messages.push(Parsed::read(text.into()).expect("it is a request"));
            calls.push(self.calls.len());
            self.calls.push(Call {
                client,
                response,
                key: name,
                id,
                spec: *spec,
                is_initialize,
                executions: 0,
                interruptions: 0,
                answers: 0,
                is_given_up: false,
                interacted_at: None,
                is_answered: false,
            });
        }
        let message = messages[0].text().clone();
        let current = self.current.expect("there is a daemon");
        self.responses.push(Response {
            client,
            calls,
            message: message.clone(),
            begun: self.now,
            reader: None,
            is_committed: false,
            event: None,
            has_id: false,
            seen: 0,
            items: Vec::new(),
            ever: std::collections::BTreeMap::new(),
            lost_at: None,
            may_be_gone: false,
            resent: 0,
            is_lossy: self.script.has_past,
            answered_at: None,
        });
        let Some(server) = self.server() else { return };
        let (stream, turn) = if is_batch {
            server.batch(now, key, messages)
        } else {
            server.request(now, key, messages.remove(0), Arrival::New)
        };
        self.read_response(response, current, stream, turn);
        self.after(COMMIT, Event::Commit { response });
    }

    fn read_response(&mut self, response: usize, daemon: usize, stream: StreamRef, turn: u64) {
        self.responses[response].reader = Some((daemon, stream, turn));
        self.responses[response].lost_at = None;
        self.daemons[daemon].readers.insert(stream, Reader::Response(response));
        self.wake(daemon, stream);
    }

    /// A stream may have something to read.
    pub(crate) fn pump(&mut self, daemon: usize, stream: StreamRef) {
        let Some(reader) = self.daemons[daemon].readers.get(&stream).cloned() else { return };
        match reader {
            Reader::Response(response) => self.pump_response(response, daemon, stream),
            Reader::General { client, turn } => self.pump_general(client, daemon, stream, turn),
            Reader::Relay { key, turn } => loop {
                let Some(server) = self.daemons[daemon].server.as_mut() else { return };
                let news = match server.read(stream, turn) {
                    Read::Item(item) => {
                        let text = text_of(&item.message).to_owned();
                        if item.is_answer {
                            RelayNews::Answered(text)
                        } else {
                            RelayNews::Said(item.number, text)
                        }
                    }
                    Read::Wait => return,
                    Read::End => {
                        self.daemons[daemon].readers.remove(&stream);
                        return self.relay(&key, RelayNews::Lost);
                    }
                };
                let is_last = matches!(news, RelayNews::Answered(_));
                self.relay(&key, news);
                if is_last {
                    self.daemons[daemon].readers.remove(&stream);
                    return;
                }
            },
        }
    }

    fn pump_response(&mut self, response: usize, daemon: usize, stream: StreamRef) {
        let Some((_, at, turn)) = self.responses[response].reader else { return };
        assert_eq!(at, stream);
        let now = self.instant();
        let client = self.responses[response].client;
        let is_json = matches!(self.clients[client].form, Form::Json | Form::Local);
        loop {
            let Some(server) = self.daemons[daemon].server.as_mut() else { return };
            if !self.responses[response].is_committed {
                match server.peek(stream, turn) {
                    Peek::Wait => return,
                    Peek::Message => {
                        self.commit(response, true);
                        continue;
                    }
                    Peek::Answer(_) | Peek::End => {}
                }
            }
            let Some(server) = self.daemons[daemon].server.as_mut() else { return };
            match server.read(stream, turn) {
                Read::Wait => return,
                Read::Item(item) => {
                    let is_committed = self.responses[response].is_committed;
                    if is_committed && !is_json && !self.responses[response].has_id {
                        self.responses[response].has_id = true;
                        server.event_id_sent(stream);
                    }
                    if item.is_answer {
                        server.reader_left(now, stream, turn);
                        self.daemons[daemon].readers.remove(&stream);
                        self.responses[response].reader = None;
                    } else if is_json {
                        self.responses[response].seen = item.number;
                        if let Some(key) = self.session(client).filter(|_| !self.is_local(client))
                            && let Some(server) = self.daemons[daemon].server.as_mut()
                        {
                            server.push_general(key, item.message);
                        }
                        continue;
                    }
                    self.receive(response, item.number, &item.message, item.is_answer);
                    if item.is_answer {
                        return;
                    }
                }
                Read::End => {
                    server.reader_left(now, stream, turn);
                    self.daemons[daemon].readers.remove(&stream);
                    self.responses[response].reader = None;
                    // A client that cancelled gets no answer.
                    return self.lose_connection(response, false);
                }
            }
        }
    }

    pub(crate) fn commit_due(&mut self, response: usize) {
        if let Some((daemon, stream, _)) = self.responses[response].reader
            && !self.responses[response].is_committed
            && self.now >= self.responses[response].begun + COMMIT
        {
            self.commit(response, false);
            self.wake(daemon, stream);
        }
    }

    fn commit(&mut self, response: usize, has_message: bool) {
        let now = self.instant();
        let Some((daemon, stream, _)) = self.responses[response].reader else { return };
        let it = &self.responses[response];
        let client = &self.clients[it.client];
        let is_events = matches!(client.form, Form::Events | Form::Connect);
        let is_primed = is_events && client.version == ProtocolVersion::V2025_11_25;
        let journal_at = if has_message { now } else { self.at(it.begun + COMMIT) };
        let commit =
            Commit { is_events, is_repeated: self.calls[it.calls[0]].is_initialize, journal_at };
        let Some(server) = self.daemons[daemon].server.as_mut() else { return };
        let event = server.commit(now, stream, commit);
        if is_primed {
            server.event_id_sent(stream);
        }
        let it = &mut self.responses[response];
        it.event = event;
        (it.is_committed, it.has_id) = (true, is_primed);
    }

    /// A client has lost the connection of a response before its end.
    pub(crate) fn lose_connection(&mut self, response: usize, is_killed: bool) {
        let it = &mut self.responses[response];
        let is_connect = self.clients[it.client].form == Form::Connect;
        it.lost_at = Some(self.now);
        let is_initialize = self.calls[it.calls[0]].is_initialize;
        let can_resend = is_connect && is_killed && it.calls.len() == 1;
        if (!it.has_id && !can_resend) || is_initialize {
            self.give_up(response);
        }
    }

    fn give_up(&mut self, response: usize) {
        for call in self.responses[response].calls.clone() {
            self.calls[call].is_given_up = true;
            if self.calls[call].is_initialize && !self.calls[call].is_answered {
                self.clients[self.calls[call].client].state = ClientState::Over;
            }
        }
    }

    /// The next daemon continues a response whose connection was passed on to it.
    pub(crate) fn pass_on(&mut self, response: usize) {
        let now = self.instant();
        let it = &self.responses[response];
        let (client, seen, event) = (it.client, it.seen, it.event.clone());
        let (Some(event), Some(current)) = (event, self.current) else { return };
        let Some(key) = self.session(client) else { return };
        let Some(server) = self.server() else { return };
        match server.find(key, &event.at(seen)) {
            Found::Request(stream, start) => {
                let Some((turn, position)) = server.attach_reader(now, stream, start) else {
                    return;
                };
                assert!(position >= seen, "the reader begins before what was sent");
                self.read_response(response, current, stream, turn);
            }
            found => panic!("the next daemon does not know {event:?}: {found:?}"),
        }
    }

    /// The next daemon repeats an `initialize` whose connection was passed on to it.
    pub(crate) fn repeat_initialize(&mut self, response: usize) {
        let now = self.instant();
        let Some(current) = self.current else { return };
        let it = &mut self.responses[response];
        (it.is_committed, it.has_id, it.event, it.seen, it.begun) =
            (false, false, None, 0, self.now);
        it.ever.clear();
        it.items.clear();
        let message = Parsed::read(it.message.clone()).expect("it is a request");
        let id = self.clients[it.client].session.clone();
        let Some(server) = self.server() else { return };
        let key = server.open_as(now, &id).expect("there is room");
        let (stream, turn) = server.request(now, key, message, Arrival::New);
        self.read_response(response, current, stream, turn);
        self.commit(response, true);
    }

    /// Whether a later daemon knows the stream of a response.
    pub(crate) fn is_journaled(&self, response: &Response) -> bool {
        let Some(event) = &response.event else { return false };
        let event = event.to_string();
        let number =
            u64::from_str_radix(&event[..16], 16).expect("it begins with the number of the stream");
        self.store
            .state()
            .streams
            .contains_key(&(self.clients[response.client].session.clone(), number))
    }

    /// A client loses a connection on its way.
    pub(crate) fn leave(&mut self, client: usize, lost: u8) {
        let now = self.instant();
        let mine = |(_, it): &(usize, &Response)| {
            it.client == client
                && it.lost_at.is_none()
                && (it.reader.is_some() || (it.has_id && lost > 0))
        };
        let Some(response) =
            self.responses.iter().enumerate().rev().find(mine).map(|(index, _)| index)
        else {
            return;
        };
        if let Some((daemon, stream, turn)) = self.responses[response].reader.take() {
            self.daemons[daemon].readers.remove(&stream);
            if let Some(server) = self.daemons[daemon].server.as_mut() {
                server.reader_left(now, stream, turn);
            }
        }
        if !self.responses[response].has_id {
            return self.give_up(response);
        }
        let it = &mut self.responses[response];
        for _ in 0..lost {
            it.items.pop();
        }
        it.seen = it.items.last().map_or(0, |(number, _)| *number);
        it.lost_at = Some(self.now);
        for call in it.calls.clone() {
            if self.calls[call].is_answered
                && !self.responses[response].items.iter().any(|(_, text)| is_answer(text))
            {
                self.calls[call].is_answered = false;
                self.calls[call].answers -= 1;
            }
        }
        let has_answer = self.responses[response].items.iter().any(|(_, text)| is_answer(text));
        if has_answer {
            self.responses[response].lost_at = None;
        }
    }

    /// A client continues the responses that it has lost: the last one, or all.
    pub(crate) fn resume(&mut self, client: usize, is_all: bool) {
        let mut lost: Vec<_> = (0..self.responses.len()).collect();
        lost.retain(|response| {
            let it = &self.responses[*response];
            it.client == client
                && it.lost_at.is_some()
                && it.calls.iter().any(|call| self.calls[*call].is_open())
        });
        if !is_all {
            lost = lost.pop().into_iter().collect();
        }
        for response in lost {
            self.resume_response(client, response);
        }
    }

    fn resume_response(&mut self, client: usize, response: usize) {
        let now = self.instant();
        let Some(current) = self.current else { return };
        if self.is_removed {
            return self.give_up(response);
        }
        let Some(key) = self.session(client) else { return };
        let it = &self.responses[response];
        let away = self.now - it.lost_at.unwrap_or(self.now);
        let found = match &it.event {
            Some(event) if it.has_id => {
                let event = event.at(it.seen);
                let Some(server) = self.server() else { return };
                server.find(key, &event)
            }
            _ => Found::Gone(None),
        };
        match found {
            Found::Request(stream, start) => {
                let attached =
                    self.server().and_then(|server| server.attach_reader(now, stream, start));
                let Some((turn, position)) = attached else { return };
                assert!(
                    position >= self.responses[response].seen,
                    "the reader begins before what was seen"
                );
                self.responses[response].is_committed = true;
                self.read_response(response, current, stream, turn);
            }
            Found::General(_) => panic!("the stream of a request is not a general one"),
            Found::Over | Found::Gone(_) => {
                let it = &self.responses[response];
                let count = self.responses.iter().filter(|other| other.client == client).count();
                let is_kept = match it.answered_at {
                    Some(at) => self.now < at + 59_900,
                    None => away < 29_900,
                };
                let is_known = it.has_id && !it.may_be_gone && count <= 16 && is_kept;
                let is_open = it.calls.iter().any(|call| self.calls[*call].is_open());
                assert!(
                    !is_known || !is_open,
                    "{:?} is not known after {away} ms",
                    self.calls[it.calls[0]].key
                );
                let is_unknown = it.may_be_gone || !it.has_id;
                let is_single = it.calls.len() == 1;
                let can_resend =
                    self.clients[client].form == Form::Connect && is_unknown && is_single;
                if !can_resend {
                    return self.give_up(response);
                }
                let message = Parsed::read(it.message.clone()).expect("it is a request");
                let arrival = Arrival::Repeated { was_asked: self.was_asked(response) };
                let it = &mut self.responses[response];
                it.resent += 1;
                it.begun = self.now;
                (it.is_committed, it.has_id, it.event, it.seen) = (false, false, None, 0);
                (it.may_be_gone, it.is_lossy, it.answered_at) = (false, true, None);
                it.items.clear();
                it.ever.clear();
                let Some(server) = self.server() else { return };
                let (stream, turn) = server.request(now, key, message, arrival);
                self.read_response(response, current, stream, turn);
                self.after(COMMIT, Event::Commit { response });
            }
        }
    }

    fn was_asked(&self, response: usize) -> bool {
        let is_request = |text: &Bytes| {
            Parsed::read(text.clone()).is_ok_and(|message| message.kind() == MessageKind::Request)
        };
        self.responses[response].ever.values().any(is_request)
    }

    pub(crate) fn listen(&mut self, client: usize) {
        let now = self.instant();
        let Some(current) = self.current else { return };
        let it = &self.clients[client];
        if it.state != ClientState::Ready || !it.wants_to_listen || self.is_removed {
            return;
        }
        let Some(key) = self.session(client) else { return };
        let it = &self.clients[client];
        let (is_connect, seen, event) =
            (it.form == Form::Connect, it.general_seen, it.general_event.clone());
        let Some(server) = self.server() else { return };
        let start = match event {
            Some(event) => match server.find(key, &event.at(seen)) {
                Found::General(start) => start,
                _ => panic!("a general stream is always known"),
            },
            None => Start::Unread,
        };
        let event = server.general_event(key);
        let Some((stream, turn, _)) = server.listen(now, key, start, is_connect) else { return };
        if start == Start::Unread {
            self.clients[client].general_seen = 0;
        }
        self.clients[client].general_event = event;
        self.daemons[current].readers.insert(stream, Reader::General { client, turn });
        self.wake(current, stream);
    }

    pub(crate) fn unlisten(&mut self, client: usize, lost: u8) {
        let now = self.instant();
        let Some(current) = self.current else { return };
        let readers = &mut self.daemons[current].readers;
        let mine = |(_, reader): &(&StreamRef, &Reader)| matches!(reader, Reader::General { client: it, .. } if *it == client);
        let Some((stream, turn)) =
            readers.iter().find(mine).and_then(|(stream, reader)| match reader {
                Reader::General { turn, .. } => Some((*stream, *turn)),
                _ => None,
            })
        else {
            return;
        };
        readers.remove(&stream);
        if let Some(server) = self.server() {
            server.reader_left(now, stream, turn);
        }
        let it = &mut self.clients[client];
        it.wants_to_listen = false;
        for _ in 0..lost {
            it.general_seen =
                it.general.range(..it.general_seen).next_back().map_or(0, |(number, _)| *number);
        }
    }

    fn pump_general(&mut self, client: usize, daemon: usize, stream: StreamRef, turn: u64) {
        loop {
            let Some(server) = self.daemons[daemon].server.as_mut() else { return };
            match server.read(stream, turn) {
                Read::Item(item) => {
                    let it = &mut self.clients[client];
                    assert!(
                        item.number > it.general_seen,
                        "the order of the general stream is not kept"
                    );
                    it.general_seen = item.number;
                    it.general.insert(item.number, item.message.clone());
                    self.receive_message(client, None, &item.message);
                }
                Read::Wait => return,
                Read::End => {
                    self.daemons[daemon].readers.remove(&stream);
                    return;
                }
            }
        }
    }

    pub(crate) fn cancel(&mut self, client: usize, which: u8) {
        if self.clients[client].state != ClientState::Ready || self.current.is_none() {
            return;
        }
        let mut open: Vec<_> = (0..self.calls.len()).collect();
        open.retain(|call| self.calls[*call].client == client && self.calls[*call].is_open());
        open.retain(|call| self.responses[self.calls[*call].response].reader.is_some());
        if open.is_empty() {
            return;
        }
        let call = open[usize::from(which) % open.len()];
        self.calls[call].is_given_up = true;
        let id = &self.calls[call].id;
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        self.post(client, text);
    }

    pub(crate) fn close(&mut self, client: usize) {
        let now = self.instant();
        let (id, local) = (self.clients[client].session.clone(), self.clients[client].local);
        if self.clients[client].state == ClientState::Over || self.current.is_none() {
            return;
        }
        if local.is_none() && !self.script.expires {
            self.session(client);
        }
        self.end_client(client);
        let Some(server) = self.server() else { return };
        match local {
            Some(key) => server.close_local(now, key),
            None => drop(server.close(now, &id)),
        }
    }

    pub(crate) fn post(&mut self, client: usize, text: String) {
        let now = self.instant();
        if self.clients[client].state != ClientState::Ready {
            return;
        }
        let Some(key) = self.session(client) else { return };
        let message = Parsed::read(text.into()).expect("clients write JSON");
        if let Some(server) = self.server() {
            server.post(now, key, &message);
        }
    }

    /// A client gets a message of a response.
    fn receive(&mut self, response: usize, number: u64, text: &Bytes, is_answer: bool) {
        let it = &mut self.responses[response];
        assert!(number > it.seen, "message {number} of a response came after {}", it.seen);
        let before = it.ever.entry(number).or_insert_with(|| text.clone());
        assert_eq!(before, text, "another message under the same number");
        it.seen = number;
        it.items.push((number, text.clone()));
        let client = it.client;
        if !is_answer {
            return self.receive_message(client, Some(response), text);
        }
        it.answered_at.get_or_insert(self.now);
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

    fn answered(&mut self, response: usize, call: usize, answer: &Parsed) {
        let text = text_of(answer.text());
        let it = &mut self.calls[call];
        it.answers += 1;
        it.is_answered = true;
        assert_eq!(it.answers, 1, "{} is answered twice", it.key);
        if let Some(key) = tag(text, "done ") {
            assert_eq!(key, it.key, "the answer to another call");
        }
        let (client, is_initialize) = (it.client, it.is_initialize);
        let is_events = matches!(self.clients[client].form, Form::Events | Form::Connect);
        if let Some(said) = tag(text, "after ").and_then(|said| said.parse::<u32>().ok())
            && is_events
            && !self.responses[response].is_lossy
        {
            let seen = self.progress_seen(response, &self.calls[call].key);
            assert!(seen >= said, "{} has seen progress {seen} of {said}", self.calls[call].key);
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

    /// The progress of a call in its response.
    fn progress_seen(&self, response: usize, key: &str) -> u32 {
        let token = format!("\"progressToken\":\"{key}\"");
        let items = self.responses[response].items.iter();
        let mine = items.filter(|(_, text)| text_of(text).contains(&token));
        mine.filter_map(|(_, text)| progress_of(text_of(text))).max().unwrap_or(0)
    }

    /// A client gets a message that is not an answer.
    fn receive_message(&mut self, client: usize, response: Option<usize>, text: &Bytes) {
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
                let token = format!("\"progressToken\":\"{token}\"");
                let highest = earlier.iter().filter(|(_, it)| text_of(it).contains(&token));
                let highest =
                    highest.filter_map(|(_, it)| progress_of(text_of(it))).max().unwrap_or(0);
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
            // A shared server does not say whom it means, and the call may be over.
            let is_certain = self.script.kind != Kind::Shared || call.is_open();
            let is_certain = is_certain && self.responses[call.response].lost_at.is_none();
            assert!(call.client == client || !is_certain, "client {client} got {text}");
        }
        if let Some(number) = tag(text, "\"number\":\"").and_then(|number| number.parse().ok()) {
            self.heard(client, response, number);
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
    fn heard(&mut self, client: usize, response: Option<usize>, number: u64) {
        if self.daemons.len() > 1 {
            return;
        }
        let at = match response {
            Some(response) => self.responses[response].seen,
            None => self.clients[client].general_seen,
        };
        let is_stdio = self.script.kind != Kind::Http;
        let it = &mut self.clients[client];
        let place = *it.heard.entry(number).or_insert((response, at));
        assert_eq!(place, (response, at), "message {number} came twice");
        // Those of JSON responses are moved to the general stream, at another time.
        if is_stdio && it.form != Form::Json {
            let earlier = it.heard.iter().filter(|(_, (other, _))| *other == response);
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

fn is_answer(text: &Bytes) -> bool {
    text.first() == Some(&b'[')
        || Parsed::read(text.clone())
            .is_ok_and(|message| matches!(message.kind(), MessageKind::Result | MessageKind::Error))
}

fn progress_of(text: &str) -> Option<u32> {
    let start = text.find("\"progress\":")? + "\"progress\":".len();
    let digits: String = text[start..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn initialize(id: &str, version: ProtocolVersion) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{"sampling":{{}}}},"clientInfo":{{"name":"sim","version":"1"}}}}}}"#
    )
}

fn request(id: &str, key: &str, client: usize, spec: &CallSpec) -> String {
    let (method, params) = match spec.method {
        Method::Read => ("tools/call", r#""name":"read","#.to_owned()),
        Method::Write => ("tools/call", r#""name":"write","#.to_owned()),
        Method::Replayed => ("tools/call", r#""name":"replayed","#.to_owned()),
        Method::Prompt => ("prompts/get", r#""name":"prompt","#.to_owned()),
        Method::Vendor => ("vendor/do", String::new()),
        Method::List => ("tools/list", String::new()),
        Method::Subscribe => ("resources/subscribe", format!(r#""uri":"res:{client}","#)),
        Method::Unsubscribe => ("resources/unsubscribe", format!(r#""uri":"res:{client}","#)),
        Method::Level => ("logging/setLevel", r#""level":"debug","#.to_owned()),
        Method::Ping => ("ping", String::new()),
    };
    let token =
        if spec.progress > 0 { format!(r#","progressToken":"{key}""#) } else { String::new() };
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{"key":"{key}"{token}}}}}}}"#
    )
}
