//! The PATH of the user's login shell, which is searched after the PATH in the spec.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::time::Duration;

use mainstay_hold::descriptors;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::error::is_shortage;

/// The time limit for the login shell.
const LIMIT: Duration = Duration::from_secs(5);

/// The shell is not started again for this long after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Used if the shell fails.
const FALLBACK: &str = "/usr/local/bin:/usr/bin:/bin";

/// Delimits the PATH in the output, which may also contain output of the profile.
const FENCE: &str = "__mainstay_path__";

/// Runs the login shell when its PATH is first needed, and caches the result. Concurrent callers
/// wait for the same result.
#[derive(Debug, Default)]
pub(crate) struct LoginPath {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Path(OsString),
    Failed {
        at: Instant,
        kind: io::ErrorKind,
        temporary: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Login {
    /// The path, or the fallback.
    pub(crate) path: OsString,
    /// Why the shell failed, if that is temporary.
    pub(crate) failure: Option<io::Error>,
}

impl LoginPath {
    /// The PATH that a login shell with this environment has.
    pub(crate) async fn get(&self, env: &[(OsString, OsString)]) -> Login {
        self.get_from(|| ask_shell(env)).await
    }

    async fn get_from<A: Future<Output = io::Result<OsString>>>(
        &self,
        ask: impl FnOnce() -> A,
    ) -> Login {
        let mut known = self.known.lock().await;
        let due = match &*known {
            Known::Nothing => true,
            Known::Path(_) => false,
            Known::Failed { at, .. } => at.elapsed() >= ASK_AGAIN,
        };
        if due {
            *known = match ask().await {
                Ok(path) => Known::Path(path),
                Err(error) => {
                    tracing::warn!(%error, "cannot read the PATH of the login shell");
                    let temporary = is_shortage(&error);
                    Known::Failed { at: Instant::now(), kind: error.kind(), temporary }
                }
            };
        }
        match &*known {
            Known::Path(path) => Login { path: path.clone(), failure: None },
            Known::Failed { kind, temporary, .. } => {
                Login { path: FALLBACK.into(), failure: temporary.then(|| (*kind).into()) }
            }
            Known::Nothing => unreachable!("it was set above"),
        }
    }
}

async fn ask_shell(env: &[(OsString, OsString)]) -> io::Result<OsString> {
    let shell = env.iter().find(|(name, _)| name == "SHELL").map(|(_, shell)| shell.clone());
    let script = format!("printf '%s%s%s' {FENCE} \"$PATH\" {FENCE}");
    let mut command = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
    descriptors::pass_only_stdio(command.as_std_mut());
    let output = command
        .args(["-l", "-c", &script])
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(LIMIT, output).await.map_err(|_| io::ErrorKind::TimedOut)??;
    between_fences(&output.stdout)
        .map(|path| OsString::from_vec(path.to_vec()))
        .ok_or_else(|| io::Error::other("its output has no PATH"))
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
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn output_of_the_profile_is_ignored() {
        let check = |printed: &str, expected: Option<&str>| {
            assert_eq!(between_fences(printed.as_bytes()), expected.map(str::as_bytes));
        };
        check("hello\n__mainstay_path__/a:/b__mainstay_path__", Some("/a:/b"));
        check("__mainstay_path____mainstay_path__", None);
        check("nothing", None);
    }

    #[tokio::test]
    async fn the_path_of_the_login_shell_is_read() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".profile"), "PATH=/from/profile:/bin; echo noise\n")
            .unwrap();
        let env = [("HOME", home.path().as_os_str()), ("SHELL", OsStr::new("/bin/sh"))]
            .map(|(name, value)| (name.into(), value.to_owned()));
        assert_eq!(LoginPath::default().get(&env).await.path, "/from/profile:/bin");
    }

    #[tokio::test]
    async fn a_login_shell_inherits_three_streams() {
        let _leaked = rustix::io::dup(std::io::stdin()).unwrap();
        let home = tempfile::tempdir().unwrap();
        // The fourth is the directory that `ls` reads.
        let profile = "PATH=/$(/bin/ls /proc/self/fd | /usr/bin/tr -d '\\n')\n";
        std::fs::write(home.path().join(".profile"), profile).unwrap();
        let env = [("HOME", home.path().as_os_str()), ("SHELL", OsStr::new("/bin/sh"))]
            .map(|(name, value)| (name.into(), value.to_owned()));
        assert_eq!(LoginPath::default().get(&env).await.path, "/0123");
    }

    #[tokio::test]
    async fn without_a_shell_the_fallback_is_permanent() {
        let env = [("SHELL".into(), "/no/such/shell".into())];
        let login = LoginPath::default().get(&env).await;
        assert_eq!(login.path, FALLBACK);
        assert!(login.failure.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_forgotten_after_a_while_and_an_answer_never() {
        let login = LoginPath::default();
        let slow = || async { Err(io::ErrorKind::TimedOut.into()) };
        let good = || async { Ok("/good".into()) };
        let unasked = || async { panic!("it must not be asked") };
        let failed = login.get_from(slow).await;
        assert_eq!(failed.path, FALLBACK);
        assert_eq!(failed.failure.unwrap().kind(), io::ErrorKind::TimedOut);
        assert_eq!(login.get_from(unasked).await.path, FALLBACK);
        tokio::time::advance(ASK_AGAIN).await;
        assert_eq!(login.get_from(good).await.path, "/good");
        tokio::time::advance(ASK_AGAIN).await;
        assert_eq!(login.get_from(unasked).await.path, "/good");
    }
}
