//! Stories of the plan.

mod properties;
mod restarts;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A daemon of 0.1.0 is ready.
const READY: Message = Message::Ready { can_hold: false };

/// A daemon is ready whose program can be the holder's.
const CAN_HOLD: Message = Message::Ready { can_hold: true };

/// A plan and its clock.
struct Story {
    plan: Plan,
    now: Instant,
}

impl Story {
    /// Nothing was started yet.
    fn new() -> Self {
        let now = crate::clock::now();
        Self { plan: Plan::new(now, "old".into()), now }
    }

    /// One daemon serves.
    fn serving() -> (Self, Id) {
        let mut story = Self::new();
        let id = story.starts(Event::Tick, "old", false).id;
        assert_eq!(story.sends(id, READY), [Action::First]);
        (story, id)
    }

    fn take(&mut self, event: Event) -> Vec<Action> {
        self.plan.handle(self.now, event)
    }

    fn sends(&mut self, id: Id, message: Message) -> Vec<Action> {
        self.take(Event::Message(id, message))
    }

    fn gone(&mut self, id: Id) -> Vec<Action> {
        self.take(gone(id))
    }

    fn after(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.take(Event::Tick)
    }

    /// Lets the time pass that the plan waits for.
    fn in_time(&mut self) -> (Duration, Vec<Action>) {
        let at = self.plan.deadline().expect("it waits for nothing");
        let passed = at - self.now;
        (passed, self.after(passed))
    }

    /// Expects this event to start a daemon, and nothing else.
    fn starts(&mut self, event: Event, exe: &str, standby: bool) -> Start {
        only_start(self.take(event), exe, standby)
    }

    fn asks(&mut self, id: Id, fallback: Option<&str>) -> Id {
        let message = Message::Replace { exe: "new".into(), fallback: fallback.map(Into::into) };
        self.starts(Event::Message(id, message), "new", true).id
    }

    /// A successor that was sent `Serve`.
    fn gone_to(fallback: Option<&str>) -> (Self, Id, Id) {
        let (mut story, old) = Self::serving();
        let new = story.asks(old, fallback);
        assert_eq!(story.sends(new, Message::Prepared), [Action::HandOver(old)]);
        assert_eq!(story.sends(old, Message::HandedOver), [Action::Serve(new)]);
        (story, old, new)
    }
}

fn gone(id: Id) -> Event {
    Event::Gone(id, End { how: "it exited with 1".into(), last_output: "help!".into() })
}

const HOW: &str = "it exited with 1:\nhelp!";

fn only_start(actions: Vec<Action>, exe: &str, standby: bool) -> Start {
    match <[Action; 1]>::try_from(actions) {
        Ok([Action::Start(start)]) => {
            assert_eq!((start.exe.to_str(), start.standby), (Some(exe), standby));
            start
        }
        other => panic!("no start: {other:?}"),
    }
}

fn not_replaced(id: Id, why: &str) -> Action {
    Action::NotReplaced(id, why.into())
}

#[test]
fn a_daemon_that_stops_pulsing_is_hung() {
    let (mut story, id) = Story::serving();
    assert_eq!(story.plan.deadline(), None);
    assert_eq!(story.sends(id, Message::Pulse), []);
    assert_eq!(story.after(HUNG.saturating_sub(SECOND)), []);
    assert_eq!(story.sends(id, Message::Pulse), []);
    assert_eq!(story.in_time(), (HUNG, vec![Action::Kill(id)]));
    let start = story.starts(gone(id), "old", false);
    assert_eq!(start.last_output.as_deref(), Some("it hung:\nhelp!"));
}

#[test]
fn a_daemon_that_ends_need_not_pulse() {
    let (mut story, id) = Story::serving();
    story.sends(id, Message::Pulse);
    assert_eq!(story.sends(id, Message::Ending), [Action::Release]);
    assert_eq!(story.after(HUNG + SECOND), []);
}

#[test]
fn a_serving_daemon_has_no_deadline() {
    let (story, id) = Story::serving();
    assert_eq!(story.plan.deadline(), None);
    assert!(story.plan.serves(id));
}

#[test]
fn a_first_start_is_tried_once() {
    let mut story = Story::new();
    let id = story.starts(Event::Tick, "old", false).id;
    assert_eq!(story.gone(id), [Action::End(Outcome::NotStarted(HOW.into()))]);

    let mut story = Story::new();
    let id = story.starts(Event::Tick, "old", false).id;
    assert_eq!(story.sends(id, Message::Failed(b"no".into())), [Action::Kill(id)]);
    assert_eq!(story.gone(id), [Action::End(Outcome::NotStarted(b"no".into()))]);
}

#[test]
fn a_daemon_that_reports_a_failed_start_is_started_again() {
    let (mut story, id) = Story::serving();
    story.now += SECOND;
    let mut id = story.starts(gone(id), "old", false).id;
    let why = "no:\nhelp!";
    for death in 1..6 {
        assert_eq!(story.sends(id, Message::Failed(b"no".into())), [Action::Kill(id)]);
        let reported = story.gone(id) == [Action::Report(why.into())];
        assert_eq!(reported, death >= REPORTED);
        let start = only_start(story.in_time().1, "old", false);
        assert_eq!(start.last_output.as_deref(), Some(why));
        id = start.id;
    }
}

#[test]
fn a_daemon_that_fails_after_a_long_time_is_restarted_at_once() {
    let (mut story, id) = Story::serving();
    story.now += SECOND;
    assert_eq!(story.sends(id, Message::Failed(b"no".into())), [Action::Kill(id)]);
    story.starts(gone(id), "old", false);
}

#[test]
fn a_daemon_without_a_socket_is_killed_and_started_again() {
    let (mut story, id) = Story::serving();
    story.now += SECOND;
    assert_eq!(story.take(Event::Closed(id)), []);
    assert_eq!(story.in_time(), (SECOND, vec![Action::Kill(id)]));
    assert_eq!(story.plan.deadline(), None, "only its end is waited for");
    story.starts(gone(id), "old", false);
}

#[test]
fn an_end_on_purpose_releases_first_and_is_final() {
    let (mut story, id) = Story::serving();
    assert_eq!(story.sends(id, Message::Ending), [Action::Release]);
    assert_eq!(story.take(Event::Closed(id)), []);
    let late = Message::Replace { exe: "new".into(), fallback: None };
    let refused = not_replaced(id, "the daemon is ending");
    assert_eq!(story.sends(id, late), [refused]);
    assert_eq!(story.in_time(), (130 * SECOND, vec![Action::Kill(id)]));
    assert_eq!(story.gone(id), [Action::End(Outcome::Done)]);
}

#[test]
fn a_signal_is_passed_on_and_a_second_one_kills() {
    let (mut story, id) = Story::serving();
    assert_eq!(story.take(Event::Signal), [Action::Term(id)]);
    assert_eq!(story.sends(id, Message::Ending), [Action::Release]);
    assert_eq!(story.take(Event::Signal), [Action::Kill(id)]);
    assert_eq!(story.take(Event::Signal), []);
    assert_eq!(story.gone(id), [Action::End(Outcome::Done)]);

    let (mut story, id) = Story::serving();
    assert_eq!(story.gone(id), []);
    assert_eq!(story.take(Event::Signal), [Action::End(Outcome::Done)], "no daemon to wait for");

    let mut story = Story::new();
    let id = story.starts(Event::Tick, "old", false).id;
    assert_eq!(story.take(Event::Signal), [Action::Term(id)]);
    let actions = story.gone(id);
    assert!(matches!(actions[..], [Action::End(Outcome::NotStarted(_))]), "{actions:?}");
}

#[test]
fn a_daemon_that_ignores_a_signal_is_killed() {
    let (mut story, id) = Story::serving();
    assert_eq!(story.take(Event::Signal), [Action::Term(id)]);
    assert_eq!(story.in_time(), (10 * SECOND, vec![Action::Kill(id)]));
    assert_eq!(story.gone(id), [Action::End(Outcome::Done)]);

    let (mut story, id) = Story::serving();
    assert_eq!(story.take(Event::Signal), [Action::Term(id)]);
    assert_eq!(story.after(9 * SECOND), []);
    assert_eq!(story.sends(id, Message::Ending), [Action::Release]);
    assert_eq!(
        story.in_time(),
        (130 * SECOND, vec![Action::Kill(id)]),
        "it may take its time then"
    );
}

#[test]
fn a_good_successor_serves_and_its_program_stays() {
    let (mut story, old, new) = Story::gone_to(Some("kept"));
    assert!(story.plan.serves(new) && !story.plan.serves(old));
    story.now += SECOND;
    assert_eq!(story.sends(new, CAN_HOLD), []);
    assert_eq!(story.in_time(), (30 * SECOND, vec![]), "the old one may still finish calls");
    assert_eq!(story.in_time(), (599 * SECOND, vec![Action::Kill(old)]));
    assert_eq!(story.gone(old), [reexec("new")]);
    assert_eq!(story.plan.deadline(), None);
    story.starts(gone(new), "new", false);
}

#[test]
fn an_update_is_rolled_back_until_its_daemon_has_been_ready_for_a_while() {
    let (mut story, old, new) = Story::gone_to(Some("kept"));
    story.sends(new, CAN_HOLD);
    story.gone(old);
    assert_eq!(story.after(TRIAL.saturating_sub(SECOND)), []);
    assert_eq!(story.gone(new), [Action::Restore { from: "kept".into(), to: "new".into() }]);
    let start = story.starts(Event::Restored(true), "new", false);
    assert_eq!(start.replacement_failed.as_deref(), Some(HOW));
}

#[test]
fn a_daemon_on_trial_that_is_asked_for_the_next_one_has_proven_itself() {
    let (mut story, old, new) = Story::gone_to(Some("kept"));
    story.sends(new, READY);
    story.gone(old);
    let next = story.asks(new, None);
    story.sends(next, Message::Prepared);
    assert_eq!(story.sends(new, Message::HandedOver), [Action::Serve(next)]);
}

#[test]
fn a_prepared_successor_serves_when_the_old_daemon_exits() {
    let (mut story, old) = Story::serving();
    let new = story.asks(old, None);
    story.sends(new, Message::Prepared);
    assert_eq!(story.in_time(), (3 * SECOND, vec![Action::Kill(old)]));
    assert_eq!(story.plan.deadline(), None, "a kill is no end yet");
    assert_eq!(story.gone(old), [Action::Serve(new)]);
}

#[test]
fn one_replacement_at_a_time() {
    let (mut story, old) = Story::serving();
    let new = story.asks(old, None);
    let again = || Message::Replace { exe: "newer".into(), fallback: None };
    let busy = |id| [not_replaced(id, "another reload or update is in progress")];
    assert_eq!(story.sends(old, again()), busy(old));
    story.sends(new, Message::Prepared);
    assert_eq!(story.sends(old, again()), busy(old));
    story.sends(old, Message::HandedOver);
    assert_eq!(story.sends(old, again()), busy(old));
    assert_eq!(story.sends(new, again()), busy(new));
    story.sends(new, READY);
    story.starts(Event::Message(new, again()), "newer", true);
}

/// A successor fails before `Serve`: the old daemon continues and gets the reason.
fn check_withdrawn(prepared: bool, spoil: impl FnOnce(&mut Story, Id) -> Vec<Action>, why: &str) {
    let (mut story, old) = Story::serving();
    let new = story.asks(old, Some("kept"));
    if prepared {
        story.sends(new, Message::Prepared);
    }
    let mut actions = spoil(&mut story, new);
    if actions == [Action::Kill(new)] {
        actions = story.gone(new);
    }
    let why = format!("{why}:\nhelp!");
    assert_eq!(actions, [Action::NotReplaced(old, why)]);
    assert!(story.plan.serves(old));
    assert_eq!(story.plan.deadline(), None, "the old one need not give way any more");
    story.now += SECOND;
    story.starts(gone(old), "old", false);
}

#[test]
fn a_successor_that_fails_before_serve_does_not_affect_the_old_daemon() {
    let slow = |story: &mut Story, _| story.after(10 * SECOND);
    check_withdrawn(false, slow, "it was not prepared within 10 s");
    for prepared in [false, true] {
        check_withdrawn(prepared, Story::gone, "it exited with 1");
        check_withdrawn(
            prepared,
            |story, new| story.sends(new, Message::Failed(b"no".into())),
            "no",
        );
        check_withdrawn(prepared, |story, new| story.sends(new, Message::Ending), "it ended");
        let hang_up = |story: &mut Story, new| {
            assert_eq!(story.take(Event::Closed(new)), []);
            story.after(SECOND)
        };
        check_withdrawn(prepared, hang_up, "it closed its socket");
    }
}

#[test]
fn a_daemon_that_hands_over_while_its_successor_dies_is_started_again() {
    let (mut story, old) = Story::serving();
    story.now += SECOND;
    let new = story.asks(old, None);
    story.sends(new, Message::Prepared);
    assert_eq!(
        story.gone(new).len(),
        1,
        "the old daemon gets a message, but has handed over already"
    );
    let start = story.starts(Event::Message(old, Message::HandedOver), "old", false);
    assert!(start.replacement_failed.is_some());
}

#[test]
fn a_daemon_that_dies_while_its_successor_prepares_is_started_again() {
    let (mut story, old) = Story::serving();
    story.now += SECOND;
    let new = story.asks(old, Some("kept"));
    let (from, to) = ("kept".into(), "new".into());
    let restore = Action::Restore { from, to };
    assert_eq!(story.gone(old), [Action::Kill(new), restore]);
    let start = story.starts(Event::Restored(true), "new", false);
    assert!(start.replacement_failed.is_some() && start.last_output.is_some());
}

/// A successor fails after `Serve`: it is killed and rolled back.
fn check_rolled_back(spoil: impl Fn(&mut Story, Id) -> Vec<Action>, why: &str) {
    for (fallback, restored, exe) in
        [(None, true, "old"), (Some("kept"), true, "new"), (Some("kept"), false, "kept")]
    {
        let (mut story, old, new) = Story::gone_to(fallback);
        assert_eq!(story.gone(old), []);
        let mut actions = spoil(&mut story, new);
        if actions == [Action::Kill(new)] {
            assert_eq!(story.sends(new, READY), [], "too late");
            actions = story.gone(new);
        }
        if let Some(fallback) = fallback {
            assert_eq!(actions, [Action::Restore { from: fallback.into(), to: "new".into() }]);
            actions = story.take(Event::Restored(restored));
        }
        let start = only_start(actions, exe, false);
        assert_eq!(start.replacement_failed, Some(format!("{why}:\nhelp!")));
        story.sends(start.id, READY);
        assert_eq!(story.plan.deadline(), None);
        story.now += SECOND;
        let next = story.starts(gone(start.id), exe, false);
        assert_eq!(next.replacement_failed, None, "reported once");
    }
}

#[test]
fn a_successor_that_fails_after_serve_is_rolled_back() {
    check_rolled_back(|story, _| story.after(10 * SECOND), "it was not ready within 10 s");
    check_rolled_back(Story::gone, "it exited with 1");
    check_rolled_back(|story, new| story.sends(new, Message::Failed(b"no".into())), "no");
    check_rolled_back(
        |story, new| story.sends(new, Message::HandedOver),
        "it handed over before it was ready",
    );
    let hang_up = |story: &mut Story, new| {
        assert_eq!(story.take(Event::Closed(new)), []);
        story.after(SECOND)
    };
    check_rolled_back(hang_up, "it closed its socket");
}

#[test]
fn an_end_kills_successor_and_leaving_daemons() {
    let (mut story, old, new) = Story::gone_to(None);
    story.sends(new, READY);
    let newer = story.asks(new, None);
    assert_eq!(story.sends(new, Message::Ending), [Action::Release, Action::Kill(newer)]);
    assert_eq!(story.gone(new), [Action::Kill(old)]);
    assert_eq!(story.gone(newer), []);
    assert_eq!(story.gone(old), [Action::End(Outcome::Done)]);
}

#[test]
fn an_adopted_daemon_is_treated_like_a_started_one() {
    let now = crate::clock::now();
    let (plan, id) = Plan::adopt(now, "old".into());
    let mut story = Story { plan, now: now + SECOND };
    assert_eq!(story.take(Event::Tick), []);
    assert_eq!(story.plan.deadline(), None);
    story.starts(gone(id), "old", false);
}

fn reexec(exe: &str) -> Action {
    Action::Reexec(exe.into())
}

#[test]
fn the_holder_executes_the_new_program_when_the_old_daemon_has_left() {
    let (mut story, old, new) = Story::gone_to(None);
    assert_eq!(story.sends(new, CAN_HOLD), [], "the old daemon is still there");
    assert_eq!(story.gone(old), [reexec("new")]);
    assert_eq!(story.after(SECOND), [], "once");

    let (mut story, old, new) = Story::gone_to(None);
    story.gone(old);
    assert_eq!(story.sends(new, CAN_HOLD), [reexec("new")]);
}

#[test]
fn the_holder_executes_no_program_that_cannot_be_a_holder() {
    let (mut story, old, new) = Story::gone_to(None);
    assert_eq!(story.sends(new, READY), []);
    assert_eq!(story.gone(old), []);
}

#[test]
fn a_program_that_was_replaced_meanwhile_is_not_executed() {
    let (mut story, old, new) = Story::gone_to(None);
    story.sends(new, CAN_HOLD);
    let next = story.asks(new, None);
    assert_eq!(story.gone(old), [], "a successor is under way");
    story.sends(next, Message::Prepared);
    story.sends(new, Message::HandedOver);
    assert_eq!(story.sends(next, READY), []);
    assert_eq!(story.gone(new), [], "0.1.0 is in its place now");
}

#[test]
fn a_daemon_that_is_started_again_may_be_another_program() {
    let mut story = Story::new();
    let id = story.starts(Event::Tick, "old", false).id;
    assert_eq!(story.sends(id, CAN_HOLD), [Action::First, reexec("old")]);
    story.after(STABLE);
    let next = story.starts(gone(id), "old", false).id;
    assert_eq!(story.sends(next, CAN_HOLD), [reexec("old")]);
}
