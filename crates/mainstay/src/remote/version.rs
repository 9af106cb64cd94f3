//! Warns once if daemon and program have different but compatible versions.
//!
//! After an update, the daemon is the older one until it is reloaded, and a running `connect` is the older one until its
//! client starts it again.

use std::cmp::Ordering;
use std::sync::Once;

use mainstay_api::{DaemonInfo, Hello, Request};
use semver::Version;

use crate::ui::Ui;

/// The version of this program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// One warning per process.
static WARNED: Once = Once::new();

/// Warns that the daemon has another version, unless the request replaces or stops it.
pub(super) fn warn(hello: &Hello, request: &Request) {
    if matches!(request, Request::Reload { .. } | Request::Shutdown { .. }) {
        return;
    }
    say(&hello.mainstay, matches!(request, Request::Http { .. }));
}

/// The same for a command that has requested the daemon's status.
pub(crate) fn warn_of_version(daemon: &DaemonInfo) {
    say(&daemon.version, false);
}

fn say(daemon: &str, is_connect: bool) {
    if let Some(notice) = notice(PROGRAM, daemon, is_connect) {
        WARNED.call_once(|| Ui::new().message(notice));
    }
}

/// The warning about two versions. None if they are the same.
fn notice(program: &str, daemon: &str, is_connect: bool) -> Option<String> {
    if program == daemon {
        return None;
    }
    let reload = "`mainstay daemon reload` updates the daemon";
    Some(match order(program, daemon) {
        Some(Ordering::Less) => {
            let then = if is_connect {
                "its client uses the newer version after its next start"
            } else {
                "use the program of the daemon"
            };
            format!("this program is version {program}, older than the daemon ({daemon}); {then}")
        }
        Some(Ordering::Greater) => {
            format!("the daemon is version {daemon}, older than this program ({program}); {reload}")
        }
        Some(Ordering::Equal) | None => {
            format!("the daemon is version {daemon}, this program {program}; {reload}")
        }
    })
}

/// The order of two versions, if they are semantic versions.
fn order(program: &str, daemon: &str) -> Option<Ordering> {
    let (program, daemon) = (Version::parse(program).ok()?, Version::parse(daemon).ok()?);
    Some(program.cmp_precedence(&daemon))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: &str, daemon: &str, is_connect: bool, expected: Option<&str>) {
        assert_eq!(notice(program, daemon, is_connect).as_deref(), expected);
    }

    #[test]
    fn the_older_side_is_named_with_what_to_do() {
        check("0.1.0", "0.1.0", false, None);
        for is_connect in [false, true] {
            let expected = "the daemon is version 0.9.0, older than this program (0.10.0); \
                            `mainstay daemon reload` updates the daemon";
            check("0.10.0", "0.9.0", is_connect, Some(expected));
        }
        let expected = "this program is version 0.1.0-rc.1, older than the daemon (0.1.0); use the program of the daemon";
        check("0.1.0-rc.1", "0.1.0", false, Some(expected));
        let expected = "this program is version 0.1.0, older than the daemon (1.0.0); \
                        its client uses the newer version after its next start";
        check("0.1.0", "1.0.0", true, Some(expected));
    }

    #[test]
    fn versions_that_cannot_be_compared_are_both_named() {
        for daemon in ["0.1.0+local", "trunk", ""] {
            let expected = format!(
                "the daemon is version {daemon}, this program 0.1.0; \
                 `mainstay daemon reload` updates the daemon"
            );
            check("0.1.0", daemon, false, Some(&expected));
        }
    }
}
