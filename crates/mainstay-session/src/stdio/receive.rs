//! Lines that a stdio server writes: which request they answer, and which of them are confirmed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{self, Id, Kind, Method, Parsed};
use mainstay_mcp::upstream::cut::{self, Cut};
use mainstay_mcp::upstream::{self, MAX_LINE, NO_MESSAGE, UpstreamError};
use tracing::debug;

use super::{Pending, Target, Undelivered};
use crate::action::Action;
use crate::links::{Link, LinkKey};
use crate::server::Server;
use crate::timers::Timer;

/// How long lines are not confirmed because of an answer: a server whose output is not confirmed has to wait at some
/// day.
const UNDELIVERED: Duration = Duration::from_secs(1);

/// What became of a request.
enum Reply {
    Answer(Parsed),
    TooLong,
    NotJson,
    /// The server sent the request back.
    Echo,
}

impl Server {
    /// Takes lines that the server wrote.
    pub fn receive(&mut self, now: Instant, key: LinkKey, lines: impl IntoIterator<Item = Bytes>) {
        for line in lines {
            let Some(stdio) = self.stdio(key) else { return };
            stdio.received += 1;
            if let Some(newline) = memchr::memchr(b'\n', &line) {
                self.receive_cut(now, key, &line[..newline], &line[newline + 1..]);
            } else if line.first() == Some(&b'[') {
                for part in frame::split(&line) {
                    self.receive_message(now, key, line.slice_ref(part));
                }
            } else {
                self.receive_message(now, key, line);
            }
        }
        self.message_received(now, key);
        self.confirm_lines(now, key);
    }

    /// Takes a line that an earlier daemon may have received: only answers to open requests count.
    pub(crate) fn receive_earlier(&mut self, now: Instant, key: LinkKey, line: &Bytes) {
        if let Some(newline) = memchr::memchr(b'\n', line) {
            if let Cut::Answer(id) = cut::read(&line[..newline], &line[newline + 1..])
                && let Some(pending) = self.stdio(key).and_then(|stdio| stdio.pending.remove(&id))
            {
                self.complete(now, key, pending, Reply::TooLong);
            }
            return;
        }
        let parts = match line.first() {
            Some(b'[') => frame::split(line).into_iter().map(|part| line.slice_ref(part)).collect(),
            _ => vec![line.clone()],
        };
        for part in parts {
            let (pending, reply) = match Parsed::read(part.clone()) {
                Ok(message) if matches!(message.kind(), Kind::Result | Kind::Error) => {
                    (self.take_pending(key, &message), Reply::Answer(message))
                }
                Ok(_) => continue,
                Err(_) => (self.take_invalid(key, &part), Reply::NotJson),
            };
            if let Some(pending) = pending {
                self.complete(now, key, pending, reply);
            }
        }
    }

    fn receive_message(&mut self, now: Instant, key: LinkKey, text: Bytes) {
        let Ok(message) = Parsed::read(text.clone()) else {
            if let Some(pending) = self.take_invalid(key, &text) {
                self.complete(now, key, pending, Reply::NotJson);
            }
            return self.act(Action::LogLine(key, marked(&text)));
        };
        debug_assert!(!frame::is_test_panic(&message), "requested by a test");
        match message.kind() {
            Kind::Result | Kind::Error => {
                if let Some(pending) = self.take_pending(key, &message) {
                    self.complete(now, key, pending, Reply::Answer(message));
                } else if let Some((pending, answer)) = self.take_without_id(key, &message) {
                    self.complete(now, key, pending, Reply::Answer(answer));
                } else if message.id().is_none() {
                    // Logged, because it may explain why a request is never answered.
                    self.act(Action::LogLine(key, text));
                } else {
                    debug!("an answer to no open request was dropped");
                }
            }
            // The ids of requests to servers are far from those that servers choose, so this is one of them.
            Kind::Request => match self.take_pending(key, &message) {
                Some(pending) => self.complete(now, key, pending, Reply::Echo),
                None => self.route_server_request(now, key, &message),
            },
            Kind::Notification if message.method() == Some(&Method::Progress) => {
                self.route_progress(now, key, &message);
            }
            Kind::Notification => {
                if !self.route_notification(now, key, &message) {
                    self.act(Action::LogLine(key, text));
                }
            }
        }
    }

    /// Takes the two ends of a line that was too long. An answer fails the request it is for. If it does not say which,
    /// it is for the only one that the server has; if the server has several, none of them fails, and it is logged.
    fn receive_cut(&mut self, now: Instant, key: LinkKey, head: &[u8], tail: &[u8]) {
        let Some(stdio) = self.stdio(key) else { return };
        let id = match cut::read(head, tail) {
            Cut::Answer(id) => Some(id),
            Cut::SomeAnswer if stdio.pending.len() == 1 => stdio.pending.keys().next().copied(),
            Cut::SomeAnswer | Cut::NoAnswer => None,
        };
        match id.and_then(|id| stdio.pending.remove(&id)) {
            Some(pending) => self.complete(now, key, pending, Reply::TooLong),
            None => self.act(Action::LogLine(key, marked(head))),
        }
    }

    /// A request that is with the server is over.
    fn complete(&mut self, now: Instant, key: LinkKey, pending: Pending, reply: Reply) {
        self.answer_received(now, key);
        let call = match pending.target {
            Target::Own(request) => {
                let result = match reply {
                    Reply::Answer(answer) => upstream::result_of(request.method, &answer),
                    other => Err(protocol_error(request.method, &other)),
                };
                return self.own_answered(now, key, &request, result);
            }
            Target::Call(call) => call,
        };
        let generation = self.generation(key);
        match reply {
            Reply::Answer(answer) => self.answered(now, call, (key, generation), answer),
            other => {
                let Some(taken) = self.calls.take(call) else { return };
                let method = taken.message.method().map_or("", Method::as_str);
                let error = protocol_error(method, &other);
                self.unusable(now, call, taken, &error, generation);
            }
        }
        let Some(stream) = self.calls.get(call).map(|call| call.stream) else { return };
        if let Some(stdio) = self.stdio(key).filter(|stdio| stdio.received > 0) {
            let (line, until) = (stdio.received, now + UNDELIVERED);
            stdio.undelivered.push_back(Undelivered { line, stream, until });
            self.timers.set(until, Timer::Confirm(key));
        }
    }

    /// The request whose id a message has.
    fn take_pending(&mut self, key: LinkKey, message: &Parsed) -> Option<Pending> {
        let id = message.id()?.as_u64()?;
        self.stdio(key)?.pending.remove(&id)
    }

    /// The request that an invalid line seems to answer.
    fn take_invalid(&mut self, key: LinkKey, line: &[u8]) -> Option<Pending> {
        let line = line.trim_ascii_start();
        if line.first() != Some(&b'{') {
            return None;
        }
        let member = br#""id":"#;
        let start = line.windows(member.len()).position(|window| window == member)?;
        let after = line[start + member.len()..].trim_ascii_start();
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let id = std::str::from_utf8(&after[..digits]).ok()?.parse().ok()?;
        self.stdio(key)?.pending.remove(&id)
    }

    /// Matches an error without an id (the server could not parse a line) to its request, and rewrites it as the
    /// answer. This is possible only if one request is pending and its line was the last one sent; otherwise the error
    /// may be about another line.
    fn take_without_id(&mut self, key: LinkKey, message: &Parsed) -> Option<(Pending, Parsed)> {
        let error = message.error().filter(|_| message.id().is_none())?;
        let [code] = frame::members(error, ["code"]).ok()?;
        // Other errors without an id respond to notifications and are ignored.
        matches!(code?.get().parse(), Ok(frame::PARSE_ERROR | frame::INVALID_REQUEST))
            .then_some(())?;
        let stdio = self.stdio(key)?;
        let (&id, only) = stdio.pending.iter().next().filter(|_| stdio.pending.len() == 1)?;
        (only.line == stdio.lines).then_some(())?;
        let own = id.to_string();
        let answer = Parsed::read(frame::error_text(Id::new(&own)?, error)).ok()?;
        Some((stdio.pending.remove(&id)?, answer))
    }

    /// Progress has the id of its request as its token.
    fn route_progress(&mut self, now: Instant, key: LinkKey, message: &Parsed) {
        let Some(reported) = message.progress() else { return };
        let id = Id::new(message.get(reported.token)).and_then(Id::as_u64);
        let Some(id) = id else { return };
        let pending = self.stdio(key).and_then(|stdio| stdio.pending.get(&id));
        let Some(&Pending { target: Target::Call(call), .. }) = pending else { return };
        let Some(call) = self.awaiting_call(call) else { return };
        let Some(call) = self.calls.get_mut(call) else { return };
        let stream = call.stream;
        if let Some(progress) = call.progress.as_mut()
            && let Some(text) = progress.report(now, message, reported)
        {
            self.push(stream, text);
        }
    }

    /// Confirms the lines that need not be delivered to another daemon.
    pub(crate) fn confirm_lines(&mut self, now: Instant, key: LinkKey) {
        let is_frozen = self.is_frozen;
        let streams = &self.streams;
        let Some(stdio) = self.links.get_mut(key).and_then(Link::as_stdio_mut) else { return };
        let is_open =
            |stream| streams.get(stream).is_some_and(|it| !it.is_finished() && !it.is_closed);
        while stdio.undelivered.front().is_some_and(|it| now >= it.until || !is_open(it.stream)) {
            stdio.undelivered.pop_front();
        }
        let confirmed = stdio.undelivered.front().map_or(stdio.received, |it| it.line - 1);
        if !is_frozen && confirmed != stdio.confirmed {
            stdio.confirmed = confirmed;
            self.act(Action::ConfirmLines(key, confirmed));
        }
    }
}

fn protocol_error(method: &str, reply: &Reply) -> UpstreamError {
    match reply {
        Reply::TooLong => {
            upstream::protocol(method, format_args!("a line of more than {MAX_LINE} bytes"))
        }
        Reply::NotJson => upstream::protocol(method, "an answer that is not valid JSON in UTF-8"),
        Reply::Echo | Reply::Answer(_) => {
            UpstreamError::Protocol("it is not an MCP server: it echoed our request".to_owned())
        }
    }
}

/// A line that is not an MCP message, as the log has it.
fn marked(text: &[u8]) -> Bytes {
    [NO_MESSAGE.as_bytes(), text].concat().into()
}
