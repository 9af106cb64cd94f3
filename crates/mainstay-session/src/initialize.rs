//! The client's `initialize`: answered with the server's own answer, or with the copy of the last one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{self, Handshake, Parsed, result_for_client};
use mainstay_mcp::upstream::Hello;
use mainstay_mcp::version::ProtocolVersion;
use serde_json::value::RawValue;

use crate::action::Action;
use crate::availability::Availability;
use crate::calls::{CallKey, CallKind, Stage, refusal};
use crate::list_requests::PATIENCE;
use crate::messages;
use crate::replay::NoAnswer;
use crate::server::Server;
use crate::timers::Timer;

/// A run that could not be reached is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The minimum time to wait for a server that has never been ready: its first start may download packages.
const FIRST_START: Duration = Duration::from_secs(60);

/// How often the server's last line is read for a client that asked for progress.
const LOOK: Duration = Duration::from_secs(1);

/// Progress is repeated after this many looks without a new line, so that the client sees that the wait continues.
const REPEAT: u32 = 5;

/// How long the answer waits for the record of the session to be on disk.
const RECORD_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Initialize {
    version: String,
    params: Arc<RawValue>,
    patience: Duration,
    until: Instant,
    /// When a run that could not be reached is tried again.
    try_again: Option<Instant>,
    report: Option<Report>,
}

/// Progress for a client that waits for the server.
#[derive(Debug)]
struct Report {
    next: Instant,
    count: u32,
    sent: String,
    looks: u32,
}

/// The protocol version that a client asks for.
pub fn client_version(initialize: &Parsed) -> Option<ProtocolVersion> {
    Handshake::read(initialize.params()?)?.protocol_version.parse().ok()
}

impl Server {
    pub(crate) fn begin_initialize(&mut self, now: Instant, key: CallKey) {
        let Some(mut call) = self.calls.take(key) else { return };
        let Some((version, params)) = read_params(&call.message) else {
            let what = "`initialize` needs a protocolVersion";
            let text = call.message.id().map(|id| frame::error(id, frame::INVALID_PARAMS, what));
            return self.answer_taken(now, key, call, text);
        };
        let session_key = call.session;
        if let Some(session) = self.sessions.get_mut(session_key) {
            // Its own run, or its session with a server that speaks HTTP, is opened with them.
            session.client.params = Some(Arc::clone(&params));
        }
        self.isolate(now, session_key);
        // A run that is up but silent is given up earlier if there is a copy to answer with.
        let patience = match &self.copies.hello {
            Some(_) => PATIENCE,
            None => call.hold.max(FIRST_START),
        };
        let mut initialize = Initialize::new(now, version, params, patience);
        // A token that cannot be read is the same as none.
        call.progress = self.progress_of(&call).ok().flatten();
        if call.progress.is_some() {
            let (count, sent, looks) = (0, String::new(), 0);
            initialize.report = Some(Report { next: now + LOOK, count, sent, looks });
            self.timers.set(now + LOOK, Timer::Call(key));
        }
        call.kind = CallKind::Initialize(Box::new(initialize));
        self.calls.put_back(key, call);
        self.timers.set(now + patience, Timer::Call(key));
        self.advance_initialize(now, key);
    }

    /// Answers if that is possible now.
    pub(crate) fn advance_initialize(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let CallKind::Initialize(initialize) = &mut call.kind else { return };
        let (until, patience) = (initialize.until, initialize.patience);
        let (is_paused, session_key) =
            (initialize.try_again.is_some_and(|at| now < at), call.session);
        let Some(session) = self.sessions.get(session_key) else { return };
        let present = self.availability_for(session).clone();
        if let (Availability::Up(run), false) = (&present, is_paused)
            && now < until
        {
            if self.links.get(run.link).is_some_and(|link| link.as_stdio().is_some()) {
                // It was initialized already, with Mainstay's name if it is shared.
                let result = Arc::<RawValue>::from(run.hello.result.clone());
                return self.welcome(now, key, &result, run.generation);
            }
            if let Some(call) = self.calls.get_mut(key) {
                call.stage = Stage::OpeningUpstream;
            }
            self.open_upstream(now, session_key, run.link, Some(key));
            if self.calls.get(key).is_some_and(|call| self.is_slow(call)) {
                self.watch(run.link);
            }
            return;
        }
        if let Some(result) = self.copies.hello.clone()
            && !matches!(present, Availability::Removed)
        {
            return self.welcome(now, key, &result, 0);
        }
        let no_answer = match &present {
            Availability::Coming { due: Some(due), .. } if *due > until => Some(NoAnswer::Down),
            Availability::Up(_) | Availability::Coming { .. } if now >= until => {
                Some(NoAnswer::Late)
            }
            Availability::Up(_) | Availability::Coming { .. } => None,
            Availability::Down { .. } => Some(NoAnswer::Down),
            Availability::Removed => Some(NoAnswer::Removed),
        };
        if let Some(no_answer) = no_answer {
            if no_answer == NoAnswer::Down {
                self.report_demand(session_key);
            }
            let text = messages::no_answer(&self.name, no_answer, &present, now, patience);
            return self.refuse_initialize(now, key, messages::cause(no_answer), &text);
        }
        if let Some(call) = self.calls.get_mut(key) {
            call.stage = Stage::Waiting;
        }
    }

    /// A timer has fired.
    pub(crate) fn initialize_due(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let CallKind::Initialize(initialize) = &mut call.kind else { return };
        if initialize.report.as_ref().is_some_and(|report| now >= report.next) {
            if let Some(report) = &mut initialize.report {
                report.next = now + LOOK;
                self.timers.set(now + LOOK, Timer::Call(key));
            }
            let owner = self.calls.get(key).and_then(|call| self.run_owner(call.session));
            self.act(Action::ReadLastLine(key, owner));
        }
        let Some(call) = self.calls.get_mut(key) else { return };
        let CallKind::Initialize(initialize) = &call.kind else { return };
        match &call.stage {
            Stage::AwaitingRecord { until, answer } if now >= *until => {
                // The record is written later then.
                let answer = answer.clone();
                self.answer(now, key, Some(answer));
            }
            Stage::OpeningUpstream if now >= initialize.until => {
                call.stage = Stage::Waiting;
                self.advance_initialize(now, key);
            }
            Stage::Waiting => self.advance_initialize(now, key),
            _ => {}
        }
    }

    /// The client's session with an HTTP server was opened, or could not be.
    pub(crate) fn upstream_initialized(
        &mut self,
        now: Instant,
        key: CallKey,
        generation: u64,
        hello: Option<&Hello>,
    ) {
        let Some(call) = self.calls.get_mut(key) else { return };
        if !matches!(call.stage, Stage::OpeningUpstream) {
            return;
        }
        call.stage = Stage::Waiting;
        if let Some(hello) = hello {
            let result = Arc::<RawValue>::from(hello.result.clone());
            return self.welcome(now, key, &result, generation);
        }
        // Most likely the availability is about to change.
        if let CallKind::Initialize(initialize) = &mut call.kind {
            initialize.try_again = Some(now + TRY_AGAIN);
            self.timers.set(now + TRY_AGAIN, Timer::Call(key));
        }
        self.advance_initialize(now, key);
    }

    /// The session begins with this answer of the run of that generation; 0 if it is not of the present run.
    fn welcome(&mut self, now: Instant, key: CallKey, result: &RawValue, generation: u64) {
        let Some(call) = self.calls.get(key) else { return };
        let CallKind::Initialize(initialize) = &call.kind else { return };
        let version = agreed_version(&initialize.version, result);
        let text = result_for_client(result.get().as_bytes(), version.as_str());
        let text = text.and_then(|text| Some(frame::result_text(call.message.id()?, &text)));
        let Some(answer) = text else {
            return self.refuse_initialize(
                now,
                key,
                "bad-answer",
                "the server's answer is invalid",
            );
        };
        let (params, session_key) = (Arc::clone(&initialize.params), call.session);
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        session.client.params = Some(params);
        session.version = Some(version);
        session.known_run = generation;
        if session.is_local {
            return self.answer(now, key, Some(answer));
        }
        self.save(session_key);
        self.journal_general(session_key);
        self.update_listener(now, session_key);
        // The client keeps its session if the daemon is killed after the answer.
        let until = now + RECORD_WAIT;
        if let Some(call) = self.calls.get_mut(key) {
            call.stage = Stage::AwaitingRecord { until, answer };
        }
        self.timers.set(until, Timer::Call(key));
        self.act(Action::AwaitWritten(key));
    }

    /// What was stored before is on disk.
    pub fn record_written(&mut self, now: Instant, key: CallKey) {
        if let Some(Stage::AwaitingRecord { answer, .. }) =
            self.calls.get(key).map(|call| &call.stage)
        {
            let answer: Bytes = answer.clone();
            self.answer(now, key, Some(answer));
        }
    }

    /// The last line of the server's standard error, for a client that waits.
    pub fn last_line(&mut self, key: CallKey, line: Option<&str>) {
        let Some(call) = self.calls.get(key) else { return };
        let Some(session) = self.sessions.get(call.session) else { return };
        let text = messages::starting(&self.name, line, self.availability_for(session));
        let Some(call) = self.calls.get_mut(key) else { return };
        let stream = call.stream;
        let (CallKind::Initialize(initialize), Some(progress)) = (&mut call.kind, &call.progress)
        else {
            return;
        };
        let Some(report) = &mut initialize.report else { return };
        report.count += 1;
        report.looks += 1;
        if text == report.sent && report.looks < REPEAT {
            return;
        }
        let message = frame::progress(&progress.token, f64::from(report.count), &text);
        (report.sent, report.looks) = (text, 0);
        self.push(stream, message);
    }

    fn refuse_initialize(&mut self, now: Instant, key: CallKey, cause: &'static str, text: &str) {
        let Some(call) = self.calls.take(key) else { return };
        self.record_decision(&call, cause, text.lines().next().unwrap_or_default(), None);
        let answer = call.message.id().map(|id| refusal(id, cause, text));
        self.answer_taken(now, key, call, answer);
    }
}

impl Initialize {
    fn new(now: Instant, version: String, params: Arc<RawValue>, patience: Duration) -> Self {
        let until = now + patience;
        Self { version, params, patience, until, try_again: None, report: None }
    }
}

fn read_params(message: &Parsed) -> Option<(String, Arc<RawValue>)> {
    let params = message.params()?;
    let version = Handshake::read(params)?.protocol_version.into_owned();
    let raw = RawValue::from_string(str::from_utf8(params).ok()?.to_owned()).ok()?;
    Some((version, Arc::from(raw)))
}

/// The version for a client: the one that it wants if that is supported, and not newer than the server's.
fn agreed_version(wanted: &str, result: &RawValue) -> ProtocolVersion {
    let newest = ProtocolVersion::V2025_11_25;
    let servers = Handshake::read(result.get().as_bytes());
    let servers = servers.and_then(|result| result.protocol_version.parse().ok());
    wanted.parse().unwrap_or(newest).min(servers.unwrap_or(newest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{self, HttpOperation, HttpOutcome};
    use crate::calls::Arrival;
    use crate::http::UpstreamSession;
    use crate::record::UpstreamRecord;
    use crate::session::SessionKey;
    use crate::tests::{TestCall, TestServer};

    fn initialize(test: &mut TestServer, session: SessionKey) -> TestCall {
        let initialize = r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
        let message = Parsed::read(initialize.into()).unwrap();
        let (stream, turn) = test.server.request(test.now, session, message, Arrival::New);
        test.take_actions();
        TestCall { stream, turn, run_id: serde_json::Value::Null }
    }

    #[test]
    fn http_servers_get_the_parameters_of_clients_and_of_commands() {
        let mut test = TestServer::http();
        for session in [test.server.open(test.now).unwrap(), test.server.open_local(test.now)] {
            initialize(&mut test, session);
            let params = test.actions.drain(..).find_map(|action| match action {
                Action::Http(_, _, HttpOperation::Open { params, .. }) => params,
                _ => None,
            });
            assert_eq!(params.unwrap().get(), r#"{"protocolVersion":"2025-11-25"}"#);
        }
    }

    #[test]
    fn a_command_whose_session_is_being_opened_has_its_server_observed() {
        let mut test = TestServer::http();
        let session = test.server.open_local(test.now);
        initialize(&mut test, session);
        let is_observe =
            |action: &Action| matches!(action, Action::Report(action::Report::Observe(..)));
        assert_eq!(test.actions.iter().filter(|action| is_observe(action)).count(), 1);
    }

    #[test]
    fn a_silent_http_server_does_not_delay_initialize_for_long() {
        let mut test = TestServer::http();
        let session = test.server.open(test.now).unwrap();
        let call = initialize(&mut test, session);
        test.passes(PATIENCE);
        assert_eq!(test.read_all(&call), (Vec::new(), false));
        test.passes(RECORD_WAIT);
        assert_eq!(test.read_all(&call), (vec![1], true));
        // The session with the server is opened by its late answer.
        let opened = test.actions.iter().rev().find_map(|action| match action {
            Action::Http(key, _, HttpOperation::Open { .. }) => Some(*key),
            _ => None,
        });
        let hello =
            Hello::read(test.server.copies.hello.clone().unwrap().as_ref().to_owned(), None);
        let record = UpstreamRecord { run: 1, id: None, version: "2025-11-25".to_owned() };
        let upstream = Arc::new(UpstreamSession::resume(record).unwrap());
        let outcome = HttpOutcome::Opened(upstream, hello.unwrap());
        test.server.http_done(test.now, opened.unwrap(), outcome);
        assert!(test.server.sessions.get(session).unwrap().upstream.is_open_with(1));
    }
}
