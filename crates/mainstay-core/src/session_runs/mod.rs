//! Decides about the runs that belong to a single session each (`--isolate`).
//!
//! A session asks for a run and gives it up again ([`Requests`] holds that until it is handled). [`SessionRuns::handle`]
//! takes one event and returns the actions to execute, in order. Each run has a [`Supervisor`](crate::Supervisor) of its
//! own, which decides about its restarts; this is only about its beginning and its end.
//!
//! Guarantees:
//! - a session has at most one run at a time: the next one starts when the one before has ended;
//! - no run starts for a session that has ended, or after its server was removed;
//! - a run that is being ended is in no list of [`SessionRuns::of`], so that no change of intent brings it back;
//! - no generation of a run is used twice while its session exists.

mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use requests::Requests;

use crate::supervisor::SessionRunEnd;
use crate::{RunId, ServerName};

/// Which session of which server a run belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionRunKey {
    pub server: ServerName,
    /// The id of the session.
    pub session: Arc<str>,
}

impl SessionRunKey {
    /// The name under which engines know the run of the session.
    ///
    /// # Panics
    ///
    /// If the id of the session has characters that a name cannot have.
    pub fn run_name(&self) -> ServerName {
        self.log_name().parse().expect("a name, a hyphen and hexadecimal digits")
    }

    /// The same as a text, also for a session that stands for several.
    pub fn log_name(&self) -> String {
        let server = self.server.as_str();
        let server = &server[..server.len().min(40)];
        let session = self.session.get(..16).unwrap_or(&self.session);
        format!("{server}-{session}")
    }
}

/// An input of [`SessionRuns`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A session of a known server needs a run.
    Start(SessionRunKey),
    /// A session does not need its run any more.
    Stop(SessionRunKey, SessionRunEnd),
    /// A run has ended, and its supervisor is finished. What sessions asked for before is handled before.
    Ended {
        name: ServerName,
        /// Its last generation. None if the daemon stops.
        last: Option<RunId>,
    },
    ServerRemoved(ServerName),
}

/// What to do next, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a run, and report [`Event::Ended`] when it has ended.
    Start {
        key: SessionRunKey,
        /// The generation of the session's last run.
        last: RunId,
    },
    /// Report the availability of this run to its session again.
    Publish(ServerName),
    End(ServerName, SessionRunEnd),
    /// Remove this run, because its server was removed.
    Remove(ServerName),
    /// Report to the session that its run is gone: its next request asks for another one.
    ReportGone(SessionRunKey),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct SessionRuns {
    runs: BTreeMap<ServerName, Run>,
    /// The last generations of runs that have ended, by name, while their sessions exist.
    last_runs: HashMap<ServerName, RunId>,
}

#[derive(Debug)]
struct Run {
    key: SessionRunKey,
    /// Whether it is being ended, and what follows.
    after_end: Option<AfterEnd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterEnd {
    /// The session or the server is gone.
    Nothing,
    /// The session exists, and may need another run.
    KeepNumber,
    /// The session needs another run.
    StartNext,
}

impl SessionRuns {
    /// No runs. These are the last generations of earlier ones, by name.
    pub fn new(last_runs: HashMap<ServerName, RunId>) -> Self {
        Self { runs: BTreeMap::new(), last_runs }
    }

    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Start(key) => self.start(key).into_iter().collect(),
            Event::Stop(key, why) => self.stop(&key.run_name(), why).into_iter().collect(),
            Event::Ended { name, last } => self.ended(name, last).into_iter().collect(),
            Event::ServerRemoved(server) => self.server_removed(&server),
        }
    }

    /// The names of a server's runs that are not being ended.
    pub fn of(&self, server: &ServerName) -> impl Iterator<Item = &ServerName> {
        let is_kept = |run: &Run| run.key.server == *server && run.after_end.is_none();
        self.runs.iter().filter(move |(_, run)| is_kept(run)).map(|(name, _)| name)
    }

    fn start(&mut self, key: SessionRunKey) -> Option<Action> {
        let name = key.run_name();
        match self.runs.get_mut(&name) {
            Some(Run { after_end: Some(after_end), .. }) => {
                *after_end = AfterEnd::StartNext;
                None
            }
            Some(Run { after_end: None, .. }) => Some(Action::Publish(name)),
            None => {
                let last = self.last_runs.remove(&name).unwrap_or_default();
                self.runs.insert(name, Run { key: key.clone(), after_end: None });
                Some(Action::Start { key, last })
            }
        }
    }

    fn stop(&mut self, name: &ServerName, why: SessionRunEnd) -> Option<Action> {
        let after_end = match why {
            SessionRunEnd::Idle | SessionRunEnd::Shared => AfterEnd::KeepNumber,
            SessionRunEnd::SessionEnded => {
                self.last_runs.remove(name);
                AfterEnd::Nothing
            }
        };
        let run = self.runs.get_mut(name)?;
        let is_new = run.after_end.replace(after_end).is_none();
        is_new.then(|| Action::End(name.clone(), why))
    }

    fn ended(&mut self, name: ServerName, last: Option<RunId>) -> Option<Action> {
        let Run { key, after_end } = self.runs.remove(&name)?;
        let last = last?;
        match after_end {
            Some(AfterEnd::Nothing) => None,
            Some(AfterEnd::KeepNumber) => {
                self.last_runs.insert(name, last);
                None
            }
            Some(AfterEnd::StartNext) => {
                self.last_runs.insert(name, last);
                self.start(key)
            }
            // Someone removed its container.
            None => {
                self.last_runs.insert(name, last);
                Some(Action::ReportGone(key))
            }
        }
    }

    fn server_removed(&mut self, server: &ServerName) -> Vec<Action> {
        let own = self.runs.iter_mut().filter(|(_, run)| run.key.server == *server);
        let removed = own.filter_map(|(name, run)| {
            let is_new = run.after_end.replace(AfterEnd::Nothing).is_none();
            is_new.then(|| Action::Remove(name.clone()))
        });
        removed.collect()
    }
}
