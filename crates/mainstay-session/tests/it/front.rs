//! The front: it reads streams for clients, and passes responses on to the next daemon.

use mainstay_mcp::frame::Parsed;
use mainstay_mcp::version::ProtocolVersion;
use mainstay_session::{Arrival, Commit, Found, Peek, Read, RelayNews, StreamRef};

use crate::model::{ClientState, Response};
use crate::received::text_of;
use crate::script::Form;
use crate::world::{Reader, World};

/// After this time the head of a response is sent.
pub(crate) const COMMIT: u64 = 150;

impl World {
    pub(crate) fn read_response(
        &mut self,
        response: usize,
        daemon: usize,
        stream: StreamRef,
        turn: u64,
    ) {
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
                            RelayNews::Message(item.number, text)
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

    pub(crate) fn pump_response(&mut self, response: usize, daemon: usize, stream: StreamRef) {
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

    pub(crate) fn commit(&mut self, response: usize, has_message: bool) {
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
        it.unanswered_at = Some(self.now);
        let is_initialize = self.calls[it.calls[0]].is_initialize;
        let can_resend = is_connect && is_killed && it.calls.len() == 1;
        if (!it.has_id && !can_resend) || is_initialize {
            self.give_up(response);
        }
    }

    pub(crate) fn give_up(&mut self, response: usize) {
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
        if self.is_removed {
            return self.give_up(response);
        }
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

    pub(crate) fn pump_general(
        &mut self,
        client: usize,
        daemon: usize,
        stream: StreamRef,
        turn: u64,
    ) {
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
}
