//! The ways in which servers are silent without being hung.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::random::Random;

/// What a server does during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Reads and answers everything but `ping`.
    IgnoresPing,
    /// Computes in bursts.
    Computes,
    /// Waits for the response to an HTTP request, for up to 5 minutes.
    Fetches,
    Sleeps,
    /// Waits for a child that does nothing.
    WaitsForChild,
    /// Writes to a disk, and waits for it.
    SlowDisk,
    /// Answers at once, and is called rarely.
    Idle,
    /// Sends messages, and reads nothing.
    Chats,
}

/// A call of a tool, and how long it takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Work {
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
    pub(super) time: Duration,
    /// The text of the answer.
    pub(super) expected: String,
}

impl Work {
    /// A call during which the server sleeps, and reads nothing.
    pub(super) fn stall(time: Duration) -> Self {
        let ms = time.as_millis();
        Self { tool: "stall", arguments: json!({"ms": ms}), time, expected: format!("{ms} ms") }
    }
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::IgnoresPing,
        Self::Computes,
        Self::Fetches,
        Self::Sleeps,
        Self::WaitsForChild,
        Self::SlowDisk,
        Self::Idle,
        Self::Chats,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::IgnoresPing => "ping ignored",
            Self::Computes => "CPU work",
            Self::Fetches => "synchronous HTTP",
            Self::Sleeps => "sleep",
            Self::WaitsForChild => "idle child",
            Self::SlowDisk => "slow disk",
            Self::Idle => "idle",
            Self::Chats => "chatty",
        }
    }

    /// What the fixture is started with.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::IgnoresPing => &["--blocking-tools", "--ignore-ping"],
            Self::Computes
            | Self::Fetches
            | Self::Sleeps
            | Self::WaitsForChild
            | Self::SlowDisk
            | Self::Idle
            | Self::Chats => &["--blocking-tools"],
        }
    }

    /// Whether none of its threads runs during a call. If nobody waits for that call any more, and others are not read,
    /// such a server is hung by definition.
    pub(super) fn is_still(self) -> bool {
        match self {
            Self::Fetches | Self::Sleeps | Self::WaitsForChild => true,
            Self::IgnoresPing | Self::Computes | Self::SlowDisk | Self::Idle | Self::Chats => false,
        }
    }

    /// The longest times of a call, one of which is drawn, in seconds.
    fn longest(self) -> &'static [u64] {
        match self {
            Self::Fetches => &[8, 30, 300, 300],
            Self::Sleeps | Self::WaitsForChild => &[8, 30, 120],
            Self::IgnoresPing | Self::Computes | Self::SlowDisk | Self::Chats => &[8, 30, 60],
            Self::Idle => &[0],
        }
    }

    /// How long its client rests after a call: an idle one also long enough for a probe, after 5 minutes.
    pub(super) fn rest(self, random: &mut Random) -> Duration {
        let longest: &[u64] = match self {
            Self::Idle | Self::IgnoresPing => &[2, 20, 400],
            Self::Computes
            | Self::Fetches
            | Self::Sleeps
            | Self::WaitsForChild
            | Self::SlowDisk
            | Self::Chats => &[2],
        };
        below(random, longest)
    }

    /// The next call.
    pub(super) fn work(self, random: &mut Random, slow: SocketAddr, file: &Path) -> Work {
        let time = below(random, self.longest());
        let ms = time.as_millis();
        let (tool, arguments) = match self {
            Self::IgnoresPing => ("sleep", json!({"ms": ms})),
            Self::Computes => ("compute", json!({"ms": ms})),
            Self::Fetches => ("fetch", json!({"address": slow, "path": format!("/{ms}")})),
            Self::Sleeps => ("stall", json!({"ms": ms})),
            Self::WaitsForChild => ("child", json!({"ms": ms})),
            Self::SlowDisk => ("disk", json!({"ms": ms, "path": file})),
            Self::Idle => ("echo", json!({"text": "idle"})),
            Self::Chats => ("chat", json!({"ms": ms})),
        };
        let expected = match self {
            Self::IgnoresPing => format!("slept {ms} ms"),
            Self::Idle => "idle".to_owned(),
            Self::Computes
            | Self::Fetches
            | Self::Sleeps
            | Self::WaitsForChild
            | Self::SlowDisk
            | Self::Chats => format!("{ms} ms"),
        };
        Work { tool, arguments, time, expected }
    }
}

/// A time up to one of these, in seconds.
fn below(random: &mut Random, longest: &[u64]) -> Duration {
    let longest = Duration::from_secs(longest[random.below(longest.len())]);
    random.time_below(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_are_different_servers_or_calls() {
        let slow = SocketAddr::from(([127, 0, 0, 1], 1));
        let tools = Kind::ALL.map(|kind| kind.work(&mut Random::new(1), slow, Path::new("f")).tool);
        assert_eq!(tools, ["sleep", "compute", "fetch", "stall", "child", "disk", "echo", "chat"]);
    }

    #[test]
    fn a_request_takes_up_to_five_minutes() {
        let (mut random, slow) = (Random::new(1), SocketAddr::from(([127, 0, 0, 1], 1)));
        let mut times =
            (0..200).map(|_| Kind::Fetches.work(&mut random, slow, Path::new("f")).time);
        assert!(times.all(|time| time < Duration::from_secs(300)));
        let longest = (0..200).map(|_| Kind::Fetches.work(&mut random, slow, Path::new("f")).time);
        assert!(longest.max() > Some(Duration::from_secs(270)));
    }
}
