//! What a service is made from: the program, and what of its user's environment it is given.

use std::ffi::OsString;
use std::path::Path;

use super::ServiceError;

/// The variables that are written into the unit. They say which instance it is and where its programs
/// are; a service manager knows none of them. Others may hold secrets, which do not belong in a file
/// that everybody may read.
const CARRIED: &[&str] = &[
    "MAINSTAY_HOME",
    "MAINSTAY_LISTEN",
    "MAINSTAY_LOG",
    "PATH",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// What the service runs.
pub(crate) const ARGS: &[&str] = &["daemon", "run", "--service"];

/// What a unit is made from. All of it can be written into a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blueprint {
    /// This program.
    pub(super) program: String,
    pub(super) env: Vec<(&'static str, String)>,
    /// The directory that tells instances apart.
    pub(super) state_dir: String,
}

impl Blueprint {
    /// A service of this program, for the instance that keeps its state there.
    pub(crate) fn new(
        program: &Path,
        state_dir: &Path,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ServiceError> {
        let set = |name| var(name).filter(|value| !value.is_empty()).map(|value| (name, value));
        let env = CARRIED.iter().filter_map(|name| set(*name));
        Ok(Self {
            program: writable("the path of this program", program.as_os_str().to_owned())?,
            env: env
                .map(|(name, value)| Ok((name, writable(name, value)?)))
                .collect::<Result<_, ServiceError>>()?,
            state_dir: writable("the state directory", state_dir.as_os_str().to_owned())?,
        })
    }
}

/// The value as text that any unit can hold.
fn writable(what: &str, value: OsString) -> Result<String, ServiceError> {
    let text = value.into_string().ok().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| ServiceError::Unwritable { what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn blueprint(name: &str, value: &[u8]) -> Result<Blueprint, ServiceError> {
        let value = OsStr::from_bytes(value).to_owned();
        let var = |asked: &str| (asked == name).then(|| value.clone());
        Blueprint::new(Path::new("/bin/mainstay"), Path::new("/state"), var)
    }

    #[test]
    fn only_what_a_manager_does_not_know_and_everybody_may_is_carried() {
        let carried = |name: &'static str| blueprint(name, b"x").unwrap().env;
        assert_eq!(carried("PATH"), [("PATH", "x".to_owned())]);
        assert_eq!(carried("MAINSTAY_HOME"), [("MAINSTAY_HOME", "x".to_owned())]);
        for name in ["HTTPS_PROXY", "GITHUB_TOKEN", "XDG_RUNTIME_DIR", "MAINSTAY_NO_START"] {
            assert_eq!(carried(name), [], "{name}");
        }
        assert_eq!(blueprint("PATH", b"").unwrap().env, [], "empty is not set");
    }

    #[test]
    fn what_no_unit_can_hold_is_named() {
        for value in [b"/a\xff".as_slice(), b"/a\nExecStart=/bin/evil"] {
            let error = blueprint("PATH", value).unwrap_err();
            assert!(matches!(error, ServiceError::Unwritable { what } if what == "PATH"));
        }
    }
}
