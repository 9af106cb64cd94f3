//! The levels of log messages.

use std::str::FromStr;

/// A level of MCP's logging, least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

const NAMES: [(Level, &str); 8] = [
    (Level::Debug, "debug"),
    (Level::Info, "info"),
    (Level::Notice, "notice"),
    (Level::Warning, "warning"),
    (Level::Error, "error"),
    (Level::Critical, "critical"),
    (Level::Alert, "alert"),
    (Level::Emergency, "emergency"),
];

impl Level {
    pub fn as_str(self) -> &'static str {
        NAMES[self as usize].1
    }
}

/// There is no level of that name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownLevel;

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(level, _)| *level).ok_or(UnknownLevel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_written_and_ordered() {
        for (level, name) in NAMES {
            assert_eq!((name.parse(), level.as_str()), (Ok(level), name));
        }
        assert_eq!("loud".parse::<Level>(), Err(UnknownLevel));
        assert!(NAMES.is_sorted());
    }
}
