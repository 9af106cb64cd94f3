//! What one client calls, and whether that happened once.
//!
//! Every second call writes: the server appends a line of its own to the client's file, so that what
//! was executed, and how often, can be read there afterwards.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::tally::Ending;
use crate::answer::{ToolResult, shorten};

/// The id of `initialize`; calls are numbered from 1.
const OPENING: u64 = 0;

/// The notification that ends the opening.
pub(crate) const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The newest protocol version of which sessions are opened.
pub(crate) const NEWEST: &str = "2025-11-25";

/// The request that opens a session with this protocol version.
pub(crate) fn initialize(version: &str) -> Vec<u8> {
    let params = json!({
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "restart-bench", "version": env!("CARGO_PKG_VERSION")},
    });
    request(OPENING, "initialize", &params)
}

pub(super) fn request(id: u64, method: &str, params: &serde_json::Value) -> Vec<u8> {
    let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    request.to_string().into_bytes()
}

pub(crate) fn tool_call(id: u64, name: &str, arguments: &serde_json::Value) -> Vec<u8> {
    request(id, "tools/call", &json!({"name": name, "arguments": arguments}))
}

/// The id that a message answers to; `None` if it is no answer.
pub(crate) fn answered_id(message: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Kind {
        id: u64,
        method: Option<IgnoredAny>,
    }
    let kind: Kind = serde_json::from_slice(message).ok()?;
    kind.method.is_none().then_some(kind.id)
}

/// The calls of one client.
#[derive(Debug)]
pub(super) struct Work {
    client: u32,
    /// Where its calls that write have their effect.
    file: PathBuf,
    /// How many milliseconds a call takes.
    takes: RangeInclusive<u64>,
    /// What is known of each call, the first one first.
    fates: Vec<Fate>,
}

/// What must be true of a call's effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It has none.
    None,
    /// It happened.
    Once,
    /// It may have happened.
    AtMostOnce,
}

/// A call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) body: Vec<u8>,
    expected: String,
}

/// What was executed otherwise than it was answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Misdeeds {
    pub(super) executed_twice: u64,
    /// Answered, but not executed.
    pub(super) never_executed: u64,
}

impl Work {
    pub(super) fn new(client: u32, file: PathBuf, takes: RangeInclusive<u64>) -> Self {
        Self { client, file, takes, fates: Vec::new() }
    }

    pub(super) fn next(&mut self) -> Call {
        let id = self.fates.len() as u64 + 1;
        let text = format!("{}-{id}", self.client);
        let ms = self.milliseconds(id);
        let writes = id.is_multiple_of(2);
        self.fates.push(if writes { Fate::AtMostOnce } else { Fate::None });
        let (tool, arguments, expected) = match (writes, ms) {
            (true, ms) => {
                let arguments = json!({"path": self.file, "line": text, "ms": ms});
                ("append", arguments, "appended".to_owned())
            }
            (false, 0) => ("echo", json!({"text": text}), text),
            (false, ms) => ("sleep", json!({"ms": ms}), format!("slept {ms} ms")),
        };
        Call { id, body: tool_call(id, tool, &arguments), expected }
    }

    /// Notes how the last call ended.
    pub(super) fn ended(&mut self, ending: &Ending) {
        if let (Some(fate @ Fate::AtMostOnce), Ending::Answered) = (self.fates.last_mut(), ending) {
            *fate = Fate::Once;
        }
    }

    /// Compares the effects with the answers. The server must have nothing left to do.
    pub(super) fn misdeeds(&self) -> io::Result<Misdeeds> {
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        Ok(self.compare(&text))
    }

    fn compare(&self, effects: &str) -> Misdeeds {
        let mut times = vec![0_u32; self.fates.len()];
        for line in effects.lines() {
            let id: Option<usize> = line.rsplit('-').next().and_then(|id| id.parse().ok());
            if let Some(times) = id.and_then(|id| times.get_mut(id.wrapping_sub(1))) {
                *times += 1;
            }
        }
        let mut misdeeds = Misdeeds::default();
        for (fate, times) in self.fates.iter().zip(times) {
            misdeeds.executed_twice += u64::from(times > 1);
            misdeeds.never_executed += u64::from(*fate == Fate::Once && times == 0);
        }
        misdeeds
    }

    /// Spread over the range, without chance.
    fn milliseconds(&self, id: u64) -> u64 {
        let (least, most) = (*self.takes.start(), *self.takes.end());
        least + (id * 37) % (most - least + 1)
    }
}

impl Call {
    /// What an answer comes to.
    pub(super) fn check(&self, answer: &[u8]) -> Ending {
        let Ok(answer) = serde_json::from_slice::<Answer>(answer) else {
            return Ending::Wrong(shorten(&String::from_utf8_lossy(answer)));
        };
        if answer.id != Some(self.id) {
            return Ending::Wrong(format!("id {:?} instead of {}", answer.id, self.id));
        }
        let Some(result) = answer.result else {
            let error = answer.error.unwrap_or_default().to_string();
            let is_unknown = error.contains("effect is unknown");
            return if is_unknown { Ending::EffectUnknown } else { Ending::Told(shorten(&error)) };
        };
        if result.is_error && result.texts().any(|text| text.contains("effect is unknown")) {
            Ending::EffectUnknown
        } else if result.is_error {
            Ending::Told(shorten(&result.texts().collect::<Vec<_>>().join(" ")))
        } else if result.texts().any(|text| text == self.expected) {
            Ending::Answered
        } else {
            Ending::Wrong(shorten(&result.texts().collect::<Vec<_>>().join(" ")))
        }
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<ToolResult<'a>>,
    error: Option<serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work::new(3, PathBuf::from("effects"), 0..=0)
    }

    fn answer(id: u64, text: &str, is_error: bool) -> Vec<u8> {
        let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
        json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string().into_bytes()
    }

    #[test]
    fn an_answer_belongs_to_its_call() {
        let call = work().next();
        assert_eq!(call.check(&answer(1, "3-1", false)), Ending::Answered);
        assert!(matches!(call.check(&answer(2, "3-1", false)), Ending::Wrong(_)));
        assert!(matches!(call.check(&answer(1, "3-2", false)), Ending::Wrong(_)));
        assert!(matches!(call.check(&answer(1, "3-1", true)), Ending::Told(_)));
        assert!(matches!(call.check(b"junk"), Ending::Wrong(_)));
        let error = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#;
        assert!(matches!(call.check(error), Ending::Told(_)));
        let unknown = answer(1, "the server stopped; its effect is unknown: check", true);
        assert_eq!(call.check(&unknown), Ending::EffectUnknown);
    }

    #[test]
    fn effects_are_compared_with_answers() {
        let mut work = work();
        for ending in [Ending::Answered, Ending::Answered, Ending::Answered, Ending::Unanswered] {
            work.next();
            work.ended(&ending);
        }
        let misdeeds = |executed_twice, never_executed| Misdeeds { executed_twice, never_executed };
        assert_eq!(work.compare("3-2\n"), misdeeds(0, 0));
        assert_eq!(work.compare("3-2\n3-4\n"), misdeeds(0, 0), "the last one may have happened");
        assert_eq!(work.compare(""), misdeeds(0, 1));
        assert_eq!(work.compare("3-2\n3-4\n3-4\n"), misdeeds(1, 0));
    }

    #[test]
    fn only_answers_answer() {
        assert_eq!(answered_id(br#"{"jsonrpc":"2.0","id":7,"result":{}}"#), Some(7));
        assert_eq!(answered_id(br#"{"id":7,"method":"ping"}"#), None);
        assert_eq!(answered_id(br#"{"method":"notifications/message"}"#), None);
    }
}
