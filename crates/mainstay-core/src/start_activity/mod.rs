//! What a run does that does not become ready, by the evidence about its processes. Pure.
//!
//! A [`StartWatch`] is given [`StartEvidence`] every few seconds and compares it with the last one. It claims only what was
//! seen: `npm install` that runs and has connections downloads, one without connections is only running.

mod command;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use command::{Tool, short_name, tool};

use crate::human_duration;
use crate::watchdog::WaitsFor;

/// A tree that used at least one processor for this part of the time is working.
const WORKING: f64 = 0.1;

/// The most processes that are considered.
pub const MAX_PROCESSES: usize = 64;

/// What is known about a run that is starting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartEvidence {
    /// Whether it has read `initialize`.
    pub input: StartInput,
    /// Its processes; the server's own process is the first. None if they cannot be seen.
    pub processes: Vec<StartProcess>,
}

/// Whether a run has read `initialize`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartInput {
    /// Nothing was sent, or it cannot be observed.
    #[default]
    Unknown,
    /// This many bytes are unread.
    Unread(u64),
    Read,
}

/// A process of a run that is starting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartProcess {
    pub pid: u32,
    pub parent: u32,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// A number that changes whenever one of its threads is scheduled.
    pub switches: u64,
    /// The processor time that it has used.
    pub cpu: Duration,
    /// Whether it is stopped by a signal or a debugger, or frozen.
    pub is_suspended: bool,
    /// Whether a thread waits for a disk.
    pub waits_for_disk: bool,
    /// What its main thread waits for, if that is known.
    pub waits_for: Option<WaitsFor>,
    /// How many TCP connections it has.
    pub connections: usize,
}

/// What a run that is starting does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartActivity {
    pub kind: StartKind,
    /// The child that this is about, if it is not the server's own process: its program, without its arguments.
    pub child: Option<String>,
    pub input: StartInput,
    /// How many TCP connections that process has.
    pub connections: usize,
    /// Since when none of its threads was seen to run.
    pub quiet_since: Option<Instant>,
    /// What that process waits for, if that is known.
    pub waits_for: Option<WaitsFor>,
}

/// The kind of a [`StartActivity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartKind {
    /// A process is stopped.
    Suspended,
    /// A program that downloads runs and has connections.
    Downloading,
    /// A compiler runs.
    Compiling,
    /// A process waits for a file lock.
    WaitingForLock,
    /// A process uses a processor or a disk.
    Working,
    /// A child is there, and the server has not read `initialize`.
    WaitingForChild,
    /// The server has not read `initialize`.
    NotReading,
    /// The server has read `initialize`.
    NotAnswering,
    /// Its processes are there, and nothing else is known.
    Running,
}

impl StartKind {
    /// As a word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "suspended",
            Self::Downloading => "downloading",
            Self::Compiling => "compiling",
            Self::WaitingForLock => "waiting-for-lock",
            Self::Working => "working",
            Self::WaitingForChild => "waiting-for-child",
            Self::NotReading => "not-reading",
            Self::NotAnswering => "not-answering",
            Self::Running => "running",
        }
    }
}

/// Watches one start. See the [module](self).
#[derive(Debug)]
pub struct StartWatch {
    observed: Instant,
    /// What was last seen of each process, by its pid.
    last: HashMap<u32, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    switches: u64,
    cpu: Duration,
    /// Since when it was not seen to run.
    quiet_since: Instant,
}

impl StartWatch {
    pub fn new(now: Instant) -> Self {
        Self { observed: now, last: HashMap::new() }
    }

    /// Takes evidence, and decides what the run does. None if its processes cannot be seen.
    pub fn observe(&mut self, now: Instant, evidence: &StartEvidence) -> Option<StartActivity> {
        let processes = &evidence.processes[..evidence.processes.len().min(MAX_PROCESSES)];
        let is_first = self.last.is_empty();
        let elapsed = now.saturating_duration_since(self.observed);
        let mut seen = HashMap::with_capacity(processes.len());
        let observed: Vec<ObservedProcess<'_>> = processes
            .iter()
            .map(|process| {
                let last = self.last.get(&process.pid);
                let (quiet_since, cpu) = match last {
                    Some(last) if last.switches == process.switches => {
                        (last.quiet_since, Duration::ZERO)
                    }
                    Some(last) => (now, process.cpu.saturating_sub(last.cpu)),
                    // The first time, all that it has used since the start counts.
                    None => (now, process.cpu),
                };
                let (switches, used) = (process.switches, process.cpu);
                seen.insert(process.pid, Seen { switches, cpu: used, quiet_since });
                let has_run = quiet_since == now && !is_first;
                ObservedProcess { process, quiet_since, has_run, cpu }
            })
            .collect();
        self.last = seen;
        self.observed = now;
        classify(&observed, elapsed, now, evidence.input)
    }
}

/// A process, and what has changed since the last observation.
#[derive(Debug, Clone, Copy)]
struct ObservedProcess<'a> {
    process: &'a StartProcess,
    quiet_since: Instant,
    has_run: bool,
    cpu: Duration,
}

impl ObservedProcess<'_> {
    fn tool(&self) -> Option<Tool> {
        tool(&self.process.command)
    }

    fn is_downloading(&self) -> bool {
        self.tool() == Some(Tool::Downloads) && self.has_run && self.process.connections > 0
    }

    fn is_compiling(&self) -> bool {
        self.tool() == Some(Tool::Compiles) && self.has_run
    }
}

fn classify(
    all: &[ObservedProcess<'_>],
    elapsed: Duration,
    now: Instant,
    input: StartInput,
) -> Option<StartActivity> {
    use StartKind as K;
    let own = *all.first()?;
    let has_child =
        |it: &ObservedProcess<'_>| all.iter().any(|child| child.process.parent == it.process.pid);
    // The youngest process that has no child does what the others wait for.
    let leaves = || all.iter().rev().filter(|it| !has_child(it));
    let quiet_since = all.iter().map(|it| it.quiet_since).max().filter(|at| *at < now);
    let describe = |kind, about: &ObservedProcess<'_>| {
        let is_own = about.process.pid == own.process.pid;
        Some(StartActivity {
            kind,
            child: (!is_own).then(|| short_name(&about.process.command)),
            input,
            connections: about.process.connections,
            quiet_since,
            waits_for: about.process.waits_for,
        })
    };
    if let Some(stopped) = all.iter().find(|it| it.process.is_suspended) {
        return describe(K::Suspended, stopped);
    }
    if let Some(compiler) = leaves().find(|it| it.is_compiling()) {
        return describe(K::Compiling, compiler);
    }
    if let Some(download) = leaves().find(|it| it.is_downloading()) {
        return describe(K::Downloading, download);
    }
    let cpu: Duration = all.iter().map(|it| it.cpu).sum();
    let is_working = cpu.as_secs_f64() >= elapsed.as_secs_f64() * WORKING && !cpu.is_zero();
    let worker = all.iter().rev().max_by_key(|it| it.cpu).filter(|_| is_working);
    let worker = worker.or_else(|| all.iter().find(|it| it.process.waits_for_disk));
    if let Some(worker) = worker {
        return describe(K::Working, worker);
    }
    let is_locked = |it: &&ObservedProcess<'_>| it.process.waits_for == Some(WaitsFor::Lock);
    if let Some(locked) = leaves().find(is_locked) {
        return describe(K::WaitingForLock, locked);
    }
    let child = leaves().find(|it| it.process.pid != own.process.pid);
    match (input, child) {
        (StartInput::Read, _) => describe(K::NotAnswering, &own),
        (StartInput::Unread(_) | StartInput::Unknown, Some(child)) => {
            describe(K::WaitingForChild, child)
        }
        (StartInput::Unread(_), None) => describe(K::NotReading, &own),
        (StartInput::Unknown, None) => describe(K::Running, &own),
    }
}

impl StartActivity {
    /// What the run does, as a sentence.
    pub fn describe(&self, now: Instant) -> DescribedStart<'_> {
        DescribedStart { activity: self, now }
    }
}

/// See [`StartActivity::describe`].
#[derive(Debug)]
pub struct DescribedStart<'a> {
    activity: &'a StartActivity,
    now: Instant,
}

impl fmt::Display for DescribedStart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use StartKind as K;
        let StartActivity { kind, child, input, connections, quiet_since, waits_for } =
            self.activity;
        let child = child.as_ref().map(|child| format!("its child `{child}`"));
        let subject = child.as_deref().unwrap_or("it");
        let quiet = quiet_since.map(|at| self.now.saturating_duration_since(at));
        let quiet = quiet.filter(|quiet| quiet.as_secs() > 0).map(human_duration);
        match kind {
            K::Suspended => {
                let subject = child.as_deref().unwrap_or("its process");
                return write!(f, "{subject} is stopped (SIGSTOP or a debugger)");
            }
            K::Downloading => {
                let plural = if *connections == 1 { "" } else { "s" };
                return write!(f, "{subject} is downloading ({connections} connection{plural})");
            }
            K::Compiling => return write!(f, "{subject} is compiling"),
            K::WaitingForLock => {
                return write!(f, "{subject} waits for a file lock that another process has");
            }
            K::Working => write!(f, "{subject} is working")?,
            K::WaitingForChild => {
                write!(f, "{subject} is running")?;
                if let Some(quiet) = &quiet {
                    write!(f, ", and no thread has run for {quiet}")?;
                }
            }
            K::Running => match &quiet {
                Some(quiet) => write!(f, "none of its threads ran for {quiet}")?,
                None => f.write_str("its process is running")?,
            },
            K::NotReading | K::NotAnswering => {}
        }
        let separator = if matches!(kind, K::NotReading | K::NotAnswering) { "" } else { "; " };
        match input {
            StartInput::Unknown => {}
            StartInput::Unread(bytes) => {
                write!(f, "{separator}it has not read `initialize` ({bytes} bytes unread)")?;
            }
            StartInput::Read => write!(f, "{separator}it has read `initialize`")?,
        }
        match (kind, quiet) {
            (K::NotAnswering, quiet) => {
                f.write_str(", but does not answer")?;
                quiet.map_or(Ok(()), |quiet| write!(f, ", and no thread ran for {quiet}"))?;
            }
            (K::NotReading, Some(quiet)) => write!(f, ", and none of its threads ran for {quiet}")?,
            _ => {}
        }
        match waits_for.filter(|_| matches!(kind, K::NotReading | K::NotAnswering | K::Running)) {
            Some(what) => write!(f, "; it waits for {what}"),
            None => Ok(()),
        }
    }
}
