//! As much of a JSON-RPC message as `connect` has to read.

use std::borrow::Cow;
use std::rc::Rc;

use mainstay_api::Farewell;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::said::{Id, Line};

/// A request, a notification or an answer; or what the daemon itself says.
#[derive(Debug)]
pub(super) struct Message<'a> {
    text: &'a RawValue,
    id: Option<&'a RawValue>,
    pub(super) method: Option<Cow<'a, str>>,
    params: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The messages of a line: one, or those of a batch. What is no message is none of our business.
pub(super) fn messages(line: &[u8]) -> Vec<Message<'_>> {
    let is_batch = line.trim_ascii_start().first() == Some(&b'[');
    let texts: Vec<&RawValue> = if is_batch {
        serde_json::from_slice(line).unwrap_or_default()
    } else {
        serde_json::from_slice(line).into_iter().collect()
    };
    texts.into_iter().filter_map(message).collect()
}

fn message(text: &RawValue) -> Option<Message<'_>> {
    let Members { id, method, params, error } = serde_json::from_str(text.get()).ok()?;
    Some(Message { text, id, method, params, error })
}

impl Message<'_> {
    /// Its id, in the form in which ids are compared.
    pub(super) fn id(&self) -> Option<Id> {
        compact(self.id?.get())
    }

    /// The id of the request that it answers, if it is an answer to one.
    pub(super) fn answers(&self) -> Option<Id> {
        if self.method.is_none() { self.id() } else { None }
    }

    /// The message as a line of its own.
    pub(super) fn line(&self) -> Line {
        let mut line = self.text.get().as_bytes().to_vec();
        line.push(b'\n');
        Rc::new(line)
    }

    /// The request that a notification of this kind cancels.
    pub(super) fn cancelled(&self) -> Option<Id> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let cancelled: Cancelled<'_> = serde_json::from_str(self.params?.get()).ok()?;
        compact(cancelled.request_id.get())
    }

    /// What a daemon says that leaves. No server can: it is none of a server's messages.
    pub(super) fn farewell(&self) -> Option<Farewell> {
        let is_theirs = self.id.is_some() || self.method.is_some() || self.error.is_some();
        if is_theirs { None } else { serde_json::from_str(self.text.get()).ok() }
    }

    /// What an answer that is an error says.
    pub(super) fn error_message(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Failure {
            message: String,
        }
        let text = self.error?.get();
        let failure = serde_json::from_str(text);
        Some(failure.map_or_else(|_| text.to_owned(), |Failure { message }| message))
    }
}

/// An id in the form in which ids are compared.
pub(super) fn compact(id: &str) -> Option<Id> {
    serde_json::from_str::<Value>(id).ok().map(|id| id.to_string())
}
