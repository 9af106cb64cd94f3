//! Decides when a request to an HTTP server that cannot be reached yet is retried, and when a stream that broke off is
//! resumed.

use std::time::{Duration, Instant};

use mainstay_mcp::sse::Event;
use mainstay_mcp::upstream::UpstreamError;

/// While a server is starting, a request to it is retried after this time.
const STARTING: Duration = Duration::from_millis(50);

/// How often in a row a stream that ends without an event is resumed.
const MAX_EMPTY_RESUMES: u32 = 5;

/// For how long a stream without a message is resumed. A server may close it repeatedly and let its client resume it, for
/// as long as a call takes.
const WITHOUT_MESSAGE: Duration = Duration::from_secs(600);

/// How long to wait before a stream is resumed, unless the server sets another time.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest time that a server may set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// After which time the opening of a session is retried; none if its failure is final.
pub(super) fn open_again(error: &UpstreamError, is_starting: bool) -> Option<Duration> {
    let is_unready = matches!(
        error,
        UpstreamError::Connect { .. }
            | UpstreamError::Closed { .. }
            | UpstreamError::Http { status: 404 | 502 | 503, .. }
    );
    (is_starting && is_unready).then_some(STARTING)
}

/// When a stream that broke off without an answer is resumed. Without a limit, a server that closes it repeatedly would
/// let its client wait forever.
pub(super) struct Resumes {
    /// How often in a row it ended without an event.
    empty: u32,
    /// When the last message came, or the stream began.
    message: Instant,
    pause: Duration,
}

impl Resumes {
    pub(super) fn new(now: Instant) -> Self {
        Self { empty: 0, message: now, pause: PAUSE }
    }

    pub(super) fn record_event(&mut self, now: Instant, event: &Event) {
        self.empty = 0;
        // Events without data only give the client an id to resume with.
        if !event.data.is_empty() {
            self.message = now;
        }
    }

    /// After which time the stream is resumed; none if it is given up. `retry` is the time that the server has
    /// set.
    pub(super) fn next(&mut self, now: Instant, retry: Option<Duration>) -> Option<Duration> {
        self.empty += 1;
        self.pause = retry.unwrap_or(self.pause).min(LONGEST_PAUSE);
        let may_resume = self.empty <= MAX_EMPTY_RESUMES && now < self.message + WITHOUT_MESSAGE;
        may_resume.then_some(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(data: &'static str) -> Event {
        Event { name: None, data: Bytes::from_static(data.as_bytes()), id: None }
    }

    fn begun() -> (Resumes, Instant) {
        let now = tokio::time::Instant::now().into_std();
        (Resumes::new(now), now)
    }

    #[test]
    fn a_stream_that_brings_nothing_is_asked_for_a_few_times() {
        let (mut resumes, now) = begun();
        for _ in 0..MAX_EMPTY_RESUMES {
            assert_eq!(resumes.next(now, None), Some(PAUSE));
        }
        assert_eq!(resumes.next(now, None), None);
        resumes.record_event(now, &event(""));
        assert_eq!(resumes.next(now, None), Some(PAUSE));
    }

    #[test]
    fn a_stream_without_a_message_is_not_asked_for_for_ever() {
        let (mut resumes, begun) = begun();
        let second = Duration::from_secs(1);
        resumes.record_event(begun + second, &event("{}"));
        resumes.record_event(begun + WITHOUT_MESSAGE, &event(""));
        assert!(resumes.next(begun + WITHOUT_MESSAGE, None).is_some());
        resumes.record_event(begun + WITHOUT_MESSAGE + second, &event(""));
        assert_eq!(resumes.next(begun + WITHOUT_MESSAGE + second, None), None);
    }

    #[test]
    fn the_server_sets_the_pause_up_to_a_limit() {
        let (mut resumes, now) = begun();
        let second = Duration::from_secs(1);
        assert_eq!(resumes.next(now, Some(second)), Some(second));
        assert_eq!(resumes.next(now, None), Some(second), "it applies from then on");
        assert_eq!(resumes.next(now, Some(LONGEST_PAUSE * 2)), Some(LONGEST_PAUSE));
    }

    #[test]
    fn only_a_server_that_starts_is_asked_again_for_a_session() {
        let error =
            |status| UpstreamError::Http { method: String::new(), status, body: String::new() };
        for (status, is_starting, expected) in
            [(503, true, Some(STARTING)), (503, false, None), (500, true, None)]
        {
            assert_eq!(open_again(&error(status), is_starting), expected, "{status}");
        }
    }
}
