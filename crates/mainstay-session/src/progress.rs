//! The progress of one request, as its client sees it: it always rises, and it comes at least every 10 seconds.
//!
//! Clients give up a request that nothing is heard of, and count progress as a sign of life. So a client that wants
//! progress gets it from Mainstay while the server reports none. Values of Mainstay are the last value of the server plus
//! steps so small that the next value of the server is higher; a value of the server that does not rise is replaced by
//! such a step.
//!
//! Only some of Mainstay's own messages are recorded, because a call may take hours. A later daemon continues above all
//! that can have been sent since the last recorded one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_mcp::frame::{self, BadParams, Method, Parsed, Span};

use crate::calls::{CallKey, CallKind};
use crate::messages;
use crate::server::Server;
use crate::stream::Durable;
use crate::streams::StreamRef;
use crate::timers::Timer;

/// How often a client hears of a request at least.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

/// The sum of all steps after a value of the server stays below this, so that it reaches no whole number or percent.
const MAX_SUM: f64 = 0.001;

/// After so many steps half of the sum is reached.
const HALF_SUM: f64 = 1000.0;

/// Of so many messages of Mainstay in a row, the first is recorded.
const RECORDED: u32 = 60;

/// A longer message of a server is not repeated.
const MAX_REPEATED: usize = 4096;

/// Where a client wants progress reported, and how far it was.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The place of the token in the client's request.
    pub(crate) place: Span,
    /// The client's token, as JSON.
    pub(crate) token: Box<str>,
    /// The last value that the client was sent.
    last: Option<f64>,
    /// The last value of the server that was higher than all before.
    base: f64,
    /// How many steps were made since.
    steps: u32,
    /// How many messages of Mainstay were not recorded since the last one that was; none if there is none.
    unrecorded: Option<u32>,
    /// The last report of the server, as the client got it.
    report: Option<Bytes>,
    /// When the client was last sent anything.
    sent: Option<Instant>,
}

impl Progress {
    /// The progress that this request asks for, if it does. `reported` are the messages that an earlier daemon has sent
    /// to the client and recorded.
    pub(crate) fn of<'a>(
        request: &Parsed,
        reported: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Option<Self>, BadParams> {
        let Some(place) = request.progress_token()? else { return Ok(None) };
        let token = request.get(place).into();
        let (last, base, steps) = (None, 0.0, 0);
        let (unrecorded, report, sent) = (None, None, None);
        let mut progress = Self { place, token, last, base, steps, unrecorded, report, sent };
        for message in reported.filter_map(|text| Parsed::read(text.clone()).ok()) {
            if let Some(reported) = message.progress() {
                progress.rises_to(reported.value);
                progress.unrecorded = Some(0);
            }
        }
        if progress.unrecorded.take().is_some() {
            // Some more may have been sent.
            for _ in 0..RECORDED {
                progress.step();
            }
        }
        Ok(Some(progress))
    }

    /// What the client is sent when the server reports this; none if the last value cannot be exceeded.
    pub(crate) fn report(
        &mut self,
        now: Instant,
        message: &Parsed,
        reported: frame::Progress,
    ) -> Option<Bytes> {
        let text = if !self.rises_to(reported.value) {
            let value = self.step()?;
            message.with_progress(reported, &self.token, value)
        } else if message.get(reported.token) == &*self.token {
            message.text().clone()
        } else {
            message.with(reported.token, &self.token)
        };
        self.unrecorded = Some(0);
        self.sent = Some(now);
        self.report = Some(text.clone()).filter(|text| text.len() <= MAX_REPEATED);
        Some(text)
    }

    /// What the client is sent while the server reports nothing: its last report again, or else what is waited for.
    fn repeat(&mut self, now: Instant, waiting_for: &str) -> Option<Bytes> {
        let value = self.step()?;
        self.sent = Some(now);
        let report = self.report.clone().and_then(|report| Parsed::read(report).ok());
        let repeated = report.and_then(|report| {
            let reported = report.progress()?;
            Some(report.with_progress(reported, &self.token, value))
        });
        Some(repeated.unwrap_or_else(|| frame::progress(&self.token, value, waiting_for)))
    }

    /// Whether the next message of Mainstay is to be recorded.
    fn takes_record(&mut self) -> bool {
        match &mut self.unrecorded {
            Some(unrecorded) if *unrecorded + 1 < RECORDED => {
                *unrecorded += 1;
                false
            }
            unrecorded => {
                *unrecorded = Some(0);
                true
            }
        }
    }

    /// Whether the value is higher than all before.
    fn rises_to(&mut self, value: f64) -> bool {
        let rises = value.is_finite() && self.last.is_none_or(|last| value > last);
        if rises {
            (self.last, self.base, self.steps) = (Some(value), value, 0);
        }
        rises
    }

    /// The next value above all before.
    fn step(&mut self) -> Option<f64> {
        self.steps = self.steps.saturating_add(1);
        let steps = f64::from(self.steps);
        let value = self.base + MAX_SUM * steps / (steps + HALF_SUM);
        // A large value may be too coarse for such a step.
        let last = self.last.unwrap_or(self.base);
        let value = if value > last { value } else { last.next_up() };
        value.is_finite().then(|| *self.last.insert(value))
    }
}

impl Server {
    /// The requests of a stream have no answer after a moment: their clients get progress from now on, if they want it.
    pub(crate) fn begin_progress(&mut self, now: Instant, stream: StreamRef) {
        for key in self.open_calls_of(stream) {
            let Some(call) = self.calls.get(key) else { continue };
            // A client that waits for `initialize` gets more than that.
            if call.progress.is_some() && !matches!(call.kind, CallKind::Initialize(_)) {
                self.timers.set(now + INTERVAL, Timer::Progress(key));
            }
        }
    }

    pub(crate) fn progress_due(&mut self, now: Instant, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        let (stream, session, waited) =
            (call.stream, call.session, now.saturating_duration_since(call.arrived));
        let Some(sent) = call.progress.as_ref().map(|progress| progress.sent) else { return };
        let next = sent.map_or(now, |sent| sent + INTERVAL);
        if next > now {
            return self.timers.set(next, Timer::Progress(key));
        }
        self.timers.set(now + INTERVAL, Timer::Progress(key));
        let Some(it) = self.streams.get(stream).filter(|it| it.has_reader) else { return };
        let is_relayed = matches!(it.durable, Durable::Relayed);
        // While the daemon before this one relays what comes, it also sends this.
        let is_with_another = it.inherited().is_some_and(|it| it.relayed.is_some());
        if is_with_another || (self.is_frozen && !is_relayed) {
            return;
        }
        let is_batch = it.as_request().is_some_and(|request| request.batch.is_some());
        let Some(session) = self.sessions.get(session) else { return };
        let present = self.availability_for(session).clone();
        let Some(call) = self.calls.get_mut(key) else { return };
        let waiting_for = messages::waiting(&self.name, &call.stage, &present, waited);
        let Some(progress) = &mut call.progress else { return };
        let Some(message) = progress.repeat(now, &waiting_for) else { return };
        if is_batch || is_relayed || progress.takes_record() {
            self.push(stream, message);
        } else {
            self.push_unrecorded(stream, message);
        }
    }

    /// The server, or the daemon before this one, has sent a message that belongs to a call. Returns what the client is
    /// sent, if anything.
    pub(crate) fn with_rising_progress(
        &mut self,
        now: Instant,
        key: CallKey,
        message: &Parsed,
    ) -> Option<Bytes> {
        let progress = self.calls.get_mut(key).and_then(|call| call.progress.as_mut());
        match (message.method(), message.progress(), progress) {
            (Some(Method::Progress), Some(reported), Some(progress))
                if message.get(reported.token) == &*progress.token =>
            {
                progress.report(now, message, reported)
            }
            _ => Some(message.text().clone()),
        }
    }

    /// Shows the reader of a stream a message that it may miss.
    fn push_unrecorded(&mut self, key: StreamRef, message: Bytes) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.show(message);
            self.act(crate::action::Action::Wake(key));
        }
    }
}

#[cfg(test)]
mod tests;
