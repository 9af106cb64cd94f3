//! The environment of a command: variables, directory, clock and terminal, each read in one place.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::{DaemonInfo, Instance, Listen, ListenError, Request, WaitReport};
use mainstay_core::{ServerName, ServerSpec, human_duration};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{CliError, Exit};
use crate::remote::Remote;
use crate::settings::Settings;
use crate::ui::{Ui, paint};
use crate::wait_lines::WaitLines;

/// How long the daemon may take to cancel a request.
const CANCEL: Duration = Duration::from_secs(2);

/// The environment of one command.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) caller: Caller,
    /// This program.
    pub(crate) exe: PathBuf,
    pub(crate) ui: Ui,
}

/// The user's shell: its variables and its directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    pub(crate) env: Vec<(OsString, OsString)>,
    /// None if it was deleted. Most commands do not need it.
    pub(crate) cwd: Option<PathBuf>,
}

impl Caller {
    pub(crate) fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    /// Whether a variable is set and not empty.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.var(name).is_some_and(|value| !value.is_empty())
    }

    /// The home directory, if `HOME` is an absolute path.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.var("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
    }

    pub(crate) fn search_path(&self) -> Option<String> {
        self.var("PATH").and_then(OsStr::to_str).map(str::to_owned)
    }

    /// Where a daemon of this caller listens for MCP clients. The variable takes precedence over the config file.
    pub(crate) fn listen(&self, settings: &Settings) -> Result<Listen, ListenError> {
        match self.var("MAINSTAY_LISTEN").filter(|value| !value.is_empty()) {
            Some(value) => value.to_string_lossy().parse(),
            None => Ok(settings.listen.clone().unwrap_or_default()),
        }
    }

    /// A path relative to the caller's directory.
    pub(crate) fn absolute(&self, path: &Path) -> Result<PathBuf, CliError> {
        match &self.cwd {
            _ if path.is_absolute() => Ok(path.to_owned()),
            Some(cwd) => Ok(cwd.join(path).components().collect()),
            None => Err(CliError::usage("the current directory no longer exists")),
        }
    }

    /// The same caller with a private instance in `home`, at any free port.
    pub(crate) fn with_private_home(&self, home: &Path) -> Self {
        let is_mainstays = |key: &OsStr| key.as_encoded_bytes().starts_with(b"MAINSTAY_");
        let env = self.env.iter().filter(|(key, _)| !is_mainstays(key)).cloned().collect();
        let clean = Self { env, cwd: self.cwd.clone() };
        clean.with_var("MAINSTAY_HOME", home).with_var("MAINSTAY_LISTEN", "127.0.0.1:0")
    }

    /// The same caller with another value of one variable.
    pub(crate) fn with_var(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(key, _)| key != name);
        self.env.push((name.into(), value.into()));
        self
    }
}

impl Context {
    pub(crate) fn from_process() -> Result<Self, CliError> {
        let exe =
            std::env::current_exe().map_err(CliError::io("the path of this program is unknown"))?;
        let env = std::env::vars_os().collect();
        let cwd = std::env::current_dir().ok();
        Ok(Self { caller: Caller { env, cwd }, exe, ui: Ui::new() })
    }

    pub(crate) fn instance(&self) -> Result<Instance, CliError> {
        Ok(Instance::find(|name| self.caller.var(name).map(OsStr::to_owned))?)
    }

    /// The settings of the instance. None if there is no config file.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, CliError> {
        let file = self.instance()?.config_file;
        Ok(file.map(|file| Settings::read(&file)).transpose()?.flatten())
    }

    /// Sends a request to the daemon, which is started if necessary. `what` is shown if that takes long.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        request: &Request,
    ) -> Result<T, CliError> {
        let remote = Remote::of(self)?;
        self.ui.waiting(what, remote.call(request)).await
    }

    /// The specs of servers, for a command that changes them. Starts a daemon that was stopped, like the change itself.
    pub(crate) async fn described(
        &self,
        name: Option<&ServerName>,
    ) -> Result<Vec<ServerSpec>, CliError> {
        let request = Request::Export { name: name.cloned() };
        match self.ask("asking the daemon", &request).await {
            Err(CliError::Stopped) => {
                Remote::of(self)?.start().await?;
                self.ask("asking the daemon", &request).await
            }
            described => described,
        }
    }

    /// Warns if the daemon does not listen for HTTP clients.
    pub(crate) async fn warn_if_not_listening(&mut self) {
        // This is only a warning, so a failed request is ignored.
        let daemon = self.ask::<DaemonInfo>("asking the daemon", &Request::Daemon).await.ok();
        let Some(problem) = daemon.and_then(|daemon| daemon.listen_problem) else { return };
        let entries = if problem.contains("another user") {
            " Entries that point to another user's process are removed meanwhile."
        } else {
            ""
        };
        self.ui.message(format!(
            "{} {problem}, so clients do not reach your servers over HTTP.{entries} Mainstay keeps trying; `listen` in config.toml sets another address",
            paint::warning("warning:")
        ));
    }

    /// Sends a request that a server has to answer, and waits for that no longer than `limit`. What is waited for is
    /// reported after a few seconds. Ctrl-C, like the limit, cancels the request at the server.
    pub(crate) async fn ask_within<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        server: &ServerName,
        what: &str,
        request: &Request,
    ) -> Result<T, CliError> {
        let remote = Remote::of(self)?;
        let (spinner, draw) = self.ui.late_spinner(&format!("waiting for {what}"));
        let mut lines = WaitLines::new(what, spinner);
        let stop = Notify::new();
        let (is_interrupted, has_reached_daemon) = {
            let show = |reports: Vec<WaitReport>| {
                for report in reports {
                    lines.show(report, &mut self.ui);
                }
                Ok(())
            };
            let mut work = pin!(remote.stream_until(request, show, &stop));
            let is_interrupted = tokio::select! {
                answer = &mut work => return answer.map(|answer| answer.expect("it was not stopped")),
                never = draw => match never {},
                () = sleep(limit) => false,
                // If the signal cannot be caught, it ends the process as usual.
                Ok(()) = tokio::signal::ctrl_c() => true,
            };
            stop.notify_one();
            // The daemon cancels the request, and says last whether it was sent.
            (is_interrupted, !matches!(timeout(CANCEL, work).await, Ok(Ok(None))))
        };
        let last = lines.last_reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        let is_sent = has_reached_daemon && lines.is_sent();
        drop(lines);
        let effect = effect(server, request, is_sent);
        if is_interrupted {
            self.ui.message(format!("cancelled {what}{effect}"));
            return Err(CliError::Answered(Exit::Interrupted));
        }
        let limit = human_duration(limit);
        Err(CliError::failed(
            format!("{server} has not answered within {limit}{last}"),
            format!("{what} was cancelled{effect}; `mainstay why {server}` says what to do"),
        ))
    }
}

/// What a request that was cancelled may have done.
fn effect(server: &ServerName, request: &Request, is_sent: bool) -> String {
    match (request, is_sent) {
        (Request::Call { .. }, true) => format!("; {server} may have executed it"),
        (Request::Call { .. }, false) => format!("; it was not sent to {server}, and not executed"),
        // A list has no effect.
        _ => String::new(),
    }
}

/// The wall clock. It is read nowhere else.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        let env = [("A", "1"), ("EMPTY", ""), ("MAINSTAY_NO_START", "1")];
        Caller { env: env.map(|(k, v)| (k.into(), v.into())).into(), cwd: Some("/project".into()) }
    }

    #[test]
    fn paths_are_relative_to_the_callers_directory() {
        let check = |path: &str, expected: &str| {
            assert_eq!(caller().absolute(Path::new(path)).unwrap(), Path::new(expected));
        };
        check(".", "/project");
        check("a/./b", "/project/a/b");
        check("/x", "/x");
    }

    #[test]
    fn the_variable_wins_over_the_file() {
        let listen = Some("127.0.0.1:7000".parse().unwrap());
        let file = Settings { listen, ..Settings::default() };
        let listen = |caller: Caller, file: &Settings| caller.listen(file).unwrap().to_string();
        assert_eq!(listen(caller(), &Settings::default()), "127.0.0.1:7433");
        assert_eq!(listen(caller(), &file), "127.0.0.1:7000");
        let caller_with_variable = caller().with_var("MAINSTAY_LISTEN", "127.0.0.1:7001");
        assert_eq!(listen(caller_with_variable, &file), "127.0.0.1:7001");
    }

    #[test]
    fn only_a_call_that_was_sent_may_have_been_executed() {
        let name: ServerName = "time".parse().unwrap();
        let arguments = serde_json::value::to_raw_value("").unwrap();
        let call = Request::Call { name: name.clone(), tool: "add".to_owned(), arguments };
        assert_eq!(effect(&name, &call, true), "; time may have executed it");
        assert_eq!(effect(&name, &call, false), "; it was not sent to time, and not executed");
        let list = Request::Tools { name: name.clone() };
        assert_eq!([true, false].map(|sent| effect(&name, &list, sent)), ["", ""]);
    }

    #[test]
    fn another_home_shares_nothing_with_this_one() {
        let other = caller().with_private_home(Path::new("/tmp/x"));
        assert_eq!(other.var("MAINSTAY_HOME"), Some(OsStr::new("/tmp/x")));
        assert!(!other.has("MAINSTAY_NO_START"));
        assert_eq!(other.listen(&Settings::default()).unwrap().to_string(), "127.0.0.1:0");
        assert!(other.has("A") && !other.has("EMPTY"));
    }
}
