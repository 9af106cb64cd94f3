//! The levels of log messages.

/// A level of MCP's logging. Less severe levels are lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(usize);

const NAMES: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl Level {
    /// None if there is no level of that name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        NAMES.iter().position(|known| *known == name).map(Self)
    }

    pub fn as_str(self) -> &'static str {
        NAMES[self.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_written_and_ordered() {
        for name in NAMES {
            assert_eq!(Level::of(name).map(Level::as_str), Some(name));
        }
        assert_eq!(Level::of("loud"), None);
        assert!(
            Level::of("debug") < Level::of("info") && Level::of("alert") < Level::of("emergency")
        );
    }
}
