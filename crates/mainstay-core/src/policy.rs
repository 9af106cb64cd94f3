//! The restart policy: when a server is restarted, and when it is given up.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backoff::backoff;
use crate::text::{duration, time_limit};
use crate::watchdog::WatchLimits;

/// The maximum of all durations: 10 years, far below the overflow of a clock.
pub(crate) const LONGEST: Duration = Duration::from_secs(315_576_000);

/// The longest stop timeout, because `daemon stop` waits for all servers.
pub const LONGEST_STOP_TIMEOUT: Duration = Duration::from_secs(90);

/// The shortest limit for a run that does not answer: a healthy run may be slow for a moment.
pub(crate) const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

/// The restart policy of one server. The default schedule: at once, then
/// after 5, 10, 20, 40, 60, 60, 60, 60 and 60 seconds, then give up. In a valid spec no duration is
/// longer than 10 years.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RestartPolicy {
    /// How many charged restarts are made before the server is given up. Zero means none.
    pub max: u32,
    /// The delay before the second restart; the first one is immediate.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub initial: Duration,
    /// The maximum delay. A value below `initial` is the delay before every restart except the
    /// first.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub cap: Duration,
    /// Uptime after which the restart counter is reset.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub stable_after: Duration,
    /// When that time begins.
    pub stable_from: StableFrom,
    /// What to do when someone else stops the server.
    pub on_stop: OnStop,
    /// How long a start may take until the server has answered `initialize`; above zero in a valid
    /// spec.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub start_timeout: Duration,
    /// How long a server may take to end after TERM before it is killed; at most 90 seconds in a
    /// valid spec.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub stop_timeout: Duration,
    /// How long a run may read nothing and do nothing, although requests wait, before it is killed; `never`, or at least
    /// 1 second in a valid spec.
    #[serde(with = "time_limit")]
    #[schemars(with = "String")]
    pub hang_after: Option<Duration>,
    /// How long a run may work without reading anything before it is killed; `never`, or at least 1 second in a valid spec.
    #[serde(with = "time_limit")]
    #[schemars(with = "String")]
    pub busy_limit: Option<Duration>,
    /// How long a run may wait inside a call without reading anything before it is killed; `never`, or at least 1 second
    /// in a valid spec.
    #[serde(with = "time_limit")]
    #[schemars(with = "String")]
    pub block_limit: Option<Duration>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        let WatchLimits { hang_after, busy_limit, block_limit } = WatchLimits::default();
        Self {
            max: 10,
            initial: Duration::from_secs(5),
            cap: Duration::from_secs(60),
            stable_after: Duration::from_secs(30),
            stable_from: StableFrom::Ready,
            on_stop: OnStop::Restart,
            start_timeout: Duration::from_secs(120),
            stop_timeout: Duration::from_secs(10),
            hang_after,
            busy_limit,
            block_limit,
        }
    }
}

impl RestartPolicy {
    /// The nominal delay before charged restart number `attempt`, counted from 1.
    ///
    /// ```
    /// # use mainstay_core::RestartPolicy;
    /// let policy = RestartPolicy::default();
    /// let seconds: Vec<u64> = (1..=7).map(|attempt| policy.delay(attempt).as_secs()).collect();
    /// assert_eq!(seconds, [0, 5, 10, 20, 40, 60, 60]);
    /// ```
    pub fn delay(&self, attempt: u32) -> Duration {
        match attempt {
            0 | 1 => Duration::ZERO,
            n => backoff(self.initial, n - 2, self.cap),
        }
    }

    /// The time limits for a run that does not answer.
    pub fn watch_limits(&self) -> WatchLimits {
        let Self { hang_after, busy_limit, block_limit, .. } = *self;
        WatchLimits { hang_after, busy_limit, block_limit }
    }

    /// The durations with a limit of 10 years, each with its name in files.
    pub(crate) fn durations(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let required = [
            ("initial", self.initial),
            ("cap", self.cap),
            ("stable-after", self.stable_after),
            ("start-timeout", self.start_timeout),
        ];
        required.into_iter().chain(self.silence_limits())
    }

    /// The limits for a run that does not answer, each with its name in files.
    pub(crate) fn silence_limits(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let limits = [
            ("hang-after", self.hang_after),
            ("busy-limit", self.busy_limit),
            ("block-limit", self.block_limit),
        ];
        limits.into_iter().filter_map(|(field, limit)| Some((field, limit?)))
    }
}

/// When the stable time of a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StableFrom {
    /// From the moment it answered `initialize`; a run that never did is never stable.
    #[default]
    Ready,
    /// From its start, ready or not.
    Start,
}

/// What to do when someone else stops a server that should be on, such as with `docker stop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnStop {
    /// Start it again by the schedule.
    #[default]
    Restart,
    /// Leave it stopped until it is started again.
    Respect,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_schedule_is_the_documented_one() {
        let policy = RestartPolicy::default();
        let delays: Vec<u64> = (1..=policy.max).map(|n| policy.delay(n).as_secs()).collect();
        assert_eq!(delays, [0, 5, 10, 20, 40, 60, 60, 60, 60, 60]);
    }

    #[test]
    fn a_cap_below_the_initial_delay_is_every_delay() {
        let cap = Duration::from_secs(2);
        let policy = RestartPolicy { cap, ..RestartPolicy::default() };
        assert!((2..=policy.max).all(|n| policy.delay(n) == cap));
    }

    #[test]
    fn a_delay_never_overflows() {
        let policy = RestartPolicy { cap: Duration::MAX, ..RestartPolicy::default() };
        assert!(policy.delay(u32::MAX) >= policy.delay(33));
    }
}
