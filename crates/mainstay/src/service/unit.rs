//! The text of the systemd user unit, and whether an installed unit is still the one that Mainstay wrote.
//!
//! The servers are in the unit's control group and must survive the service, so only its main process is ever signalled
//! (`KillMode=process`), and Mainstay may create a control group per run below it (`Delegate=yes`). Every restriction
//! of the unit would apply to the servers, which are the user's own programs: `docs/design/service-unit.md` explains
//! each setting.
//!
//! The last line of a unit is a comment with two digests: of the text before it, and of the instance it is for. If the
//! first one matches, the unit is as Mainstay wrote it, in this or another version.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::error::CliError;

/// Variables that are written into the unit, because a service manager does not have them. Others may be secrets, and
/// every user can read the unit.
const VARIABLES: &[&str] = &[
    "MAINSTAY_HOME",
    "MAINSTAY_LISTEN",
    "MAINSTAY_LOG",
    "PATH",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Begins the comment with the digests. Units of all versions have it.
const DIGESTS: &str = "mainstay-seal:";

/// How an installed unit compares with the one that this version would write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnitState {
    Absent,
    Current,
    /// Mainstay wrote it, but another version, or for another program or environment.
    Outdated,
    /// The user wrote or changed it.
    Edited,
    OtherInstance,
}

impl UnitState {
    pub(crate) fn compare(installed: Option<&str>, current: &str) -> Self {
        let Some(installed) = installed else { return Self::Absent };
        if installed == current {
            return Self::Current;
        }
        match (read_digests(installed), read_digests(current)) {
            (Some((_, theirs)), Some((_, ours))) if theirs != ours => Self::OtherInstance,
            (Some((true, _)), _) => Self::Outdated,
            (Some((false, _)) | None, _) => Self::Edited,
        }
    }
}

/// The unit of this program, for the instance with that state directory.
pub(super) fn unit(
    program: &Path,
    state_dir: &Path,
    var: impl Fn(&str) -> Option<OsString>,
) -> Result<String, CliError> {
    let program = writable("the path of this program", program.into())?;
    let state_dir = writable("the state directory", state_dir.into())?;
    let start = command(&program, "daemon run --service");
    let reload = command(&program, "daemon reload");
    let mut env = String::new();
    for name in VARIABLES {
        if let Some(value) = var(name).filter(|value| !value.is_empty()) {
            let setting = quoted(&format!("{name}={}", writable(name, value)?));
            env.extend(["Environment=", &setting, "\n"]);
        }
    }
    let text = format!(
        "# Written by `mainstay service install`, which replaces it only if nobody else has changed it.\n\
         # Put your own changes into a drop-in: systemctl --user edit mainstay\n\
         \n\
         [Unit]\n\
         Description=Mainstay, which keeps MCP servers running for AI clients\n\
         # What cannot start now, for example on a full disk, may start in an hour.\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=notify\n\
         NotifyAccess=main\n\
         ExecStart={start}\n\
         ExecReload={reload}\n\
         {env}\
         # Restart after every end except an orderly one, as by `mainstay daemon stop`.\n\
         Restart=always\n\
         RestartPreventExitStatus=0\n\
         RestartSec=2\n\
         WatchdogSec=30\n\
         TimeoutStartSec=120\n\
         TimeoutStopSec=150\n\
         # The servers are in this control group, and keep running while the service is stopped or restarted.\n\
         KillMode=process\n\
         # Each run of a server gets its own control group, so that none of its processes survives it.\n\
         Delegate=yes\n\
         # A server that runs out of memory must not stop the others.\n\
         OOMPolicy=continue\n\
         TasksMax=infinity\n\
         # A core dump could write secrets to disk.\n\
         LimitCORE=0:infinity\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n\
         \n"
    );
    Ok(with_digests(&text, &state_dir))
}

/// The value as text that a unit can contain.
fn writable(what: &str, value: OsString) -> Result<String, CliError> {
    let text = value.into_string().ok().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| {
        CliError::failed(
            format!("{what} contains control characters or is not valid UTF-8, so it cannot be written into a unit"),
            "choose another path, or unset the variable",
        )
    })
}

/// A word of a setting, quoted so that systemd reads it back unchanged.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('"', r#"\""#).replace('%', "%%");
    format!("\"{escaped}\"")
}

/// A command line. systemd refuses a program with quotes or backslashes in its path, so such a program is started by a
/// shell that executes it.
fn command(program: &str, args: &str) -> String {
    let shell = if program.contains(['"', '\'', '\\']) {
        format!("/bin/sh -c {} ", quoted(r#"exec "$0" "$@""#))
    } else {
        String::new()
    };
    // The colon disables variables, so `$` is a dollar.
    format!(":{shell}{} {args}", quoted(program))
}

fn with_digests(text: &str, instance: &str) -> String {
    format!("{text}# {DIGESTS} {} {}\n", digest(text), digest(instance))
}

/// Whether the text is the one that was written, and the digest of its instance.
fn read_digests(text: &str) -> Option<(bool, &str)> {
    let (before, digests) = text.rsplit_once(DIGESTS)?;
    let body = before.rfind('\n').map_or("", |end| &before[..=end]);
    let mut words = digests.split_whitespace();
    let fits = words.next()? == digest(body) && digests.trim_end().lines().count() == 1;
    Some((fits, words.next()?))
}

/// Half of a SHA-256: it detects changes, and does not have to resist forgery.
fn digest(text: &str) -> String {
    let bytes = Sha256::digest(text);
    let start = bytes.first_chunk().expect("a digest has 32 bytes");
    format!("{:032x}", u128::from_be_bytes(*start))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use proptest::prelude::*;

    use super::*;

    fn unit_with(name: &str, value: &[u8]) -> Result<String, CliError> {
        let value = OsStr::from_bytes(value).to_owned();
        let var = |asked: &str| (asked == name).then(|| value.clone());
        unit(Path::new("/opt/my tools/100%/mainstay"), Path::new("/state"), var)
    }

    #[test]
    fn the_whole_unit() {
        insta::assert_snapshot!(unit_with("MAINSTAY_HOME", br#"/a "b" \c $d"#).unwrap(), @r#"
        # Written by `mainstay service install`, which replaces it only if nobody else has changed it.
        # Put your own changes into a drop-in: systemctl --user edit mainstay

        [Unit]
        Description=Mainstay, which keeps MCP servers running for AI clients
        # What cannot start now, for example on a full disk, may start in an hour.
        StartLimitIntervalSec=0

        [Service]
        Type=notify
        NotifyAccess=main
        ExecStart=:"/opt/my tools/100%%/mainstay" daemon run --service
        ExecReload=:"/opt/my tools/100%%/mainstay" daemon reload
        Environment="MAINSTAY_HOME=/a \"b\" \\c $d"
        # Restart after every end except an orderly one, as by `mainstay daemon stop`.
        Restart=always
        RestartPreventExitStatus=0
        RestartSec=2
        WatchdogSec=30
        TimeoutStartSec=120
        TimeoutStopSec=150
        # The servers are in this control group, and keep running while the service is stopped or restarted.
        KillMode=process
        # Each run of a server gets its own control group, so that none of its processes survives it.
        Delegate=yes
        # A server that runs out of memory must not stop the others.
        OOMPolicy=continue
        TasksMax=infinity
        # A core dump could write secrets to disk.
        LimitCORE=0:infinity

        [Install]
        WantedBy=default.target

        # mainstay-seal: 500bd17ab1bac2accd293df78c591cdd 7ac1387d11b1e002f2439e39f95be316
        "#);
    }

    #[test]
    fn only_public_variables_that_a_manager_does_not_know_are_written() {
        let written = |name: &str| {
            let unit = unit_with(name, b"x").unwrap();
            unit.contains(&format!("Environment=\"{name}=x\"\n"))
        };
        assert!(written("PATH") && written("MAINSTAY_HOME"));
        for name in ["HTTPS_PROXY", "GITHUB_TOKEN", "XDG_RUNTIME_DIR", "MAINSTAY_NO_START"] {
            assert!(!unit_with(name, b"x").unwrap().contains("Environment="), "{name}");
        }
        assert!(!unit_with("PATH", b"").unwrap().contains("Environment="), "empty is not set");
    }

    #[test]
    fn a_value_that_a_unit_cannot_contain_is_named() {
        for value in [b"/a\xff".as_slice(), b"/a\nExecStart=/bin/evil"] {
            let error = unit_with("PATH", value).unwrap_err();
            assert!(error.to_string().starts_with("PATH contains control characters"), "{error}");
        }
    }

    #[test]
    fn a_users_change_differs_from_that_of_another_version() {
        let current = with_digests("[Service]\nA=2\n", "/state");
        let older = with_digests("[Service]\nA=1\n", "/state");
        let other = with_digests("[Service]\nA=2\n", "/elsewhere");
        let check = |installed: Option<&str>, expected: UnitState| {
            assert_eq!(UnitState::compare(installed, &current), expected, "{installed:?}");
        };
        check(None, UnitState::Absent);
        check(Some(&current), UnitState::Current);
        check(Some(&older), UnitState::Outdated);
        check(Some(&other), UnitState::OtherInstance);
        check(Some(&older.replace("A=1", "A=3")), UnitState::Edited);
        check(Some(&format!("{current}B=1\n")), UnitState::Edited);
        check(Some("[Service]\nA=2\n"), UnitState::Edited);
        check(Some(""), UnitState::Edited);
        check(Some("# mainstay-seal:"), UnitState::Edited);
    }

    /// Takes a setting apart as systemd does (`extract_first_word` with unquoting and unescaping).
    fn words(setting: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut chars = setting.chars();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let next = chars.next().expect("no backslash at the end");
                    assert!(matches!(next, '\\' | '"'), "no other escapes are written");
                    word.get_or_insert_default().push(next);
                }
                (c, Some(open)) if c == open => quote = None,
                ('"' | '\'', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (' ' | '\t' | '\n' | '\r', None) => words.extend(word.take()),
                (c, Some(_) | None) => word.get_or_insert_default().push(c),
            }
        }
        assert_eq!(quote, None, "no quote is left open");
        words.extend(word);
        words
    }

    /// Replaces specifiers, of which only the one for a percent sign may occur.
    fn specifiers(word: &str) -> String {
        assert!(!word.replace("%%", "").contains('%'), "{word}");
        word.replace("%%", "%")
    }

    fn read(setting: &str) -> Vec<String> {
        words(setting).iter().map(|word| specifiers(word)).collect()
    }

    proptest! {
        #[test]
        fn a_word_is_read_back_as_it_was(text in "[^\\p{Cc}]{0,40}") {
            prop_assert_eq!(read(&quoted(&text)), [text]);
        }

        #[test]
        fn a_command_is_read_back_as_it_was(path in r#"/[a-z %$'"\\;#=@:+!é-]{0,20}"#) {
            let words = read(&command(&path, "daemon run"));
            let plain = !path.contains(['"', '\'', '\\']);
            let (program, rest) = words.split_first().expect("there is a program");
            let program = program.strip_prefix(':').expect("variables are off");
            if plain {
                prop_assert_eq!(program, &path);
                prop_assert_eq!(rest, ["daemon", "run"]);
            } else {
                prop_assert_eq!(program, "/bin/sh");
                prop_assert_eq!(rest, ["-c", r#"exec "$0" "$@""#, &path, "daemon", "run"]);
            }
        }
    }
}
