//! How long requests wait for their answers.
//!
//! Most are answered at once, so nothing is timed before the head of a response is sent.

use crate::calls::{Call, CallKey, CallKind, Stage};
use crate::list_requests::PATIENCE;
use crate::server::Server;
use crate::stream::{BatchMember, Stream};
use crate::streams::StreamRef;
use crate::timers::Timer;

impl Server {
    /// The requests of a stream have no answer after a moment: their time is limited from now on.
    pub(crate) fn limit_waiting(&mut self, stream: StreamRef) {
        for key in self.open_calls_of(stream) {
            let Some(call) = self.calls.get(key) else { continue };
            match call.kind {
                CallKind::List(_) => {
                    self.timers.set(call.arrived + PATIENCE, Timer::ListPatience(key));
                }
                CallKind::Tool => self.limit_call(key),
                CallKind::Initialize(_) | CallKind::Subscribe(_) | CallKind::Other => {}
            }
        }
    }

    /// The calls of a stream that are not answered.
    pub(crate) fn open_calls_of(&self, stream: StreamRef) -> Vec<CallKey> {
        let Some(request) = self.streams.get(stream).and_then(Stream::as_request) else {
            return Vec::new();
        };
        let members = request.batch.iter().flatten().filter_map(|member| match member {
            BatchMember::Open(call) => Some(*call),
            BatchMember::Finished(_) => None,
        });
        request.call.into_iter().chain(members).collect()
    }

    /// The answer of the server does not matter any more. Nothing is sent to it.
    pub(crate) fn stop_waiting_for(&mut self, key: CallKey, call: &Call) {
        match call.stage {
            Stage::AtStdio { link, id } => {
                if let Some(stdio) = self.stdio(link) {
                    stdio.stop_waiting_for(id, &call.kind);
                }
            }
            Stage::AtHttp { operation, .. } => self.cancel_operation(operation),
            Stage::Queued(link) => self.unqueue(link, key),
            Stage::OpeningUpstream => self.leave_opening(call.session, key),
            Stage::Waiting
            | Stage::Relayed
            | Stage::Joined(_)
            | Stage::AwaitingLists { .. }
            | Stage::AwaitingRecord { .. }
            | Stage::Over => {}
        }
    }
}
