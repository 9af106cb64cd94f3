//! A client that opens one session, and checks every answer in it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::answer::ToolResult;
use crate::restarts::{Board, Fall, INITIALIZED, NEWEST, Web, answered_id, initialize, tool_call};
use crate::rig::BenchError;

/// How long it rests between two calls.
const PAUSE: Duration = Duration::from_millis(2);

/// The client. It makes a new connection for every call.
pub(super) struct Client {
    web: Web,
    board: Arc<Board>,
    last_id: u64,
    initializes: u32,
}

/// The result of a tool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) texts: Vec<String>,
    pub(super) is_error: bool,
}

/// The calls that were made while something happened; all of them were answered right.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Calls {
    pub(super) count: u32,
    pub(super) longest: Duration,
}

impl Client {
    /// Opens the session.
    pub(super) async fn open(url: &str) -> Result<Self, BenchError> {
        let board = Arc::new(Board::default());
        let web = Web::new(url, false, Arc::clone(&board));
        let web = web.ok_or_else(|| BenchError::Wrong(format!("`{url}` is no URL")))?;
        let mut client = Self { web, board, last_id: 0, initializes: 0 };
        let answer = client.initialize().await.map_err(|fall| fell("initialize", &fall))?;
        answered_id(&answer).ok_or_else(|| wrong("initialize", &answer))?;
        client.web.tell(INITIALIZED).await.map_err(|fall| fell("initialized", &fall))?;
        Ok(client)
    }

    /// Calls a tool and returns its result, whatever that is.
    pub(super) async fn call(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<Answer, BenchError> {
        let answer = self.ask(tool, arguments).await.map_err(|fall| fell(tool, &fall))?;
        if answered_id(&answer) != Some(self.last_id) {
            return Err(wrong(tool, &answer));
        }
        Answer::parse(&answer).ok_or_else(|| wrong(tool, &answer))
    }

    /// Calls a tool that must succeed, and returns what it says. A note about a restart comes after it.
    pub(super) async fn text(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<String, BenchError> {
        let Answer { texts, is_error } = self.call(tool, arguments).await?;
        match texts.into_iter().next() {
            Some(text) if !is_error => Ok(text),
            told => Err(BenchError::Wrong(format!("`{tool}` said {told:?}"))),
        }
    }

    /// Has a text sent back that belongs to this call alone.
    pub(super) async fn echo(&mut self) -> Result<(), BenchError> {
        let text = format!("call {}", self.last_id + 1);
        let told = self.text("echo", &json!({"text": text})).await?;
        if told == text {
            Ok(())
        } else {
            Err(BenchError::Wrong(format!("`{text}` became `{told}`")))
        }
    }

    /// Calls without a pause while something is done, and once more after it.
    pub(super) async fn calls_during<T>(
        &mut self,
        deed: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<(T, Calls), BenchError> {
        let done = Cell::new(false);
        let deed = async {
            let outcome = deed.await;
            done.set(true);
            outcome
        };
        let calls = async {
            let mut calls = Calls::default();
            loop {
                let last = done.get();
                let begun = Instant::now();
                self.echo().await?;
                calls.count += 1;
                calls.longest = calls.longest.max(begun.elapsed());
                if last {
                    return Ok(calls);
                }
                sleep(PAUSE).await;
            }
        };
        tokio::try_join!(deed, calls)
    }

    /// Calls a tool, where there may be no answer.
    pub(super) async fn ask(&mut self, tool: &str, arguments: &Value) -> Result<Bytes, Fall> {
        self.last_id += 1;
        self.web.ask(tool_call(self.last_id, tool, arguments)).await
    }

    /// How many of its connections were refused.
    pub(super) fn refused(&self) -> u64 {
        self.board.refused()
    }

    /// How many `initialize` it has sent.
    pub(super) fn initializes(&self) -> u32 {
        self.initializes
    }

    /// The id of its session.
    pub(super) fn session(&self) -> Option<&str> {
        self.web.session()
    }

    async fn initialize(&mut self) -> Result<Bytes, Fall> {
        self.initializes += 1;
        self.web.ask(initialize(NEWEST)).await
    }
}

impl Answer {
    fn parse(answer: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            result: ToolResult<'a>,
        }
        let Whole { result } = serde_json::from_slice(answer).ok()?;
        let texts = result.texts().map(str::to_owned).collect();
        Some(Self { texts, is_error: result.is_error })
    }
}

fn fell(what: &str, fall: &Fall) -> BenchError {
    BenchError::Wrong(match fall {
        Fall::Cut(_) => format!("`{what}` was cut off"),
        Fall::Status(status) => format!("`{what}` was answered with HTTP status {status}"),
    })
}

fn wrong(what: &str, answer: &[u8]) -> BenchError {
    BenchError::Wrong(format!("`{what}` was answered {}", String::from_utf8_lossy(answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_texts_and_whether_it_is_an_error() {
        let text = br#"{"id":1,"result":{"content":[{"type":"text","text":"a"},{"text":"b"}]}}"#;
        let texts = ["a", "b"].map(str::to_owned).to_vec();
        assert_eq!(Answer::parse(text), Some(Answer { texts, is_error: false }));
        let text = br#"{"id":1,"result":{"content":[],"isError":true}}"#;
        assert_eq!(Answer::parse(text), Some(Answer { texts: Vec::new(), is_error: true }));
        assert_eq!(Answer::parse(br#"{"id":1,"error":{"code":1,"message":"no"}}"#), None);
    }
}
