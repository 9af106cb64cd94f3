//! Text forms of durations, sizes, errors and newtypes.

use std::error::Error;
use std::time::Duration;

/// An error with its sources, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A duration with at most two units.
///
/// ```
/// # use std::time::Duration;
/// # use mainstay_core::human_duration;
/// assert_eq!(human_duration(Duration::from_millis(120)), "120 ms");
/// assert_eq!(human_duration(Duration::from_secs(125)), "2 min 5 s");
/// ```
pub fn human_duration(duration: Duration) -> String {
    let secs = duration.as_secs();
    let parts = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        _ => format!("{big} {big_unit} {small} {small_unit}"),
    };
    match secs {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{secs} s"),
        60..3_600 => parts(secs / 60, "min", secs % 60, "s"),
        3_600..86_400 => parts(secs / 3_600, "h", secs % 3_600 / 60, "min"),
        _ => parts(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

/// A number of bytes, exactly: in the largest unit that divides it.
///
/// ```
/// # use mainstay_core::human_bytes;
/// assert_eq!(human_bytes(512 * 1024 * 1024), "512 MiB");
/// ```
pub fn human_bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |&(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= shift;
    match units.into_iter().find(fits) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// Conversions of a newtype around a valid text, which implements `FromStr`.
macro_rules! text_newtype {
    ($type:ident, $error:ty) => {
        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
pub(crate) use text_newtype;

/// Serde for durations in the form "45s" or "1m 30s".
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(|error| {
            D::Error::custom(format!(
                "`{text}` is not a duration ({error}): write it as `45s` or `2m`"
            ))
        })
    }
}

/// Serde for time limits: "45s", or "never".
pub(crate) mod time_limit {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const NEVER: &str = "never";

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(crate) fn serialize<S: Serializer>(
        limit: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match limit {
            Some(limit) => super::duration::serialize(limit, to),
            None => to.serialize_str(NEVER),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(from)?;
        if text == NEVER {
            return Ok(None);
        }
        humantime::parse_duration(&text).map(Some).map_err(|error| {
            D::Error::custom(format!(
                "`{text}` is not a time limit ({error}): write it as `45s`, `2m` or `never`"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let cases = [
            (0, "0 B"),
            (1_000, "1000 B"),
            (1_024, "1 KiB"),
            (1_536 << 20, "1536 MiB"),
            (2 << 30, "2 GiB"),
            (u64::MAX, "18446744073709551615 B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn durations_read_like_speech() {
        let cases = [
            (Duration::from_millis(120), "120 ms"),
            (Duration::from_millis(3_900), "3 s"),
            (Duration::from_secs(60), "1 min"),
            (Duration::from_secs(125), "2 min 5 s"),
            (Duration::from_secs(7_200), "2 h"),
            (Duration::from_secs(90_000), "1 d 1 h"),
        ];
        for (duration, text) in cases {
            assert_eq!(human_duration(duration), text);
        }
    }
}
