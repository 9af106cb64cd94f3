//! Clients that hold calls in a server, and at times leave.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::kind::Work;
use crate::answer::{ToolResult, shorten};
use crate::load::{CallError, Endpoint, HttpSession, Mistake, Transport as _};
use crate::restarts::tool_call;
use crate::rig::{BenchError, Instance};

/// How long a call may take: far longer than any of them.
const ANSWER: Duration = Duration::from_secs(400);
/// How long other requests may take.
const REQUEST: Duration = Duration::from_secs(30);

/// How a client stops waiting for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It cancels the call.
    Cancel,
    /// Its connection ends.
    Vanish,
    /// It ends its session.
    EndSession,
    /// It is a `mainstay call` that is killed.
    Kill,
}

impl Leave {
    pub(super) const ALL: [Self; 4] = [Self::Cancel, Self::Vanish, Self::EndSession, Self::Kill];
}

/// A client with a session of its own.
pub(super) struct Client {
    endpoint: Endpoint,
    session: HttpSession,
    last_id: u64,
}

impl Client {
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, CallError> {
        let session = within(REQUEST, endpoint.open()).await?;
        Ok(Self { endpoint: endpoint.clone(), session, last_id: 0 })
    }

    /// Calls a tool, and returns the texts of its result.
    pub(super) async fn call(&mut self, tool: &str, given: &Value) -> Result<Texts, CallError> {
        self.connect().await?;
        self.last_id += 1;
        let request = tool_call(self.last_id, tool, given);
        let answer = within(ANSWER, self.endpoint.call(&mut self.session, request)).await?;
        texts(self.last_id, &answer)
    }

    /// A connection that was idle for minutes may be closed.
    async fn connect(&mut self) -> Result<(), CallError> {
        if self.session.is_closed() {
            self.session = within(REQUEST, self.endpoint.join(&self.session)).await?;
        }
        Ok(())
    }

    /// Calls a tool, and checks its answer.
    pub(super) async fn work(&mut self, work: &Work) -> Result<(), CallError> {
        self.call(work.tool, &work.arguments).await?.expect(&work.expected)
    }

    /// Calls a tool, and leaves after a while. Nothing is said about the call if it is answered before.
    pub(super) async fn leave(
        &mut self,
        work: &Work,
        after: Duration,
        how: Leave,
    ) -> Result<(), CallError> {
        let endpoint = self.endpoint.clone();
        let id = self.last_id + 1;
        let left = tokio::select! {
            answered = self.work(work) => {
                answered?;
                false
            }
            () = sleep(after) => true,
        };
        if !left {
            return Ok(());
        }
        let mut aside = within(REQUEST, endpoint.join(&self.session)).await?;
        match how {
            Leave::Cancel => {
                let params = json!({"requestId": id, "reason": "the user pressed a key"});
                let method = "notifications/cancelled";
                let cancel = json!({"jsonrpc": "2.0", "method": method, "params": params});
                within(REQUEST, endpoint.call(&mut aside, cancel.to_string().into())).await?;
                self.session = aside;
            }
            Leave::EndSession => {
                within(REQUEST, async {
                    endpoint.close(aside).await;
                    Ok(())
                })
                .await?;
                self.session = within(REQUEST, endpoint.open()).await?;
            }
            Leave::Vanish | Leave::Kill => {
                drop(aside);
                self.session = within(REQUEST, endpoint.open()).await?;
            }
        }
        Ok(())
    }
}

/// Calls a tool by a command, and kills that after a while.
pub(super) async fn killed_command(
    instance: &Instance,
    server: &str,
    work: &Work,
    after: Duration,
) -> Result<(), BenchError> {
    let given = work.arguments.to_string();
    let mut command = instance.command(&["call", server, work.tool, &given]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(BenchError::SetUp)?;
    // It is killed and reaped, whether it has ended or not.
    drop(timeout(after, child.wait()).await);
    child.kill().await.map_err(BenchError::SetUp)
}

/// Where a server writes in a call to a slow disk.
pub(super) fn file_of(folder: &Path, server: &str) -> std::path::PathBuf {
    folder.join(format!("{server}.data"))
}

/// The texts of a result.
#[derive(Debug)]
pub(super) struct Texts(Vec<String>);

impl Texts {
    /// Fails unless this is one of them.
    pub(super) fn expect(&self, text: &str) -> Result<(), CallError> {
        if self.0.iter().any(|it| it == text) {
            return Ok(());
        }
        Err(Mistake::Wrong(shorten(&self.0.join(" "))).into())
    }
}

fn texts(id: u64, answer: &[u8]) -> Result<Texts, CallError> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        id: u64,
        #[serde(borrow)]
        result: ToolResult<'a>,
    }
    let wrong = || Mistake::Wrong(shorten(&String::from_utf8_lossy(answer)));
    let Answer { id: answered, result } = serde_json::from_slice(answer).map_err(|_| wrong())?;
    if answered != id || result.is_error {
        return Err(wrong().into());
    }
    Ok(Texts(result.texts().map(str::to_owned).collect()))
}

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout(limit, request).await.unwrap_or(Err(CallError::Late))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_must_be_the_one_to_the_call() {
        let answer =
            br#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"5 ms"}]}}"#;
        texts(7, answer).unwrap().expect("5 ms").unwrap();
        texts(7, answer).unwrap().expect("6 ms").unwrap_err();
        texts(8, answer).unwrap_err();
        let failed =
            br#"{"id":7,"result":{"content":[{"type":"text","text":"no"}],"isError":true}}"#;
        texts(7, failed).unwrap_err();
        texts(7, br#"{"id":7,"error":{"code":-32000,"message":"gone"}}"#).unwrap_err();
    }
}
