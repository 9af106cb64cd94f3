//! The clocks of this crate, which are read only here.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The present moment, for deadlines.
#[expect(clippy::disallowed_methods, reason = "the one place where the monotonic clock is read")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Wall time in milliseconds since 1970, for logs and records only.
#[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A wall time as RFC 3339 in UTC, to the second.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A wall time as RFC 3339 in UTC, to the millisecond. Always of the same length.
pub(crate) fn rfc3339_ms(unix_ms: u64) -> String {
    let whole = rfc3339(unix_ms);
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), unix_ms % 1_000)
}

/// The Gregorian date of a day counted from 1970-01-01. Years are taken to begin in March, so that
/// the leap day is the last of its year and the lengths of the months follow one formula.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_reads_as_rfc3339() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (1_735_689_600_000, "2025-01-01T00:00:00Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ];
        for (unix_ms, text) in cases {
            assert_eq!(rfc3339(unix_ms), text);
        }
        assert_eq!(rfc3339_ms(1_709_251_199_045), "2024-02-29T23:59:59.045Z");
    }
}
