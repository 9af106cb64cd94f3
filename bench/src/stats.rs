//! Percentiles of durations.

use std::time::Duration;

use serde::Serialize;

/// Percentiles in microseconds, each one a value that was measured (nearest rank).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the names in JSON")]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Percentiles {
    /// The percentiles of these values; all zero if there are none.
    pub(crate) fn of(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).map_or(0.0, |value| value.as_secs_f64() * 1e6)
        };
        Self { p50_us: at(50), p90_us: at(90), p99_us: at(99), max_us: at(100) }
    }
}

/// The middle of some values and of its two halves, each one a value that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

impl Quartiles {
    /// The quartiles of these values; all zero if there are none.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |quarter: usize| {
            let rank = (values.len() * quarter).div_ceil(4).max(1);
            values.get(rank - 1).copied().unwrap_or(0.0)
        };
        Self { q1: at(1), median: at(2), q3: at(3) }
    }
}

/// The 95 % confidence interval of a median, whatever the distribution; both ends are values that were measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// None for fewer than six values, which have no such interval.
    pub(crate) fn of_median(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let rank = interval_rank(values.len())?;
        Some(Self { low: values[rank], high: values[values.len() - 1 - rank] })
    }
}

/// How many of `count` values are left out at each end of the interval. Each value is below the median with
/// probability 1/2, and the probability that fewer than that many are is at most 2.5 %.
fn interval_rank(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut sum = chance;
    let mut rank = None;
    for below in 0..count / 2 {
        if sum > 0.025 {
            break;
        }
        rank = Some(below);
        let next = f64::from(u32::try_from(count - below).ok()?);
        chance *= next / f64::from(u32::try_from(below + 1).ok()?);
        sum += chance;
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let hundred = (1..=100).rev().map(Duration::from_micros).collect();
        let expected = Percentiles { p50_us: 50.0, p90_us: 90.0, p99_us: 99.0, max_us: 100.0 };
        assert_eq!(Percentiles::of(hundred), expected);
        let one = Percentiles { p50_us: 7.0, p90_us: 7.0, p99_us: 7.0, max_us: 7.0 };
        assert_eq!(Percentiles::of(vec![Duration::from_micros(7)]), one);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_tables() {
        assert_eq!(
            [5, 6, 9, 12, 20, 30].map(interval_rank),
            [None, Some(0), Some(1), Some(2), Some(5), Some(9)]
        );
        let thirty = (1..=30).map(f64::from).collect();
        assert_eq!(Interval::of_median(thirty), Some(Interval { low: 10.0, high: 21.0 }));
    }

    #[test]
    fn quartiles_are_measured_values() {
        let eight = (1..=8).rev().map(f64::from).collect();
        assert_eq!(Quartiles::of(eight), Quartiles { q1: 2.0, median: 4.0, q3: 6.0 });
        assert_eq!(Quartiles::of(vec![7.0]), Quartiles { q1: 7.0, median: 7.0, q3: 7.0 });
        assert_eq!(Quartiles::of(Vec::new()), Quartiles::default());
    }
}
