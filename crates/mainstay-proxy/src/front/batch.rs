//! Several messages in one: a batch, which only protocol version 2025-03-26 knows.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::run::Run;
use super::{ProtocolVersion, Session};
use crate::frame::{self, FrameError, Kind, Method, Parsed};
use crate::stream::Stream;

/// How many messages a batch may have.
const MESSAGES: usize = 128;

/// A batch, taken apart.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) requests: Vec<Parsed>,
    /// Notifications and answers.
    pub(super) others: Vec<Parsed>,
}

/// Why a text is no batch that can be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum BatchError {
    #[error("batches are part of protocol version 2025-03-26 only")]
    Version,
    #[error("the batch is empty, has more than {MESSAGES} messages, or is no JSON")]
    Size,
    #[error("`initialize` must not be part of a batch")]
    Initialize,
    #[error("a message of the batch is no JSON-RPC message")]
    Message(#[source] FrameError),
}

/// Whether a text is an array.
pub(super) fn is_batch(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'[')
}

impl Batch {
    /// Takes a batch apart, if the session's version has batches.
    pub(super) fn read(text: &Bytes, version: Option<ProtocolVersion>) -> Result<Self, BatchError> {
        if version != Some(ProtocolVersion::V2025_03_26) {
            return Err(BatchError::Version);
        }
        let parts = frame::split(text);
        if parts.len() > MESSAGES || parts.iter().any(|part| is_batch(part)) {
            return Err(BatchError::Size);
        }
        let messages = parts.into_iter().map(|part| Parsed::read(text.slice_ref(part)));
        let messages: Vec<_> = messages.collect::<Result<_, _>>().map_err(BatchError::Message)?;
        if messages.iter().any(|message| message.method() == Some(&Method::Initialize)) {
            return Err(BatchError::Initialize);
        }
        let is_request = |message: &Parsed| message.kind() == Kind::Request;
        let (requests, others) = messages.into_iter().partition(is_request);
        Ok(Self { requests, others })
    }
}

/// Makes all requests at once and answers with an array, in their order; what comes before the
/// answers is passed on as it comes.
pub(super) async fn run<S: Session>(session: S, requests: Vec<Parsed>, out: Arc<Stream>) {
    let start = |request| {
        let run = Run::new(&session, request);
        run.stream().is_for_this_daemon();
        Member { run: Some(run), answer: None }
    };
    let mut members: Vec<Member> = requests.into_iter().map(start).collect();
    poll_fn(|cx| {
        let pending = members.iter_mut().filter(|member| member.run.is_some());
        let waiting = pending.map(|member| member.poll(cx, &out)).filter(Poll::is_pending).count();
        if waiting == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers: Vec<Bytes> = members.into_iter().filter_map(|member| member.answer).collect();
    out.finish((!answers.is_empty()).then(|| joined(&answers)));
}

struct Member {
    /// Gone when it is over.
    run: Option<Run>,
    answer: Option<Bytes>,
}

impl Member {
    fn poll(&mut self, cx: &mut std::task::Context<'_>, out: &Stream) -> Poll<()> {
        while let Some(run) = &mut self.run {
            match run.poll_next(cx) {
                Poll::Ready(Some(item)) if item.is_answer => self.answer = Some(item.message),
                Poll::Ready(Some(item)) => drop(out.push(item.message)),
                Poll::Ready(None) => self.run = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

fn joined(answers: &[Bytes]) -> Bytes {
    let mut array = vec![b'['];
    for (place, answer) in answers.iter().enumerate() {
        if place > 0 {
            array.push(b',');
        }
        array.extend_from_slice(answer);
    }
    array.push(b']');
    array.into()
}
