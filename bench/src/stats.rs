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
    fn quartiles_are_measured_values() {
        let eight = (1..=8).rev().map(f64::from).collect();
        assert_eq!(Quartiles::of(eight), Quartiles { q1: 2.0, median: 4.0, q3: 6.0 });
        assert_eq!(Quartiles::of(vec![7.0]), Quartiles { q1: 7.0, median: 7.0, q3: 7.0 });
        assert_eq!(Quartiles::of(Vec::new()), Quartiles::default());
    }
}
