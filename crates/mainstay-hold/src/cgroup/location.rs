//! Finds the cgroup of this process, and decides whether it may create others below it. Pure.

use std::path::{Path, PathBuf};

/// Finds the directory of a cgroup by the contents of `/proc/self/mountinfo` and `/proc/self/cgroup`. `None` if there
/// is no version 2 hierarchy, or if the cgroup is outside the part of it that is mounted.
pub(super) fn find(mountinfo: &str, membership: &str) -> Option<PathBuf> {
    let cgroup = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    let cgroup = Path::new(cgroup);
    // A cgroup outside the cgroup namespace of this process is shown as `/../NAME`.
    if !cgroup.is_absolute() || has_parent_component(cgroup) {
        return None;
    }
    mountinfo.lines().find_map(|line| {
        let (root, mount) = cgroup2_mount(line)?;
        let below = cgroup.strip_prefix(&root).ok()?;
        Some(if below == Path::new("") { mount } else { mount.join(below) })
    })
}

/// What decides whether a cgroup is delegated to this process.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) owner: u32,
    /// The effective user of this process.
    pub(super) user: u32,
    /// Whether cgroups can be created in it, and processes moved from it into these.
    pub(super) writable: bool,
    /// The values of systemd's mark on this cgroup.
    pub(super) marks: Vec<Vec<u8>>,
}

impl Facts {
    /// Root can write everywhere, and the user's systemd may delegate to another user than the one who runs this
    /// process (`sudo`). Write access alone therefore proves nothing.
    pub(super) fn is_delegated(&self) -> bool {
        self.owner == self.user && self.writable && self.marks.iter().any(|mark| mark == b"1")
    }
}

/// The root and the mount point in a line of `mountinfo`, if that is a mount of the version 2 hierarchy.
fn cgroup2_mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, file_system) = line.split_once(" - ")?;
    if file_system.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    Some((root.into(), point.into()))
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escaped = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[3..]);
            }
            None => text.push_str(part),
        }
    }
    text
}

fn has_parent_component(path: &Path) -> bool {
    path.components().any(|part| part == std::path::Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "\
        22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n\
        30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[track_caller]
    fn check(mountinfo: &str, membership: &str, expected: Option<&str>) {
        assert_eq!(
            find(mountinfo, membership),
            expected.map(PathBuf::from),
            "{mountinfo}{membership}"
        );
    }

    #[test]
    fn the_cgroup_is_found_in_both_layouts() {
        let unit = "/user.slice/user@1000.service/app.slice/mainstay.service";
        check(UNIFIED, &format!("0::{unit}\n"), Some(&format!("/sys/fs/cgroup{unit}")));
        check(UNIFIED, "0::/\n", Some("/sys/fs/cgroup"));
        check(UNIFIED, "0::/a:b c\n", Some("/sys/fs/cgroup/a:b c"));
        let groups = "5:memory:/job\n1:name=systemd:/x\n0::/job\n";
        check(HYBRID, groups, Some("/sys/fs/cgroup/unified/job"));
    }

    #[test]
    fn a_cgroup_outside_the_mount_is_not_found() {
        let part = "30 22 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        check(part, "0::/docker/abc/x\n", Some("/sys/fs/cgroup/x"));
        check(part, "0::/docker/abc\n", Some("/sys/fs/cgroup"));
        check(part, "0::/docker/abcd\n", None);
        check(part, "0::/\n", None);
        // The second mount has it.
        check(&format!("{part}{UNIFIED}"), "0::/other\n", Some("/sys/fs/cgroup/other"));
        // Another cgroup namespace.
        check(UNIFIED, "0::/../other\n", None);
        check("30 22 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/x\n", None);
    }

    #[test]
    fn escapes_are_decoded() {
        let odd = "30 22 0:26 / /a\\040b\\134c rw - cgroup2 none rw\n";
        check(odd, "0::/x\n", Some("/a b\\c/x"));
    }

    #[test]
    fn nothing_is_found_without_a_version_2_hierarchy() {
        check("35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "0::/\n", None);
        check(UNIFIED, "5:memory:/job\n", None);
        check(UNIFIED, "0::relative\n", None);
        for junk in ["", "\n", "1 2 3", " - cgroup2", "1 2 3 / - cgroup2 x\n"] {
            check(junk, "0::/\n", None);
            check(UNIFIED, junk, None);
        }
    }

    #[test]
    fn delegation_requires_a_mark_ownership_and_write_access() {
        let marks = |marks: &[&str]| marks.iter().map(|mark| mark.as_bytes().to_vec()).collect();
        let delegated = Facts { owner: 7, user: 7, writable: true, marks: marks(&["1"]) };
        assert!(delegated.is_delegated());
        let check = |facts: Facts, expected| {
            assert_eq!(facts.is_delegated(), expected, "{facts:?}");
        };
        check(Facts { marks: marks(&["0", "1"]), ..delegated.clone() }, true);
        check(Facts { writable: false, ..delegated.clone() }, false);
        check(Facts { marks: marks(&[]), ..delegated.clone() }, false);
        check(Facts { marks: marks(&["0", "", "yes"]), ..delegated.clone() }, false);
        // Root in the cgroup of a user, and in one that is not delegated.
        check(Facts { user: 0, ..delegated.clone() }, false);
        check(Facts { owner: 0, user: 0, marks: marks(&[]), ..delegated }, false);
    }
}
