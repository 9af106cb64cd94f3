//! The user's login PATH: where a program is looked for that the describer's own PATH does not have.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// A login shell may run a long profile, but not for ever.
const LIMIT: Duration = Duration::from_secs(5);

/// Used when no shell can be asked.
const FALLBACK: &str = "/usr/local/bin:/usr/bin:/bin";

/// Between these the shell prints its PATH, so that what a profile prints does no harm.
const FENCE: &str = "__mainstay_path__";

/// Asks the login shell for its PATH once, when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct LoginPath {
    path: OnceCell<OsString>,
}

impl LoginPath {
    /// The PATH that a login shell with this environment has.
    pub(crate) async fn get(&self, env: &[(OsString, OsString)]) -> &OsStr {
        self.path.get_or_init(|| async { ask_shell(env).await.unwrap_or(FALLBACK.into()) }).await
    }
}

async fn ask_shell(env: &[(OsString, OsString)]) -> Option<OsString> {
    let shell = env.iter().find(|(name, _)| name == "SHELL").map(|(_, shell)| shell.clone());
    let script = format!("printf '%s%s%s' {FENCE} \"$PATH\" {FENCE}");
    let output = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()))
        .args(["-l", "-c", &script])
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(LIMIT, output).await.ok()?.ok()?;
    between_fences(&output.stdout).map(|path| OsString::from_vec(path.to_vec()))
}

fn between_fences(printed: &[u8]) -> Option<&[u8]> {
    let fence = FENCE.as_bytes();
    let find = |text: &[u8]| text.windows(fence.len()).position(|window| window == fence);
    let rest = &printed[find(printed)? + fence.len()..];
    let path = &rest[..find(rest)?];
    (!path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_profile_prints_is_ignored() {
        let check = |printed: &str, expected: Option<&str>| {
            assert_eq!(between_fences(printed.as_bytes()), expected.map(str::as_bytes));
        };
        check("hello\n__mainstay_path__/a:/b__mainstay_path__", Some("/a:/b"));
        check("__mainstay_path____mainstay_path__", None);
        check("nothing", None);
    }

    #[tokio::test]
    async fn a_login_shell_is_asked() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".profile"), "PATH=/from/profile:/bin; echo noise\n")
            .unwrap();
        let env = [("HOME", home.path().as_os_str()), ("SHELL", OsStr::new("/bin/sh"))]
            .map(|(name, value)| (name.into(), value.to_owned()));
        assert_eq!(LoginPath::default().get(&env).await, "/from/profile:/bin");
    }

    #[tokio::test]
    async fn without_a_shell_there_is_a_fallback() {
        let env = [("SHELL".into(), "/no/such/shell".into())];
        assert_eq!(LoginPath::default().get(&env).await, FALLBACK);
    }
}
