//! The requests of a session, and the check of their answers.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;

use super::Work;
use crate::answer::{ToolResult, shorten};

/// A tool of the fixture whose answers can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tool {
    /// A text that is unique to the call goes there and comes back.
    Echo,
    /// Small requests, answers of the given size.
    Bytes,
}

/// Why an answer is not the right one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// The server answered with an error.
    #[error("the server answered with an error: {0}")]
    Refused(String),
    /// The answer is not the one to this call.
    #[error("the server gave a wrong answer: {0}")]
    Wrong(String),
}

/// `initialize`, the request that opens a session. Its id is one that no call uses.
pub(super) fn initialize() -> Vec<u8> {
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "mcpload", "version": env!("CARGO_PKG_VERSION")},
    });
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        .to_string()
        .into_bytes()
}

/// The notification that ends the opening.
pub(super) const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Checks that `initialize` was answered with a result.
pub(super) fn check_initialize(answer: &[u8]) -> Result<(), Mistake> {
    let answer = Answer::parse(answer)?;
    answer.check_id(0)?;
    answer.result().map(drop)
}

/// Whether this is an answer at all, and not a notification or a request by the server.
pub(super) fn is_answer(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        id: Option<IgnoredAny>,
        method: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Kind>(message)
        .is_ok_and(|kind| kind.id.is_some() && kind.method.is_none())
}

/// The calls of one session: each has an id and a text of its own.
#[derive(Debug)]
pub(super) struct Calls {
    session: u32,
    tool: Tool,
    /// What comes before the tool's name.
    prefix: String,
    size: usize,
    id: u64,
    expected: String,
}

impl Calls {
    pub(super) fn new(session: u32, work: &Work) -> Self {
        let Work { tool, size, .. } = *work;
        let expected = match tool {
            Tool::Echo => String::new(),
            Tool::Bytes => "x".repeat(size),
        };
        Self { session, tool, prefix: work.tool_prefix.clone(), size, id: 0, expected }
    }

    /// The text of the next request.
    pub(super) fn next(&mut self) -> Vec<u8> {
        self.id += 1;
        let (id, prefix) = (self.id, &self.prefix);
        match self.tool {
            Tool::Echo => {
                self.expected = format!("{}-{id}-", self.session);
                let padding = self.size.saturating_sub(self.expected.len());
                self.expected.extend(std::iter::repeat_n('x', padding));
                // The text needs no escapes, so the request need not go through a serializer.
                let text = &self.expected;
                request(
                    id,
                    &format!(r#"{{"name":"{prefix}echo","arguments":{{"text":"{text}"}}}}"#),
                )
            }
            Tool::Bytes => {
                let size = self.size;
                request(id, &format!(r#"{{"name":"{prefix}bytes","arguments":{{"n":{size}}}}}"#))
            }
        }
    }

    /// The same, but with ids that begin after this one.
    pub(super) fn after(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// Checks the answer to the last request. A proxy may add a content of its own, such as a note
    /// about a restart, but the expected one must be there.
    pub(super) fn check(&self, answer: &[u8]) -> Result<(), Mistake> {
        let answer = Answer::parse(answer)?;
        answer.check_id(self.id)?;
        let result: ToolResult = serde_json::from_str(answer.result()?.get())
            .map_err(|error| Mistake::Wrong(error.to_string()))?;
        let right = result.texts().any(|text| text == self.expected);
        let text = result.texts().next().unwrap_or_default();
        match (result.is_error, right) {
            (true, _) => Err(Mistake::Refused(shorten(text))),
            (false, true) => Ok(()),
            (false, false) => Err(Mistake::Wrong(format!("text `{}`", shorten(text)))),
        }
    }
}

fn request(id: u64, params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#).into_bytes()
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    id: Option<u64>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl<'a> Answer<'a> {
    fn parse(text: &'a [u8]) -> Result<Self, Mistake> {
        serde_json::from_slice(text).map_err(|error| {
            Mistake::Wrong(format!("{error} in `{}`", shorten(&String::from_utf8_lossy(text))))
        })
    }

    fn check_id(&self, expected: u64) -> Result<(), Mistake> {
        match self.id {
            Some(id) if id == expected => Ok(()),
            other => Err(Mistake::Wrong(format!("id {other:?} instead of {expected}"))),
        }
    }

    fn result(&self) -> Result<&'a RawValue, Mistake> {
        match (self.result, self.error) {
            (Some(result), None) => Ok(result),
            (_, Some(error)) => Err(Mistake::Refused(shorten(error.get()))),
            (None, None) => Err(Mistake::Wrong("neither result nor error".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(tool: Tool, size: usize) -> Work {
        let timeout = std::time::Duration::from_secs(1);
        Work { sessions: 1, tool, tool_prefix: "a/".to_owned(), size, timeout }
    }

    fn answered(id: u64, text: &str, is_error: bool) -> Vec<u8> {
        let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
        json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string().into_bytes()
    }

    fn sent_text(request: &[u8]) -> String {
        let request: serde_json::Value = serde_json::from_slice(request).unwrap();
        assert_eq!(request["params"]["name"], "a/echo");
        request["params"]["arguments"]["text"].as_str().unwrap().to_owned()
    }

    #[test]
    fn every_call_has_a_text_of_its_own_and_the_asked_size() {
        let mut one = Calls::new(1, &work(Tool::Echo, 64));
        let mut two = Calls::new(2, &work(Tool::Echo, 64));
        let texts = [one.next(), one.next(), two.next()].map(|request| sent_text(&request));
        assert!(texts.iter().all(|text| text.len() == 64), "{texts:?}");
        assert!(texts[0] != texts[1] && texts[0] != texts[2], "{texts:?}");
    }

    #[test]
    fn only_the_answer_to_this_call_is_right() {
        let mut calls = Calls::new(1, &work(Tool::Echo, 8));
        let text = sent_text(&calls.next());
        assert_eq!(calls.check(&answered(1, &text, false)), Ok(()));
        for wrong in [
            answered(2, &text, false),
            answered(1, "other", false),
            br#"{"id":1}"#.to_vec(),
            b"junk".to_vec(),
        ] {
            let mistake = calls.check(&wrong).unwrap_err();
            assert!(matches!(mistake, Mistake::Wrong(_)), "{mistake}");
        }
        for refused in
            [answered(1, &text, true), br#"{"id":1,"error":{"code":-1,"message":"no"}}"#.to_vec()]
        {
            let mistake = calls.check(&refused).unwrap_err();
            assert!(matches!(mistake, Mistake::Refused(_)), "{mistake}");
        }
    }

    #[test]
    fn bytes_must_have_the_asked_size() {
        let mut calls = Calls::new(1, &work(Tool::Bytes, 3));
        calls.next();
        assert_eq!(calls.check(&answered(1, "xxx", false)), Ok(()));
        assert!(calls.check(&answered(1, "xx", false)).is_err());
    }

    #[test]
    fn messages_by_the_server_are_no_answers() {
        assert!(is_answer(br#"{"id":1,"result":{}}"#));
        assert!(!is_answer(br#"{"method":"notifications/message"}"#));
        assert!(!is_answer(br#"{"level":"info"}"#));
        assert!(!is_answer(b"Loading model..."));
    }
}
