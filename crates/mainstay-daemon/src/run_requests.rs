//! What sessions request of runs: the connection from the [`gateway`](crate::gateway) to the
//! [`registry`](crate::registry), which do not know each other.

use std::sync::{Arc, Mutex};

use mainstay_core::SessionRunKey;
use mainstay_core::session_runs::{self, Requests};
use mainstay_core::supervisor::SessionRunEnd;
use tokio::sync::{Notify, mpsc};

use crate::driver::Message;

/// How many messages to drivers of session runs wait. More are dropped: they are repeated with the next request.
const MESSAGES: usize = 64;

/// One request.
#[derive(Debug)]
pub(crate) enum RunRequest {
    SessionRun(session_runs::Event),
    /// For the driver of a session's own run.
    Message(SessionRunKey, Message),
}

/// Clones send to the same receiver.
#[derive(Debug, Clone)]
pub(crate) struct RunRequestSender {
    session_runs: Arc<SessionRunRequests>,
    messages: mpsc::Sender<(SessionRunKey, Message)>,
}

#[derive(Debug)]
pub(crate) struct RunRequestReceiver {
    session_runs: Arc<SessionRunRequests>,
    messages: mpsc::Receiver<(SessionRunKey, Message)>,
    /// The rest of the requests of one session.
    rest: Vec<session_runs::Event>,
}

#[derive(Debug, Default)]
struct SessionRunRequests {
    waiting: Mutex<Requests>,
    added: Notify,
}

pub(crate) fn channel() -> (RunRequestSender, RunRequestReceiver) {
    let session_runs = Arc::<SessionRunRequests>::default();
    let (sender, messages) = mpsc::channel(MESSAGES);
    let receiver =
        RunRequestReceiver { session_runs: Arc::clone(&session_runs), messages, rest: Vec::new() };
    (RunRequestSender { session_runs, messages: sender }, receiver)
}

impl RunRequestSender {
    pub(crate) fn start(&self, key: SessionRunKey) {
        mainstay_core::lock(&self.session_runs.waiting).start(key);
        self.session_runs.added.notify_one();
    }

    pub(crate) fn stop(&self, key: SessionRunKey, why: SessionRunEnd) {
        mainstay_core::lock(&self.session_runs.waiting).stop(key, why);
        self.session_runs.added.notify_one();
    }

    /// Sends a message to the driver of a session's own run. It is dropped if too many wait.
    pub(crate) fn message(&self, key: SessionRunKey, message: Message) {
        self.messages.try_send((key, message)).ok();
    }
}

impl RunRequestReceiver {
    /// The next request. Nothing is lost if it is dropped.
    pub(crate) async fn next(&mut self) -> RunRequest {
        loop {
            if self.rest.is_empty()
                && let Some(events) = mainstay_core::lock(&self.session_runs.waiting).take_next()
            {
                self.rest.extend(events);
                self.rest.reverse();
            }
            if let Some(event) = self.rest.pop() {
                return RunRequest::SessionRun(event);
            }
            tokio::select! {
                biased;
                () = self.session_runs.added.notified() => {}
                Some((key, message)) = self.messages.recv() => {
                    return RunRequest::Message(key, message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(session: &str) -> SessionRunKey {
        SessionRunKey { server: "time".parse().unwrap(), session: session.into() }
    }

    #[tokio::test]
    async fn only_messages_that_are_repeated_are_dropped() {
        let (sender, mut receiver) = channel();
        for _ in 0..2 * MESSAGES {
            sender.message(key("a"), Message::Publish);
            sender.start(key("a"));
            sender.stop(key("a"), SessionRunEnd::Idle);
            sender.start(key("a"));
        }
        let (mut messages, mut events) = (0, Vec::new());
        for _ in 0..MESSAGES + 2 {
            match receiver.next().await {
                RunRequest::SessionRun(event) => events.push(event),
                RunRequest::Message(..) => messages += 1,
            }
        }
        let idle = session_runs::Event::Stop(key("a"), SessionRunEnd::Idle);
        assert_eq!(events, [idle, session_runs::Event::Start(key("a"))]);
        assert_eq!(messages, MESSAGES);
    }
}
