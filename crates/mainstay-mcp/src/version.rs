//! The protocol versions that the fronts speak.

use std::fmt;
use std::str::FromStr;

/// A protocol version with a handshake, in order of age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    V2024_11_05,
    /// 2025-03-26, the only one with batches.
    V2025_03_26,
    V2025_06_18,
    /// 2025-11-25, the first whose clients expect an event without data at the start of a stream.
    V2025_11_25,
}

impl ProtocolVersion {
    /// All of them, the oldest first.
    pub const ALL: [Self; 4] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];

    /// As it is written in messages and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The protocol version is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the protocol version is not supported; supported are 2024-11-05, 2025-03-26, 2025-06-18, \
     2025-11-25"
)]
pub struct UnknownVersion;

impl FromStr for ProtocolVersion {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        Self::ALL.into_iter().find(|version| version.as_str() == text).ok_or(UnknownVersion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_written_and_ordered_by_age() {
        for version in ProtocolVersion::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
            assert!(UnknownVersion.to_string().contains(version.as_str()));
        }
        assert!(ProtocolVersion::ALL.is_sorted());
        assert_eq!("2026-07-28".parse::<ProtocolVersion>(), Err(UnknownVersion));
    }
}
