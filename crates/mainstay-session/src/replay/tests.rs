use proptest::prelude::*;

use super::*;

const HOLD: Duration = Duration::from_secs(45);

fn start() -> (Instant, Replay) {
    (tokio::time::Instant::now().into_std(), Replay::new(HOLD))
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_request_goes_to_the_run_that_is_up() {
    let (now, mut call) = start();
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Send);
    assert_eq!(call.held_since(), None);
}

#[test]
fn a_request_is_held_for_a_run_that_comes_in_time() {
    let (now, mut call) = start();
    assert_eq!(call.step(now, UpstreamState::Coming(None)), Step::Wait(now + HOLD));
    let due = now + seconds(40);
    assert_eq!(
        call.step(now + seconds(1), UpstreamState::Coming(Some(due))),
        Step::Wait(now + HOLD)
    );
    assert_eq!(call.step(now + seconds(41), UpstreamState::Up(2)), Step::Send);
}

#[test]
fn a_run_that_will_be_late_is_not_waited_for() {
    let (now, mut call) = start();
    let due = Some(now + HOLD + seconds(1));
    assert_eq!(call.step(now, UpstreamState::Coming(due)), Step::Answer(NoAnswer::Down));
    assert_eq!(call.step(now, UpstreamState::Down), Step::Answer(NoAnswer::Down));
    assert_eq!(call.step(now, UpstreamState::Removed), Step::Answer(NoAnswer::Removed));
}

#[test]
fn the_hold_has_an_end() {
    let (now, mut call) = start();
    call.step(now, UpstreamState::Coming(None));
    let end = call.step(now + HOLD, UpstreamState::Coming(None));
    assert_eq!(end, Step::Answer(NoAnswer::Late));
}

#[test]
fn without_a_hold_nothing_waits() {
    let now = start().0;
    let mut call = Replay::new(Duration::ZERO);
    assert_eq!(call.step(now, UpstreamState::Coming(None)), Step::Answer(NoAnswer::Down));
    let mut call = Replay::new(Duration::ZERO);
    call.lost(now, 1, Loss::Unsent);
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Answer(NoAnswer::Down));
}

#[test]
fn what_broke_off_is_not_sent_again_to_a_run_that_is_most_likely_ending() {
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Sent { safe: true });
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Wait(now + BROKEN_OFF_RETRY_DELAY));
    assert_eq!(call.step(now, UpstreamState::Up(2)), Step::Send);
    assert!(call.was_replayed());
}

#[test]
fn what_was_never_sent_goes_to_the_next_run() {
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Unsent);
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Wait(now + NOT_REACHED_RETRY_DELAY));
    assert_eq!(call.step(now, UpstreamState::Coming(None)), Step::Wait(now + HOLD));
    assert_eq!(call.step(now, UpstreamState::Up(2)), Step::Send);
    assert!(!call.was_replayed());
}

#[test]
fn a_run_that_cannot_be_reached_is_tried_until_the_hold_is_over() {
    let (begun, mut call) = start();
    let (mut now, mut tries) = (begun, 0);
    loop {
        match call.step(now, UpstreamState::Up(1)) {
            Step::Send => {
                tries += 1;
                call.lost(now, 1, Loss::Unsent);
            }
            Step::Wait(until) => now = until,
            Step::Rejoin | Step::Miss => panic!("nobody had it"),
            Step::Answer(no_answer) => break assert_eq!(no_answer, NoAnswer::Late),
        }
    }
    assert!(tries > 100 && now <= begun + HOLD + NOT_REACHED_RETRY_DELAY, "{tries}");
}

#[test]
fn a_safe_request_is_replayed_once() {
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Sent { safe: true });
    assert_eq!(call.step(now, UpstreamState::Up(2)), Step::Send);
    assert!(call.was_replayed());
    call.lost(now, 2, Loss::Sent { safe: true });
    let poison = Step::Answer(NoAnswer::DiedTwice { generation: 2 });
    assert_eq!(call.step(now, UpstreamState::Up(3)), poison);
}

#[test]
fn two_breaks_of_one_run_are_one_death() {
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Sent { safe: true });
    let later = now + BROKEN_OFF_RETRY_DELAY;
    assert_eq!(call.step(later, UpstreamState::Up(1)), Step::Send);
    call.lost(later, 1, Loss::Sent { safe: true });
    assert_eq!(call.step(later, UpstreamState::Up(1)), Step::Wait(later + RUN_END_TIMEOUT));
    // Its end is told late.
    assert_eq!(call.step(later + seconds(1), UpstreamState::Coming(None)), Step::Wait(now + HOLD));
    assert_eq!(call.step(later + seconds(2), UpstreamState::Up(2)), Step::Send);
    call.lost(later + seconds(2), 2, Loss::Sent { safe: true });
    let poison = Step::Answer(NoAnswer::DiedTwice { generation: 2 });
    assert_eq!(call.step(later + seconds(3), UpstreamState::Up(3)), poison);
}

#[test]
fn a_run_that_lives_and_breaks_off_twice_is_not_tried_again() {
    let (now, mut call) = start();
    for _ in 0..2 {
        call.lost(now, 1, Loss::Sent { safe: true });
    }
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Wait(now + RUN_END_TIMEOUT));
    let broken = Step::Answer(NoAnswer::BrokenOff { generation: 1 });
    assert_eq!(call.step(now + RUN_END_TIMEOUT, UpstreamState::Up(1)), broken);
}

#[test]
fn an_unsafe_request_waits_only_for_the_reason() {
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Sent { safe: false });
    assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Wait(now + END_CAUSE_TIMEOUT));
    let unknown = Step::Answer(NoAnswer::Unknown { generation: 1 });
    assert_eq!(call.step(now + END_CAUSE_TIMEOUT, UpstreamState::Up(1)), unknown);
    assert_eq!(call.step(now, UpstreamState::Coming(None)), unknown);
}

#[test]
fn a_forgetful_server_is_asked_again_but_not_for_ever() {
    let (now, mut call) = start();
    for _ in 0..MAX_SESSION_LOSSES {
        call.lost(now, 1, Loss::Forgotten);
        assert_eq!(call.step(now, UpstreamState::Up(1)), Step::Send);
    }
    call.lost(now, 1, Loss::Forgotten);
    assert_eq!(
        call.step(now + END_CAUSE_TIMEOUT, UpstreamState::Up(1)),
        Step::Answer(NoAnswer::SessionLostRepeatedly)
    );
}

#[test]
fn what_was_lost_with_a_connection_is_sent_again_to_the_same_run_if_that_is_safe() {
    let up = UpstreamState::Up(1);
    let (now, mut call) = start();
    for _ in 0..MAX_INTERRUPTIONS {
        call.lost(now, 1, Loss::Interrupted { safe: true });
        assert_eq!(call.step(now, up), Step::Send);
    }
    assert!(call.was_replayed());
    let unknown = Step::Answer(NoAnswer::Interrupted { generation: 1 });
    call.lost(now, 1, Loss::Interrupted { safe: true });
    assert_eq!(call.step(now + END_CAUSE_TIMEOUT, up), unknown);
    let (now, mut call) = start();
    call.lost(now, 1, Loss::Interrupted { safe: false });
    assert_eq!(call.step(now + END_CAUSE_TIMEOUT, up), unknown);
}

fn recovered(can_answer: bool, attempts: u32) -> (Instant, Replay) {
    let with = InFlightOn { generation: 3, can_answer, attempts };
    (tokio::time::Instant::now().into_std(), Replay::recovered(HOLD, with))
}

#[test]
fn the_answer_of_a_run_that_still_has_the_request_is_waited_for() {
    let (now, mut call) = recovered(true, 1);
    assert_eq!(call.step(now, UpstreamState::Coming(None)), Step::Wait(now + HOLD));
    assert_eq!(call.step(now + seconds(1), UpstreamState::Up(3)), Step::Rejoin);
    // It dies after all.
    call.lost(now + seconds(2), 3, Loss::Sent { safe: false });
    let unknown = Step::Answer(NoAnswer::Unknown { generation: 3 });
    assert_eq!(call.step(now + seconds(2), UpstreamState::Coming(None)), unknown);
}

#[test]
fn a_request_is_lost_with_the_run_that_had_it() {
    for upstream_state in [UpstreamState::Up(4), UpstreamState::Down, UpstreamState::Removed] {
        let (now, mut call) = recovered(true, 1);
        assert_eq!(call.step(now, upstream_state), Step::Miss);
        call.missed(now, upstream_state, false);
        let unknown = Step::Answer(NoAnswer::Unknown { generation: 3 });
        assert_eq!(call.step(now, upstream_state), unknown);
    }
    let (now, mut call) = recovered(true, 1);
    call.missed(now, UpstreamState::Up(4), true);
    assert_eq!(call.step(now, UpstreamState::Up(4)), Step::Send);
    assert!(call.was_replayed());
}

#[test]
fn a_run_that_cannot_answer_any_more_is_asked_again_if_that_is_safe() {
    let up = UpstreamState::Up(3);
    let (now, mut call) = recovered(false, 1);
    assert_eq!(call.step(now, up), Step::Miss);
    call.missed(now, up, true);
    assert_eq!(call.step(now, up), Step::Send);
    let (now, mut call) = recovered(false, 1);
    call.missed(now, up, false);
    assert_eq!(call.step(now, up), Step::Answer(NoAnswer::Severed { generation: 3 }));
    let (now, mut call) = recovered(false, 2);
    call.missed(now, up, true);
    assert_eq!(call.step(now, up), Step::Answer(NoAnswer::Severed { generation: 3 }));
}

#[test]
fn the_deaths_of_daemons_are_none_of_the_server() {
    let (now, mut call) = recovered(false, 1);
    call.missed(now, UpstreamState::Up(3), true);
    assert_eq!(call.step(now, UpstreamState::Up(3)), Step::Send);
    call.lost(now, 3, Loss::Sent { safe: true });
    assert_eq!(
        call.step(now, UpstreamState::Up(3)),
        Step::Wait(now + RUN_END_TIMEOUT),
        "it has stopped once"
    );
    assert_eq!(call.step(now, UpstreamState::Up(4)), Step::Send);
}

#[test]
fn a_run_that_never_comes_is_not_waited_for_longer_than_the_hold() {
    let (now, mut call) = recovered(true, 1);
    call.step(now, UpstreamState::Coming(None));
    assert_eq!(call.step(now + HOLD, UpstreamState::Coming(None)), Step::Miss);
    let with = InFlightOn { generation: 3, can_answer: true, attempts: 1 };
    let mut call = Replay::recovered(Duration::ZERO, with);
    assert_eq!(call.step(now, UpstreamState::Coming(None)), Step::Wait(now + RUN_BACK_TIMEOUT));
    assert_eq!(call.no_room(), NoAnswer::Unknown { generation: 3 });
}

fn upstream_state() -> impl Strategy<Value = UpstreamState> {
    prop_oneof![
        4 => (1..5_u64).prop_map(UpstreamState::Up),
        3 => Just(UpstreamState::Coming(None)),
        1 => Just(UpstreamState::Down),
        1 => Just(UpstreamState::Removed),
    ]
}

fn loss(safe: bool) -> impl Strategy<Value = Option<Loss>> {
    prop_oneof![
        2 => Just(Some(Loss::Unsent)),
        2 => Just(Some(Loss::Sent { safe })),
        1 => Just(Some(Loss::Interrupted { safe })),
        1 => Just(Some(Loss::Forgotten)),
        1 => Just(None),
    ]
}

proptest! {
    /// Whatever goes wrong: one answer, within bounded time, and no second execution unless safe.
    #[test]
    fn the_contract_holds(
        script in any::<bool>().prop_flat_map(|safe| {
            // Time goes on, or no hold would ever end.
                let turn = (upstream_state(), loss(safe), 10..60_000_u64);
            (Just(safe), prop::collection::vec(turn, 1..40))
        }),
        before in prop::option::of((1..5_u64, any::<bool>())),
    ) {
        let (safe, turns) = script;
        let (begun, fresh) = start();
        let (mut call, sent) = match before {
            Some((generation, can_answer)) => {
                let with = InFlightOn { generation, can_answer, attempts: 1 };
                (Replay::recovered(HOLD, with), 1)
            }
            None => (fresh, 0),
        };
        let (mut now, mut executions, mut answers) = (begun, sent, 0);
        for (upstream_state, loss, pause) in turns.into_iter().cycle().take(20_000) {
            match call.step(now, upstream_state) {
                Step::Send => {
                    let UpstreamState::Up(generation) = upstream_state else { panic!("sent to nobody") };
                    executions += u32::from(!matches!(loss, Some(Loss::Unsent | Loss::Forgotten)));
                    let Some(loss) = loss else {
                        answers += 1;
                        break;
                    };
                    call.lost(now, generation, loss);
                    // An attempt takes its time.
                    now += Duration::from_millis(10);
                }
                Step::Rejoin => {
                    // What it was sent before may have come to nothing.
                    executions -= u32::from(matches!(loss, Some(Loss::Unsent | Loss::Forgotten)));
                    let UpstreamState::Up(generation) = upstream_state else { panic!("nobody is there") };
                    let Some(loss) = loss else {
                        answers += 1;
                        break;
                    };
                    call.lost(now, generation, loss);
                    now += Duration::from_millis(10);
                }
                Step::Miss => call.missed(now, upstream_state, safe),
                Step::Wait(until) => {
                    prop_assert!(until > now, "a wait that is over");
                    now = until.min(now + Duration::from_millis(pause));
                }
                Step::Answer(_) => { answers += 1; break }
            }
        }
        prop_assert_eq!(answers, 1);
        // Two of them are at the same run, which may have ended before the second.
        let most = if safe { 3 + u32::from(MAX_INTERRUPTIONS) } else { 1 };
        prop_assert!(executions <= most, "{} executions", executions);
    }
}
