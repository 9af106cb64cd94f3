//! Every time limit of start, restart, reload, update and stop, in one table.
//!
//! Holder, daemon and commands wait for each other, so a limit of one must fit between limits of the others. The
//! assertions below say how, and a change that breaks one of them does not compile. The table is in this crate because
//! all of them depend on it. How often something is polled is said where it is polled.

use std::time::Duration;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

// Start

/// A command waits this long for the daemon that it has started; a database may have to be migrated first.
pub const START: Duration = s(30);
/// A holder waits this long for the lock of another holder, which may just have been killed.
pub const HOLDER_LOCK: Duration = s(3);
/// The daemon waits this long for the first listener to be bound, so that commands know the address.
pub const FIRST_LISTENER: Duration = ms(200);
/// `connect` waits this long before it starts a daemon again that could not be started.
pub const START_RETRY: Duration = s(10);
/// A shim reports within this time whether it has started its server.
pub const SHIM_START: Duration = s(10);
/// A shim answers a daemon within this time.
pub const SHIM_ANSWER: Duration = s(5);
/// A starting daemon waits this long for the numbers of earlier daemons that shims know.
pub const SHIM_NUMBERS: Duration = s(2);
/// A shim restores its run directory within this time, or ends its run. Daemons wait for it as long.
pub const SHIM_RESTORE: Duration = s(3);

// Restart after a death

/// A daemon that served for less time is unstable.
pub const STABLE: Duration = s(1);
/// Pause after an unstable daemon; it doubles with each further one in a row.
pub const FIRST_PAUSE: Duration = ms(100);
/// The longest pause.
pub const MAX_PAUSE: Duration = s(60);
/// The longest pause while a client waits.
pub const MAX_PAUSE_OF_CLIENT: Duration = s(5);
/// A daemon that served for less time is short-lived.
pub const LONG_LIVED: Duration = s(30);
/// Pause after many short-lived daemons in a row.
pub const SHORT_LIVED_PAUSE: Duration = ms(200);
/// A daemon sends a pulse to the holder this often.
pub const PULSE: Duration = s(5);
/// A daemon that was silent for this long is hung, and is killed.
pub const HUNG: Duration = s(20);
/// A daemon that has closed its socket is killed after this time.
pub const WITHOUT_SOCKET: Duration = s(1);
/// A holder that has closed its socket is dead if it exits within this time; otherwise it has disconnected the daemon.
pub const HOLDER_EXIT: Duration = s(3);
/// A killed process exits within this time.
pub const KILL: Duration = s(5);
/// A new holder takes over from a daemon within this time.
pub const TAKE_OVER: Duration = s(10);
/// The daemon waits this long before it tries again to start a holder.
pub const HOLDER_RETRY: Duration = s(5);
/// A daemon checks this often whether a later one has registered.
pub const SUPERSEDED_CHECK: Duration = s(5);
/// Commands and `connect` expect a daemon that was killed to be back within this time.
pub const RESTART_GRACE: Duration = s(8);
/// The same if the last daemons have failed, and a command only checks whether one runs.
pub const FAILING_GRACE: Duration = s(1);
/// `connect` keeps a message this long while no daemon runs.
pub const CONNECT_HOLD: Duration = s(45);

// Reload and update, in the order of their steps

/// `update`: the new program prints its version within this time.
pub const PRINT_VERSION: Duration = s(5);
/// `update`: the new program opens a copy of the state within this time.
pub const PREFLIGHT: Duration = s(10);
/// A reload waits this long for calls that the next daemon could not continue.
pub const QUIET: Duration = s(10);
/// The new daemon is prepared within this time.
pub const PREPARE: Duration = s(10);
/// The old daemon hands over within this time, or is killed.
pub const HAND_OVER: Duration = s(3);
/// The old daemon waits this long for calls that began since and that the next daemon could not continue.
pub const STILL_QUIET: Duration = s(1);
/// The command that asked for the reload reads its answer within this time.
pub const ANSWER: Duration = ms(100);
/// A request without an answer is in the journal after this time, so that the next daemon can continue it.
pub const JOURNAL_AFTER: Duration = ms(150);
/// Requests are answered or in the journal within this time, also on busy machines.
pub const SETTLE: Duration = ms(600);
/// Connections are idle, or in the middle of a response that can be passed on, within this time.
pub const PASS_CONNECTIONS: Duration = ms(900);
/// Messages of 0.1.0's `connect` that are being sent have arrived within this time.
pub const LAST_MESSAGES: Duration = ms(200);
/// Connections of 0.1.0's `connect` are closed properly within this time.
pub const FAREWELL: Duration = ms(100);
/// The old daemon reports this long after it was asked to hand over, even if the disk does not respond.
pub const REPORT: Duration = ms(2_500);
/// The new daemon serves this long after the report, or is rolled back.
pub const SERVE: Duration = s(10);
/// An updated daemon that dies this soon after it has begun to serve is rolled back.
pub const TRIAL: Duration = s(30);
/// A daemon that loses its holder during a hand-over tries this long to start another one.
pub const LAST_HOLDER: Duration = s(15);
/// `reload` and `update` wait this long for the new daemon, or for the old program after a roll-back.
pub const SUCCESSION: Duration = s(30);
/// A holder that ends writes its report within this time.
pub const FAILURE_REPORT: Duration = s(2);
/// The new daemon waits this long for the list of calls that the old one finishes.
pub const RELAY_CLAIM: Duration = s(5);
/// The old daemon stays this long to finish calls for the new one.
pub const RELAY: Duration = s(600);
/// Meanwhile it tries this long to reach a daemon, which may have to start first.
pub const RELAY_CONNECT: Duration = s(30);
/// The new daemon reads the last results within this time.
pub const RELAY_END: Duration = s(5);
/// A daemon that has handed over exits within this time, or is killed.
pub const LEAVE: Duration = s(630);

// Stop of a server

/// A driver handles a message within this time.
pub const ACKNOWLEDGE: Duration = s(1);
/// The longest stop timeout that a server may have.
pub const MAX_STOP_TIMEOUT: Duration = s(90);
/// Killed processes end within this time. Only processes that are stuck in the kernel need longer.
pub const KILL_SERVER: Duration = s(10);
/// The cgroup of a run is empty within this time after its last known process has ended.
pub const EMPTY_CGROUP: Duration = s(2);
/// A server stops this long after its stop timeout at the latest; otherwise it is reported as late.
pub const STOP_SERVER: Duration = s(13);
/// A server that is removed waits this long for the removal of its entries in clients' files.
pub const REMOVE_ENTRIES: Duration = s(8);
/// A command that changes entries waits this long for what became of them. It reports a removal that was given up.
pub const REPORT_ENTRIES: Duration = s(8);
/// A shim whose run is over waits this long for a daemon that reads how it ended.
pub const LINGER: Duration = s(60);

// Stop

/// A daemon that got a signal begins to end within this time, or is killed.
pub const REACT_TO_SIGNAL: Duration = s(10);
/// Requests are answered within this time when servers are stopped with the daemon.
pub const FINISH_REQUESTS: Duration = s(5);
/// Each of the last things (commands, sessions, events, the log) is written within this time.
pub const FLUSH: Duration = s(2);
/// The journal is written within this time, which is a part of the one for all stores.
pub const FLUSH_JOURNAL: Duration = s(1);
/// The last lines of the log are written within this time.
pub const FLUSH_LOG: Duration = ms(500);
/// `daemon stop` waits this long for the end of the daemon and its servers.
pub const STOP_COMMAND: Duration = s(120);
/// A daemon that ends has stopped its servers and exited within this time, or is killed.
pub const END: Duration = s(130);

const fn is_below(parts: &[Duration], whole: Duration) -> bool {
    let (mut sum, mut at) = (Duration::ZERO, 0);
    while at < parts.len() {
        sum = sum.saturating_add(parts[at]);
        at += 1;
    }
    sum.as_nanos() < whole.as_nanos()
}

// A daemon may miss two pulses.
const _: () = assert!(is_below(&[PULSE, PULSE, PULSE], HUNG));
// A holder that is alive has killed the daemon that it has disconnected before that daemon takes it for alive.
const _: () = assert!(is_below(&[WITHOUT_SOCKET], HOLDER_EXIT));
// A new holder gets the lock of a killed one, and has the daemon, before the daemon gives up.
const _: () = assert!(is_below(&[HOLDER_LOCK], TAKE_OVER) && is_below(&[TAKE_OVER], LAST_HOLDER));
// A daemon that has to wait for shims is ready in time, for the holder and for commands.
const _: () = assert!(is_below(&[SHIM_NUMBERS, SHIM_RESTORE, SHIM_ANSWER, FIRST_LISTENER], START));
const _: () = assert!(is_below(&[SHIM_NUMBERS, SHIM_RESTORE, FIRST_LISTENER], RESTART_GRACE));
const _: () =
    assert!(is_below(&[FAILING_GRACE], RESTART_GRACE) && is_below(&[RESTART_GRACE], SERVE));
// Commands and `connect` outlast the longest pause while they wait, and `connect` a start of the daemon.
const _: () = assert!(is_below(&[MAX_PAUSE_OF_CLIENT], RESTART_GRACE));
const _: () = assert!(is_below(&[START_RETRY, START], CONNECT_HOLD));
const _: () = assert!(is_below(&[JOURNAL_AFTER], SETTLE));
// The steps of a hand-over end in this order: settle, pass connections, report; then kill, roll back. Every step
// between the last connection and the report ends at REPORT.
const _: () = assert!(is_below(&[SETTLE], PASS_CONNECTIONS) && is_below(&[LAST_MESSAGES], SETTLE));
const _: () = assert!(is_below(&[STILL_QUIET, ANSWER, PASS_CONNECTIONS, FAREWELL], REPORT));
const _: () = assert!(is_below(&[REPORT], HAND_OVER) && is_below(&[HAND_OVER], SERVE));
// The command sees a roll-back: the hand-over, the failure of the new daemon, the start of the old program.
const _: () = assert!(is_below(&[HAND_OVER, SERVE, SERVE], SUCCESSION));
// A new program that crashes or hangs does so while the way back is open.
const _: () = assert!(is_below(&[STABLE], TRIAL) && is_below(&[HUNG], TRIAL));
// Calls are relayed even if the new daemon is slow to serve, and to their end.
const _: () = assert!(is_below(&[HAND_OVER, SERVE], RELAY_CONNECT) && is_below(&[RELAY], LEAVE));
// A shim has given up on processes before its server is late, and so has a removal on clients' files.
const _: () = assert!(is_below(&[KILL_SERVER, EMPTY_CGROUP], STOP_SERVER));
const _: () = assert!(is_below(&[REMOVE_ENTRIES, ACKNOWLEDGE], STOP_SERVER));
const _: () = assert!(REMOVE_ENTRIES.as_millis() <= REPORT_ENTRIES.as_millis());
// The end of a run is kept until the next daemon is ready.
const _: () = assert!(is_below(&[MAX_PAUSE_OF_CLIENT, SERVE], LINGER));
// The journal is part of what is written within FLUSH.
const _: () = assert!(is_below(&[FLUSH_JOURNAL], FLUSH));
// The steps of a stop, in their order: answer requests, refuse changes, stop servers, finish commands, write session
// files, write stores, end threads, write the log. `daemon stop` reports that it is slow before the daemon is killed.
const STOP_STEPS: [Duration; 9] =
    [FINISH_REQUESTS, FLUSH, MAX_STOP_TIMEOUT, STOP_SERVER, FLUSH, FLUSH, FLUSH, FLUSH, FLUSH_LOG];
const _: () = assert!(is_below(&STOP_STEPS, STOP_COMMAND) && is_below(&[STOP_COMMAND], END));
// Restarts slow down, but a client that waits is served sooner.
const _: () = assert!(is_below(&[FIRST_PAUSE], MAX_PAUSE_OF_CLIENT));
const _: () = assert!(is_below(&[MAX_PAUSE_OF_CLIENT], MAX_PAUSE));
