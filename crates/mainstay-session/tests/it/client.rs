//! Clients: what they send, and how they come back.

use bytes::Bytes;
use mainstay_mcp::frame::{Kind as MessageKind, Parsed};
use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{Arrival, Found, SessionKey, Start, StreamRef};

use crate::event::Event;
use crate::front::COMMIT;
use crate::model::{Call, Client, ClientState, Response};
use crate::received::is_answer;
use crate::script::{CallSpec, End, Engine, Form, Method};
use crate::world::{Reader, World};

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
            numbered: std::collections::BTreeMap::new(),
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
        let server = self.server()?;
        let key = server.loaded(now, &id, record, None);
        server.end_load(&id);
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

    pub(crate) fn send(
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
            let id = if number.is_multiple_of(3) {
                format!("\"i{number}\"")
            } else {
                number.to_string()
            };
            let text = if is_initialize {
                initialize(&id, self.clients[client].version)
            } else {
                request(&id, &name, client, *spec)
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
                delivered_to: None,
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
            is_lossy: self.script.engine != Engine::Process,
            answered_at: None,
            unanswered_at: None,
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

    /// A client loses a connection on its way.
    pub(crate) fn leave(&mut self, client: usize, lost: u8) {
        let now = self.instant();
        let mine = |(_, it): &(usize, &Response)| {
            !(self.calls[it.calls[0]].is_initialize && it.reader.is_none())
                && it.client == client
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
        it.unanswered_at = Some(self.now);
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

    pub(crate) fn resume_response(&mut self, client: usize, response: usize) {
        let now = self.instant();
        let Some(current) = self.current else { return };
        if self.is_removed {
            return self.give_up(response);
        }
        let Some(key) = self.session(client) else { return self.give_up(response) };
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
                (it.may_be_gone, it.is_lossy) = (false, true);
                (it.answered_at, it.unanswered_at) = (None, None);
                it.items.clear();
                it.ever.clear();
                let Some(server) = self.server() else { return };
                let (stream, turn) = server.request(now, key, message, arrival);
                self.read_response(response, current, stream, turn);
                self.after(COMMIT, Event::Commit { response });
            }
        }
    }

    pub(crate) fn was_asked(&self, response: usize) -> bool {
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

    pub(crate) fn cancel(&mut self, client: usize, which: u8, is_timeout: bool) {
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
        let reason = if is_timeout { r#","reason":"request timeout""# } else { "" };
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}{reason}}}}}"#
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
}

fn initialize(id: &str, version: ProtocolVersion) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{"sampling":{{}}}},"clientInfo":{{"name":"sim","version":"1"}}}}}}"#
    )
}

fn request(id: &str, key: &str, client: usize, spec: CallSpec) -> String {
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
