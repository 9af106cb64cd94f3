//! Warns once if daemon and program have different versions that understand each other.
//!
//! After an update the daemon may be the older one, until it is reloaded; a `connect` that was
//! started before the update is, until its client starts it again.

use std::cmp::Ordering;
use std::sync::Once;

use mainstay_api::{DaemonInfo, Hello, Request};
use semver::Version;

use crate::ui::Ui;

/// The version of this program.
const OURS: &str = env!("CARGO_PKG_VERSION");

/// One process is one command, or one life of `connect`.
static WARNED: Once = Once::new();

/// Warns that the daemon has another version, unless this was done before or the request is about to change it.
pub(super) fn warn(hello: &Hello, request: &Request) {
    if matches!(request, Request::Reload { .. } | Request::Shutdown { .. }) {
        return;
    }
    say(&hello.mainstay, matches!(request, Request::Http { .. }));
}

/// The same, for a command that has asked the daemon about itself.
pub(crate) fn tell_of(daemon: &DaemonInfo) {
    say(&daemon.version, false);
}

fn say(theirs: &str, is_connect: bool) {
    if let Some(notice) = notice(OURS, theirs, is_connect) {
        WARNED.call_once(|| Ui::new().say(notice));
    }
}

/// The warning about two versions. None if they are the same.
fn notice(ours: &str, theirs: &str, is_connect: bool) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let reload = "`mainstay daemon reload` updates the daemon";
    Some(match order(ours, theirs) {
        Some(Ordering::Less) => {
            let then = if is_connect {
                "its client uses the newer version after its next start"
            } else {
                "use the program of the daemon"
            };
            format!("this program is version {ours}, older than the daemon ({theirs}); {then}")
        }
        Some(Ordering::Greater) => {
            format!("the daemon is version {theirs}, older than this program ({ours}); {reload}")
        }
        Some(Ordering::Equal) | None => {
            format!("the daemon is version {theirs}, this program {ours}; {reload}")
        }
    })
}

/// The order of two versions, if they are semantic versions.
fn order(ours: &str, theirs: &str) -> Option<Ordering> {
    let (ours, theirs) = (Version::parse(ours).ok()?, Version::parse(theirs).ok()?);
    Some(ours.cmp_precedence(&theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ours: &str, theirs: &str, is_connect: bool, expected: Option<&str>) {
        assert_eq!(notice(ours, theirs, is_connect).as_deref(), expected);
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
    fn versions_without_an_order_are_named_all_the_same() {
        for theirs in ["0.1.0+local", "trunk", ""] {
            let expected = format!(
                "the daemon is version {theirs}, this program 0.1.0; \
                 `mainstay daemon reload` updates the daemon"
            );
            check("0.1.0", theirs, false, Some(&expected));
        }
    }
}
