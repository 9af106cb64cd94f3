//! The client's messages, and the answers of the bridge.

use bytes::Bytes;

use crate::frame::{self, INTERNAL_ERROR, Id, Kind, Method, PARSE_ERROR, Parsed};
use crate::front::about_no_request;

pub(super) const UNKNOWN_EFFECT: &str =
    "the Mainstay daemon ended during this request; its effect is unknown";
pub(super) const LOST_REPEATEDLY: &str = "the Mainstay daemon ended several times during this request, which can safely \
                                          be repeated";
pub(super) const ABSENT: &str = "the Mainstay daemon is not running, and did not come back in time; nothing was \
                                 changed by this request, and any `mainstay` command, for example \
                                 `mainstay ls`, starts the daemon";
pub(super) const STOPPED: &str = "Mainstay is stopped, because of `mainstay daemon stop`; nothing was changed by this \
                                  request, and `mainstay daemon start` starts it";

/// A line of the client.
#[derive(Debug)]
pub(super) enum Content {
    Message(Parsed),
    Batch {
        text: Bytes,
        requests: Vec<Parsed>,
    },
    /// Not JSON-RPC. The front answers with an error.
    Garbled(Bytes),
}

/// What has to be known of a request to answer it here.
#[derive(Debug, Clone)]
pub(super) struct RequestInfo {
    /// As JSON.
    id: Box<str>,
    is_call: bool,
    /// Whether it can be sent twice without harm, whatever its server does.
    is_repeatable: bool,
}

impl Content {
    pub(super) fn read(mut line: Bytes) -> Self {
        line.truncate(line.trim_ascii_end().len());
        if line.trim_ascii_start().first() == Some(&b'[') {
            let messages = frame::split(&line).into_iter();
            let messages = messages.filter_map(|part| Parsed::read(line.slice_ref(part)).ok());
            let requests = messages.filter(|message| message.kind() == Kind::Request).collect();
            return Self::Batch { text: line, requests };
        }
        match Parsed::read(line.clone()) {
            Ok(message) => Self::Message(message),
            Err(_) => Self::Garbled(line),
        }
    }

    /// Whether it is the request with this id.
    pub(super) fn is_request(&self, id: &str) -> bool {
        match self {
            Self::Message(message) => {
                message.method().is_some() && message.id().is_some_and(|own| own.get() == id)
            }
            Self::Batch { .. } | Self::Garbled(_) => false,
        }
    }

    /// The answers to its requests when they are not sent.
    pub(super) fn refusals(&self, why: &str) -> Vec<Bytes> {
        let messages = match self {
            Self::Message(message) => std::slice::from_ref(message),
            Self::Batch { requests, .. } => requests,
            Self::Garbled(_) => &[],
        };
        let requests = messages.iter().filter_map(RequestInfo::of);
        requests.filter_map(|request| request.refusal(why)).collect()
    }
}

impl RequestInfo {
    /// A request of which only the id is known.
    pub(super) fn unknown(id: &str) -> Self {
        Self { id: id.into(), is_call: false, is_repeatable: false }
    }

    /// None if the message is not a request.
    pub(super) fn of(message: &Parsed) -> Option<Self> {
        let method = message.method()?;
        Some(Self {
            id: message.id()?.get().into(),
            is_call: method == &Method::ToolsCall,
            is_repeatable: method.is_repeatable() == Some(true),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether the client has to be told that its effect is unknown.
    pub(super) fn may_have_run(&self, was_sent: bool) -> bool {
        was_sent && !self.is_repeatable
    }

    /// Whether this message is the answer to it.
    pub(super) fn is_answered_by(&self, message: &Parsed) -> bool {
        message.method().is_none() && message.id().is_some_and(|id| id.get() == &*self.id)
    }

    /// Its answer when it fails here. For a tool that is a result, because a model gets to see results.
    pub(super) fn refusal(&self, why: &str) -> Option<Bytes> {
        let id = Id::new(&self.id)?;
        let is_call = self.is_call;
        Some(if is_call {
            frame::tool_error(id, why)
        } else {
            frame::error(id, INTERNAL_ERROR, why)
        })
    }
}

/// The answer to a request that the front refused, with the error in the body of its response.
pub(super) fn refused(request: &RequestInfo, body: Bytes) -> Option<Bytes> {
    let id = Id::new(&request.id)?;
    let error = Parsed::read(body).ok();
    let error = error.as_ref().and_then(Parsed::error);
    Some(match error {
        Some(error) => frame::error_text(id, error),
        None => frame::error(id, INTERNAL_ERROR, "Mainstay refused this request"),
    })
}

pub(super) fn too_long(limit: usize) -> Bytes {
    about_no_request(PARSE_ERROR, &format!("the message is longer than {} MiB", limit >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let content = Content::read(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(content.refusals("no"), expected.to_vec(), "{text}");
    }

    #[test]
    fn every_request_is_refused_and_nothing_else() {
        let error = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"no"}}"#;
        let list = r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#;
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        check(list, &[error]);
        check(notification, &[]);
        check(answer, &[]);
        check("nonsense", &[]);
        check("[nonsense", &[]);
        check(&format!("[{list},{notification},{answer},{list}]"), &[error, error]);
    }

    #[test]
    fn a_call_is_refused_with_a_result() {
        let call = Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}"#,
        );
        let refusals = Content::read(call).refusals("no");
        let answer = Parsed::read(refusals[0].clone()).unwrap();
        assert!(answer.result().is_some() && answer.id().unwrap().get() == "3");
    }

    #[track_caller]
    fn check_effect(request: Option<&str>, expected: bool) {
        let info = request.map_or_else(
            || RequestInfo::unknown("1"),
            |method| {
                let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
                RequestInfo::of(&Parsed::read(text.into()).unwrap()).unwrap()
            },
        );
        assert_eq!(info.may_have_run(true), expected, "{request:?}");
        assert!(!info.may_have_run(false), "{request:?}");
    }

    #[test]
    fn only_what_is_known_to_be_harmless_has_no_unknown_effect() {
        check_effect(Some("tools/list"), false);
        check_effect(Some("tools/call"), true);
        check_effect(Some("vendor/method"), true);
        check_effect(None, true);
    }

    #[test]
    fn the_error_of_a_response_gets_the_id_of_the_request() {
        let request = RequestInfo::unknown("7");
        let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#;
        let answer = refused(&request, body.into()).unwrap();
        assert_eq!(answer, r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"no"}}"#);
        let answer = refused(&request, "<html>".into()).unwrap();
        assert!(Parsed::read(answer).unwrap().error().is_some());
    }
}
