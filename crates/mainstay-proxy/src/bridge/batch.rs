//! A batch of the client: one message with several requests, which only protocol version 2025-03-26 knows.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::exchange::Exchange;
use super::messages::{ABSENT, RequestInfo, STOPPED};
use super::output::EventReader;
use super::sequence::Position;
use super::shared::{Failed, OpenRequest, Shared, Tasks};
use crate::client::{ContentType, Method, Request, Response};
use crate::frame::Parsed;

pub(super) struct Batch {
    text: Bytes,
    requests: Vec<(Arc<OpenRequest>, Parsed)>,
    received: Instant,
}

impl Batch {
    /// Also for a line that is not a message, which has no requests.
    pub(super) fn new(
        shared: &Shared,
        text: Bytes,
        requests: Vec<Parsed>,
        received: Instant,
    ) -> Self {
        let requests = requests
            .into_iter()
            .filter_map(|request| Some((shared.add(RequestInfo::of(&request)?), request)));
        Self { text, requests: requests.collect(), received }
    }

    /// Sends the batch, and passes on the answers. If its response is lost, the requests without an answer are sent one
    /// by one: the daemon decides about each of them what it decides about any request whose response was lost.
    pub(super) async fn run(self, shared: Arc<Shared>, position: Position) {
        let post = Request { method: Method::Post, headers: &[], body: &self.text };
        let why = loop {
            let deadline = shared.deadline(self.received);
            let attempt = shared.attempt_in_session(Some(&position), post, deadline);
            match shared.unless_left(attempt).await {
                Ok(response) => {
                    drop(position);
                    self.follow(&shared, response).await;
                    return self.repeat(&shared, None).await;
                }
                Err(Failed::Lost) => return self.repeat(&shared, Some(position)).await,
                Err(Failed::Stopped) => break STOPPED,
                Err(Failed::NotSent) if Instant::now() >= deadline => break ABSENT,
                Err(Failed::NotSent) => shared.pause().await,
            }
        };
        for (request, _) in &self.requests {
            if !shared.is_leaving()
                && request.may_answer()
                && let Some(answer) = request.info.refusal(why)
            {
                shared.write(answer).await;
            }
            shared.remove(request);
        }
    }

    /// Passes on the answers.
    async fn follow(&self, shared: &Shared, mut response: Response) {
        let set_answered = |is_answered: &dyn Fn(&OpenRequest) -> bool| {
            for (request, _) in self.requests.iter().filter(|(it, _)| is_answered(it)) {
                request.may_answer();
            }
        };
        if response.content_type() == ContentType::EventStream {
            let mut events = EventReader::new(&shared.output, response, shared.max_answer(), None);
            while let Ok(Some((event, memory))) = events.next().await {
                if let Ok(message) = Parsed::read(event.data.clone()) {
                    set_answered(&|request| request.info.is_answered_by(&message));
                }
                shared.output.write(event.data, memory).await;
            }
        } else if let Some((body, memory)) =
            shared.output.read(&mut response, shared.max_answer()).await
        {
            set_answered(&|_| true);
            if !body.is_empty() {
                shared.output.write(body, memory).await;
            }
        }
    }

    /// Sends the requests that have no answer again, each by itself, and the first at the position of the batch.
    async fn repeat(self, shared: &Arc<Shared>, mut position: Option<Position>) {
        let mut tasks = Tasks::new();
        for (request, message) in self.requests {
            if request.is_answered() || shared.is_leaving() {
                shared.remove(&request);
            } else {
                let exchange = Exchange::repeated(shared, request, message, self.received);
                tasks.spawn(exchange.at(position.take()).run());
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}
