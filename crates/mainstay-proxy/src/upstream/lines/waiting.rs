//! A request that waits for its answer.

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::frame::Outcome;

/// The waiting end of a request. Wherever it is dropped, whoever waits learns how far it came.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Whether the request was handed to the link.
    pub(super) sent: bool,
    to: Option<oneshot::Sender<Answer>>,
}

#[derive(Debug)]
pub(super) enum Answer {
    Ok(Box<RawValue>),
    Error(Box<RawValue>),
    /// It was too long to keep.
    TooLong,
    /// It was the request itself.
    Echo,
    /// There will be none.
    Gone {
        /// Whether the request was handed to the link.
        sent: bool,
    },
}

impl Waiting {
    pub(super) fn new(to: oneshot::Sender<Answer>) -> Self {
        Self { sent: false, to: Some(to) }
    }

    /// Whether nobody waits any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.to.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    pub(super) fn answer(mut self, answer: Answer) {
        self.tell(answer);
    }

    fn tell(&mut self, answer: Answer) {
        if let Some(to) = self.to.take() {
            // The receiver may be gone by now, which is as good as cancelled.
            drop(to.send(answer));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tell(Answer::Gone { sent: self.sent });
    }
}

impl From<Outcome<'_>> for Answer {
    fn from(outcome: Outcome<'_>) -> Self {
        match outcome {
            Outcome::Ok(result) => Self::Ok(result.to_owned()),
            Outcome::Error(error) => Self::Error(error.to_owned()),
        }
    }
}
