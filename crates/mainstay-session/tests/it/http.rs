//! The server over HTTP.

use std::sync::Arc;

use mainstay_mcp::frame::Parsed;
use mainstay_mcp::upstream::{Hello, UpstreamError};
use mainstay_session::{
    HttpFailure, HttpOperation, HttpOutcome, OperationKey, UpstreamRecord, UpstreamSession,
};
use serde_json::value::RawValue;

use crate::event::Event;
use crate::model::Reply;
use crate::script::{End, Said};
use crate::server::HELLO;
use crate::world::World;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("it is JSON")
}

fn lost(method: &str) -> HttpOutcome {
    let method = method.to_owned();
    HttpOutcome::Failed(HttpFailure::Unusable(UpstreamError::SessionLost { method }))
}

impl World {
    pub(crate) fn http_arrives(
        &mut self,
        daemon: usize,
        operation: OperationKey,
        run: Option<usize>,
        what: HttpOperation,
    ) {
        if self.daemons[daemon].server.is_none()
            || self.daemons[daemon].aborted.contains(&operation)
        {
            return;
        }
        let is_there =
            |run: &usize| self.runs[*run].is_alive && self.now >= self.runs[*run].away_until;
        let done = |outcome| Event::HttpDone { daemon, operation, outcome };
        let Some(run) = run.filter(is_there) else {
            let outcome = match what {
                HttpOperation::Notify { .. } | HttpOperation::Delete { .. } => HttpOutcome::Done,
                HttpOperation::Listen { .. } => HttpOutcome::ListenFailed,
                HttpOperation::Request { .. } => HttpOutcome::Failed(HttpFailure::Unsent),
                HttpOperation::Open { .. } | HttpOperation::Ask { .. } => {
                    HttpOutcome::Failed(HttpFailure::Unusable(UpstreamError::Closed {
                        method: "initialize".to_owned(),
                        sent: false,
                    }))
                }
            };
            return self.after(1, done(outcome));
        };
        let is_known = |world: &Self, session: &UpstreamSession| {
            session.id().is_some_and(|id| world.runs[run].http_sessions.contains(id))
        };
        match what {
            HttpOperation::Open { generation, .. } => {
                self.runs[run].next_id += 1;
                let id = format!("u{generation}.{}", self.runs[run].next_id);
                self.runs[run].http_sessions.insert(id.clone());
                let hello = Hello::read(raw(HELLO), Some(id.clone())).expect("it is a hello");
                let record = UpstreamRecord {
                    run: generation,
                    id: Some(id),
                    version: hello.protocol_version.clone(),
                };
                let session = UpstreamSession::resume(record).expect("it fits a header");
                let ready_in = self.runs[run].ready_at.saturating_sub(self.now);
                let takes = ready_in.max(self.runs[run].next_id % 3 * 4);
                self.after(takes, done(HttpOutcome::Opened(Arc::new(session), hello)));
            }
            HttpOperation::Request { session, message } => {
                if !is_known(self, &session) {
                    return self.after(1, done(HttpOutcome::Failed(HttpFailure::SessionLost)));
                }
                self.begin(run, &message, Reply::Http { daemon, operation });
            }
            HttpOperation::Ask { session, method, params, .. } => {
                if !is_known(self, &session) {
                    return self.after(1, done(lost(method)));
                }
                let has_cursor = params.is_some_and(|params| params.get().contains("cursor"));
                let result = self.result_for(method, has_cursor);
                self.after(1, done(HttpOutcome::Result(raw(&result))));
            }
            HttpOperation::Notify { session, message } => {
                if is_known(self, &session) {
                    let message = Parsed::read(message).expect("daemons write JSON");
                    self.take_message(run, &message);
                }
                self.after(1, done(HttpOutcome::Done));
            }
            HttpOperation::Listen { session, .. } => {
                if !is_known(self, &session) {
                    let outcome = HttpOutcome::ListenRefused { status: 404, is_session_lost: true };
                    return self.after(1, done(outcome));
                }
                let id = session.id().unwrap_or_default().to_owned();
                if self.runs[run].listeners.contains_key(&id) {
                    let outcome =
                        HttpOutcome::ListenRefused { status: 409, is_session_lost: false };
                    return self.after(1, done(outcome));
                }
                self.runs[run].listeners.insert(id, (daemon, operation));
            }
            HttpOperation::Delete { session } => {
                self.runs[run].http_sessions.remove(session.id().unwrap_or_default());
                self.after(1, done(HttpOutcome::Done));
            }
        }
    }

    pub(crate) fn answer_http(
        &mut self,
        daemon: usize,
        operation: OperationKey,
        end: End,
        id: &str,
        key: &str,
        result: &str,
    ) {
        let answer = match end {
            End::Error => {
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"done {key}"}}}}"#
                )
            }
            _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        };
        let outcome = match end {
            End::Invalid => {
                let error = UpstreamError::Protocol("it makes no sense".to_owned());
                HttpOutcome::Failed(HttpFailure::Unusable(error))
            }
            _ => HttpOutcome::Answered(Parsed::read(answer.into()).expect("it is JSON")),
        };
        self.after(1, Event::HttpDone { daemon, operation, outcome });
    }

    /// The connections to a run that has exited are lost.
    pub(crate) fn fail_http_of(&mut self, run: usize) {
        let mut failed = Vec::new();
        for execution in &mut self.executions {
            if execution.run == run
                && !std::mem::replace(&mut execution.is_over, true)
                && let Reply::Http { daemon, operation } = execution.reply
            {
                failed.push((daemon, operation));
            }
        }
        for (daemon, operation) in failed {
            let outcome = HttpOutcome::Failed(HttpFailure::Lost);
            self.after(1, Event::HttpDone { daemon, operation, outcome });
        }
        for (daemon, operation) in std::mem::take(&mut self.runs[run].listeners).into_values() {
            let outcome = HttpOutcome::ListenEnded { retry: None };
            self.after(1, Event::HttpDone { daemon, operation, outcome });
        }
    }

    /// The server says something on the stream over which a client listens.
    pub(crate) fn say_http(&mut self, run: usize, client: usize, said: Said, text: String) {
        let Some(current) = self.current.filter(|_| said != Said::Invalid) else { return };
        let session = self.clients[client].session.clone();
        let aborted = &self.daemons[current].aborted;
        self.runs[run].listeners.retain(|_, (_, operation)| !aborted.contains(operation));
        let record = self.store.state().session(&session).and_then(|record| record.upstream?.id);
        let Some((daemon, operation)) =
            record.and_then(|id| self.runs[run].listeners.get(&id).copied())
        else {
            return;
        };
        self.after(1, Event::HttpMessage { daemon, operation, text: text.into() });
    }
}
