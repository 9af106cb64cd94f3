//! Parses and prints times: local, or UTC with `--utc`.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::text;

/// The option of every command that prints times.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ZoneArgs {
    /// Print times in UTC instead of local time
    #[arg(long)]
    utc: bool,
}

impl ZoneArgs {
    /// The time zone to print in. The local one is that of `TZ`, or else of `/etc/localtime`, or else UTC.
    pub(crate) fn zone(self) -> Zone {
        if self.utc {
            return Zone::utc();
        }
        Zone(TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }
}

/// A time zone that times are printed in.
#[derive(Debug, Clone)]
pub(crate) struct Zone(TimeZone);

impl Zone {
    pub(crate) fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// The time of day, "14:03:59 CEST".
    pub(crate) fn clock(&self, at: Timestamp) -> String {
        self.zoned(at).strftime("%H:%M:%S %Z").to_string()
    }

    /// Day and time, "2026-05-01 14:03:59".
    pub(crate) fn date_and_clock(&self, at: Timestamp) -> String {
        self.zoned(at).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }

    /// The same with the name of the zone.
    pub(crate) fn full(&self, at: Timestamp) -> String {
        self.zoned(at).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
    }

    /// The same with milliseconds instead.
    pub(crate) fn to_the_millisecond(&self, at: Timestamp) -> String {
        self.zoned(at).strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
    }

    /// Parses a time in the past: how long ago, a time of today, or a date with or without a time.
    pub(crate) fn moment(&self, text: &str, now: Timestamp) -> Result<Timestamp, String> {
        let wrong = || {
            format!(
                "`{text}` is not a time: write `10m`, `2h`, `14:30`, `2026-05-01 14:30` or RFC 3339"
            )
        };
        if let Ok(ago) = text::duration(text) {
            return now.checked_sub(ago).map_err(|_| wrong());
        }
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(at);
        }
        let local = match (text.parse::<DateTime>(), text.parse::<Time>()) {
            (Ok(local), _) => local,
            (Err(_), Ok(time)) => self.zoned(now).date().to_datetime(time),
            (Err(_), Err(_)) => return Err(wrong()),
        };
        local.to_zoned(self.0.clone()).map(|at| at.timestamp()).map_err(|_| wrong())
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        at.to_zoned(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn east() -> Zone {
        Zone(TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap())
    }

    #[test]
    fn times_are_printed_in_their_zone() {
        let may = at("2026-05-01T02:03:59.045Z");
        assert_eq!(Zone::utc().full(may), "2026-05-01 02:03:59 UTC");
        assert_eq!(east().full(may), "2026-04-30 22:03:59 EDT");
        assert_eq!(east().clock(may), "22:03:59 EDT");
        assert_eq!(east().date_and_clock(may), "2026-04-30 22:03:59");
        assert_eq!(east().to_the_millisecond(may), "2026-04-30 22:03:59.045");
    }

    #[test]
    fn times_are_parsed_in_common_formats() {
        let now = at("2026-05-01T02:03:59Z");
        let check = |text: &str, expected: &str| {
            assert_eq!(east().moment(text, now).unwrap(), at(expected), "{text}");
        };
        check("10m", "2026-05-01T01:53:59Z");
        check("1h 30m", "2026-05-01T00:33:59Z");
        check("14:30", "2026-04-30T18:30:00Z");
        check("2026-04-01 14:30", "2026-04-01T18:30:00Z");
        check("2026-01-01", "2026-01-01T05:00:00Z");
        check("2026-04-01T14:30:00Z", "2026-04-01T14:30:00Z");
        for text in ["", "soon", "25:00", "2026-13-01"] {
            assert!(east().moment(text, now).unwrap_err().contains("is not a time"), "{text}");
        }
    }
}
