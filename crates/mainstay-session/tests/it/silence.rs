//! Runs that do not read: they are observed as the daemon does it, and killed only by proof.

use mainstay_core::LoggedEvent;
use mainstay_core::supervisor::{Connection, Event as SupervisorEvent};
use mainstay_core::watchdog::{Probe, Processes, ReadPosition};
use mainstay_session::{LinkKey, LinkObservation};

use crate::driver::Scope;
use crate::event::Event;
use crate::regressions::{CALL, call, open, play};
use crate::script::{CallSpec, End, Form, Kind, Manner, What};
use crate::world::World;

/// How long a run may hang, in ms.
pub(crate) const HANG_AFTER: u64 = 4000;

impl World {
    /// The run of a scope no longer reads for so many ms.
    pub(crate) fn begin_silence(&mut self, scope: &Scope, manner: Manner, ms: u64) {
        if let Some(run) = self.live_run(scope) {
            self.runs[run].does_not_read = true;
            self.runs[run].manner = manner;
            self.runs[run].silent_since = self.now;
            self.after(ms, Event::ReadAgain { run });
        }
    }

    /// Gathers evidence about a run, as a driver does.
    pub(crate) fn observe_run(&mut self, daemon: usize, scope: &Scope, connection: Connection) {
        if self.current != Some(daemon) {
            return;
        }
        let now = self.instant();
        let link = self.link_of(scope, connection);
        let overdue = self.driver(scope).map(|driver| driver.supervisor.overdue_after());
        let observed = link.and_then(|link| self.seen(daemon, link));
        let server = self.daemons[daemon].server.as_mut();
        let evidence = match (server, link, overdue) {
            (Some(server), Some(link), Some(overdue)) => {
                server.take_evidence(now, link, &observed.unwrap_or_default(), overdue)
            }
            _ => None,
        };
        self.settle();
        if self.script.kind == Kind::Http {
            // Connections may be renewed at any time.
            self.renew_run(scope, connection);
        }
        self.tell(scope, SupervisorEvent::Observed(connection, evidence.map(Box::new)));
    }

    /// What can be seen of a run from outside.
    fn seen(&self, daemon: usize, link: LinkKey) -> Option<LinkObservation> {
        let run = &self.runs[*self.daemons[daemon].links.get(&link)?];
        let is_silent = run.does_not_read;
        let processes = Processes {
            switches: match run.manner {
                Manner::Deadlocked | Manner::Suspended if is_silent => run.silent_since,
                Manner::Deadlocked | Manner::Suspended | Manner::Spinning => self.now,
            },
            is_active: is_silent && run.manner == Manner::Spinning,
            suspended: (is_silent && run.manner == Manner::Suspended).then_some(7),
            waits_for: None,
        };
        let unread = u64::try_from(run.kept.len()).unwrap_or(u64::MAX);
        let input = Some(ReadPosition { line: run.written, unread });
        let processes = Some(processes);
        Some(LinkObservation { input, requests: None, processes })
    }

    pub(crate) fn probe_run(&mut self, scope: &Scope, connection: Connection, probe: Probe) {
        let (now, link) = (self.instant(), self.link_of(scope, connection));
        if let (Some(link), Some(server)) = (link, self.server()) {
            server.probe(now, link, probe);
            self.settle();
        }
    }

    pub(crate) fn renew_run(&mut self, scope: &Scope, connection: Connection) {
        let (now, link) = (self.instant(), self.link_of(scope, connection));
        if let (Some(link), Some(server)) = (link, self.server()) {
            server.renew_connections(now, link);
            self.settle();
        }
    }

    pub(crate) fn hold_run(&mut self, scope: &Scope, connection: Connection, is_held: bool) {
        let (now, link) = (self.instant(), self.link_of(scope, connection));
        let (Some(link), Some(server)) = (link, self.server()) else { return };
        if is_held {
            server.hold_requests(link);
        } else {
            while server.send_held_requests(now, link) {}
        }
        self.settle();
    }

    /// A run is killed as hung only if it has read nothing for long, does nothing, and is not inside a call.
    pub(crate) fn check_hang(&mut self, scope: &Scope, event: &LoggedEvent) {
        let LoggedEvent::Hung { run, what } = event else { return };
        if !what.contains("read nothing") {
            return;
        }
        let index = self.run_of(scope, *run).expect("it was started");
        let run = &self.runs[index];
        assert!(run.does_not_read, "a run was killed that reads: {what}");
        assert_eq!(run.manner, Manner::Deadlocked, "{what}");
        // What it does before the first observation of a slow request is not seen.
        let observed = HANG_AFTER / 2;
        assert!(self.now >= run.silent_since + observed, "it was killed early: {what}");
        let is_awaited = |execution: &crate::model::Execution| {
            let call = &self.calls[execution.call];
            let is_running = execution.run == index && !execution.is_over;
            // A daemon need not know of a client that lost its response before it began.
            let is_there = self.responses[call.response].lost_at.is_none();
            is_running && !execution.is_cancelled && call.is_open() && is_there
        };
        let inside = self.executions.iter().find(|execution| is_awaited(execution));
        assert!(inside.is_none(), "it was killed inside a call: {inside:?}");
        self.hangs += 1;
    }
}

/// How many runs are killed if the shared run does not read for half a minute while a call is sent to it, and perhaps
/// after it has read another one.
fn hangs(manner: Manner, is_inside_a_call: bool) -> u32 {
    let slow = CallSpec { end: End::Silent, ..CALL };
    let first = if is_inside_a_call { slow } else { CALL };
    let steps = [
        (0, open(2, Form::Events, false)),
        (1000, call(first)),
        (1000, What::StopReading { manner, ms: 30_000 }),
        (5, call(CALL)),
        (5, call(CALL)),
        (31_000, call(CALL)),
    ];
    play(Kind::Shared, |script| script.hold = 45_000, &steps).hangs
}

#[test]
fn only_a_deadlock_outside_of_calls_is_killed() {
    assert_eq!(hangs(Manner::Deadlocked, false), 1);
    assert_eq!(hangs(Manner::Deadlocked, true), 0);
    for manner in [Manner::Spinning, Manner::Suspended] {
        assert_eq!([hangs(manner, false), hangs(manner, true)], [0, 0], "{manner:?}");
    }
}
