//! Scripts that have failed.

use crate::script::{
    Behaviour, CallSpec, End, Engine, Form, Kind, Manner, Method, Script, Step, What,
};
use crate::world::World;

pub(crate) const CALL: CallSpec = CallSpec {
    method: Method::Write,
    takes: 400,
    progress: 0,
    asks: false,
    logs: false,
    end: End::Answer,
};

fn check(kind: Kind, change: impl FnOnce(&mut Script), steps: &[(u64, What)]) {
    drop(play(kind, change, steps));
}

/// Runs a script, and returns the world after it.
pub(crate) fn play(kind: Kind, change: impl FnOnce(&mut Script), steps: &[(u64, What)]) -> World {
    let steps = steps.iter().map(|(after, what)| Step { after: *after, what: *what }).collect();
    let mut script = Script {
        kind,
        hold: 5000,
        has_pages: false,
        engine: Engine::Process,
        restart_delay: 10,
        restart_max: 10,
        behaviour: Behaviour::default(),
        confirmation: 0,
        disk: 0,
        is_removed: false,
        expires: false,
        call_timeout: 0,
        steps,
    };
    change(&mut script);
    World::new(script).run()
}

pub(crate) fn open(version: u8, form: Form, listens: bool) -> What {
    What::Open { version, form, listens }
}

pub(crate) fn call(call: CallSpec) -> What {
    What::Call { client: 0, call }
}

#[test]
fn a_request_whose_upstream_session_is_being_opened_is_answered_when_the_server_is_removed() {
    check(
        Kind::Http,
        |script| script.is_removed = true,
        &[
            (62, open(2, Form::Json, false)),
            (200, call(CallSpec { end: End::Exit(1), ..CALL })),
            (10_000, call(CALL)),
        ],
    );
}

#[test]
fn a_relayed_request_is_answered_when_the_server_is_removed() {
    check(
        Kind::Http,
        |script| script.is_removed = true,
        &[
            (3, open(1, Form::Events, true)),
            (5000, call(CallSpec { takes: 2000, progress: 3, ..CALL })),
            (3, What::Reload),
            (82, What::Resume { client: 0 }),
        ],
    );
}

#[test]
fn a_request_that_was_repeated_before_it_was_journaled_is_not_repeated_again() {
    let silent = CallSpec { method: Method::Replayed, end: End::Silent, ..CALL };
    check(
        Kind::Shared,
        |script| script.disk = 50,
        &[
            (0, open(3, Form::Events, false)),
            (86, call(silent)),
            (2, What::Die { exact: false, delay: 18 }),
            (2, What::Reload),
            (166, What::Die { exact: false, delay: 21 }),
        ],
    );
}

#[test]
fn a_message_of_the_shared_run_reaches_no_session_with_a_run_of_its_own() {
    let asking = CallSpec { method: Method::Read, takes: 2000, asks: true, ..CALL };
    check(
        Kind::Isolated,
        |_| {},
        &[
            (239, open(3, Form::Local, false)),
            (3000, open(3, Form::Connect, false)),
            (3, call(asking)),
            (56, What::Leave { client: 0, lost: 1 }),
        ],
    );
}

#[test]
fn an_unusable_answer_is_found_in_the_earlier_output_of_a_run() {
    let invalid = CallSpec { takes: 2000, progress: 3, end: End::Invalid, ..CALL };
    check(
        Kind::Shared,
        |script| script.engine = Engine::Container,
        &[
            (1188, open(0, Form::Events, true)),
            (177, call(invalid)),
            (91, What::Kill { down: 8000, is_lazy: false }),
        ],
    );
}

#[test]
fn a_recovered_request_is_forgotten_with_its_session() {
    check(
        Kind::Shared,
        |_| {},
        &[
            (102, open(2, Form::Events, true)),
            (343, What::Die { exact: true, delay: 78 }),
            (8, call(CALL)),
            (305, What::Reload),
            (3, What::Close { client: 0 }),
        ],
    );
}

#[test]
fn a_queued_batch_keeps_its_other_requests_when_one_is_cancelled() {
    check(
        Kind::Shared,
        |_| {},
        &[
            (0, open(1, Form::Events, false)),
            (1000, What::StopReading { manner: Manner::Spinning, ms: 9000 }),
            (0, call(CALL)),
            (0, call(CALL)),
            (0, call(CALL)),
            (5, What::Batch { client: 0, calls: [CALL, CALL] }),
            (5, What::Cancel { client: 0, which: 3, is_timeout: false }),
        ],
    );
}

#[test]
fn a_request_that_the_client_was_asked_about_is_not_repeated() {
    let asking = CallSpec { method: Method::Level, progress: 3, asks: true, ..CALL };
    let exiting = CallSpec { method: Method::Read, takes: 149, end: End::Exit(2), ..CALL };
    check(
        Kind::Shared,
        |_| {},
        &[(1453, open(0, Form::Events, false)), (1322, call(asking)), (130, call(exiting))],
    );
}

#[test]
fn a_recorded_session_whose_initialize_is_repeated_exists_once() {
    check(
        Kind::Http,
        |script| (script.has_pages, script.engine, script.disk) = (true, Engine::Remote, 50),
        &[(1, open(0, Form::Events, true)), (3, What::Stop { ms: 100 }), (111, What::Reload)],
    );
    check(
        Kind::Http,
        |script| (script.has_pages, script.engine, script.disk) = (true, Engine::Remote, 50),
        &[(1, open(0, Form::Events, true)), (3, What::Stop { ms: 100 }), (3, What::Reload)],
    );
}

#[test]
fn attempts_before_the_journal_count_although_the_disk_is_stalled() {
    let asking = CallSpec { method: Method::Prompt, takes: 6000, asks: true, ..CALL };
    let exiting = CallSpec { method: Method::Read, takes: 150, end: End::Exit(1), ..CALL };
    check(
        Kind::Isolated,
        |script| script.hold = 300,
        &[
            (155, open(3, Form::Events, true)),
            (31_000, What::Stall { ms: 400 }),
            (57, call(asking)),
            (8, What::DieOwn { client: 0, is_removed: false }),
            (1577, What::Reload),
            (1, call(exiting)),
        ],
    );
}

#[test]
fn a_request_that_was_given_up_at_its_run_is_answered_after_a_reload() {
    let silent =
        CallSpec { method: Method::Read, takes: 149, asks: true, end: End::Silent, ..CALL };
    check(
        Kind::Shared,
        |script| script.hold = 45_000,
        &[
            (1, open(1, Form::Events, false)),
            (10_499, call(silent)),
            (25, What::Interrupt { loses_lines: false }),
            (10_000, What::Reload),
        ],
    );
}

#[test]
fn a_request_of_the_server_is_not_attributed_while_requests_may_be_unknown() {
    let long = CallSpec { method: Method::Replayed, takes: 2000, progress: 3, ..CALL };
    let asking = CallSpec { method: Method::Read, takes: 149, asks: true, ..CALL };
    check(
        Kind::Shared,
        |script| script.hold = 300,
        &[
            (105, open(0, Form::Connect, true)),
            (49, open(2, Form::Events, true)),
            (3, What::Call { client: 1, call: long }),
            (3, What::Call { client: 0, call: asking }),
            (73, What::Kill { down: 20, is_lazy: false }),
        ],
    );
}

#[test]
fn a_line_that_was_not_written_is_not_taken_for_a_later_one() {
    let exiting = CallSpec { method: Method::Read, takes: 149, end: End::Exit(2), ..CALL };
    check(
        Kind::Shared,
        |script| (script.disk, script.expires) = (50, true),
        &[
            (94, open(3, Form::Events, false)),
            (1659, call(exiting)),
            (167, What::Reload),
            (19, What::Kill { down: 8000, is_lazy: false }),
        ],
    );
}

#[test]
fn a_streamed_answer_is_not_given_up_when_the_engine_does_not_respond() {
    let long = CallSpec { takes: 2000, progress: 3, ..CALL };
    check(
        Kind::Http,
        |script| script.engine = Engine::Container,
        &[
            (181, open(3, Form::Events, true)),
            (600, call(long)),
            (192, What::EngineAway { ms: 3000, loses_lines: false }),
        ],
    );
}

#[test]
fn a_request_that_waits_for_the_run_of_its_session_is_answered_when_the_server_is_removed() {
    check(
        Kind::Isolated,
        |script| (script.is_removed, script.restart_delay) = (true, 3000),
        &[
            (83, What::Die { exact: true, delay: 33 }),
            (189, What::Die { exact: true, delay: 69 }),
            (150, open(3, Form::Json, true)),
            (3, call(CALL)),
        ],
    );
}

#[test]
fn a_recovered_request_is_forgotten_although_no_run_is_attached() {
    let behaviour = Behaviour { start: 3000, gone: 500, ..Behaviour::default() };
    let long = CallSpec { method: Method::Subscribe, takes: 6000, asks: true, ..CALL };
    check(
        Kind::Isolated,
        |script| (script.engine, script.confirmation, script.disk) = (Engine::Container, 500, 5),
        &[
            (184, open(1, Form::Events, true)),
            (25, call(long)),
            (5000, What::Behave(behaviour)),
            (2, What::DieOwn { client: 0, is_removed: false }),
            (0, What::Reload),
            (1092, What::Close { client: 0 }),
        ],
    );
}
