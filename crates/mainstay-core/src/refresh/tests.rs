//! The rules as stories, and as properties of random lives.

use proptest::prelude::*;

use super::*;

const HOLD: Duration = Duration::from_secs(45);

#[expect(clippy::disallowed_methods, reason = "time has to begin somewhere")]
fn any_moment() -> Instant {
    Instant::now()
}

/// A server, its entries and a clock.
struct World {
    now: Instant,
    refresh: Refresh,
    done: Vec<(Duration, Step)>,
    begun: Instant,
}

impl World {
    fn new(mode: RefreshMode) -> Self {
        let now = any_moment();
        let refresh = Refresh::new(now, mode, HOLD, RefreshHistory::default());
        Self { now, refresh, done: Vec::new(), begun: now }
    }

    fn see(&mut self, serving: Serving, run: u64) -> &mut Self {
        self.refresh.observe(self.now, serving, run);
        self.act();
        self
    }

    /// Lets time pass, and does what falls due when it does.
    fn pass(&mut self, seconds: u64) -> &mut Self {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(due) = self.refresh.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let before = self.done.len();
            self.act();
            if self.done.len() == before {
                break;
            }
        }
        self.now = end;
        self.act();
        self
    }

    fn act(&mut self) {
        while let Some(step) = self.refresh.due(self.now) {
            self.refresh.done(self.now, step);
            self.done.push((self.now - self.begun, step));
        }
    }

    /// What was done, each with the second in which it was.
    fn story(&self) -> String {
        let line = |(at, step): &(Duration, Step)| match step {
            Step::Remove(why) => format!("{}: out, {why}", at.as_secs()),
            Step::Add => format!("{}: in", at.as_secs()),
        };
        self.done.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

use Serving::{Down, Failed, Off, Ready};

#[test]
fn auto_leaves_an_entry_while_sessions_can_be_kept() {
    let mut world = World::new(RefreshMode::Auto);
    world.see(Down, 0).see(Down, 1).pass(1).see(Ready, 1).pass(3600);
    for run in 2..20 {
        world.see(Down, run).pass(44).see(Ready, run).pass(1);
    }
    assert_eq!(world.story(), "");
}

#[test]
fn auto_refreshes_when_an_outage_outlives_the_hold() {
    let mut world = World::new(RefreshMode::Auto);
    world.see(Ready, 1).pass(10).see(Down, 2).pass(50).see(Ready, 3).pass(10);
    assert_eq!(world.story(), "55: out, the server has been down for longer than 45 s; 60: in");
}

#[test]
fn auto_refreshes_when_a_server_is_given_up_and_comes_back() {
    let mut world = World::new(RefreshMode::Auto);
    world.see(Ready, 1).pass(10).see(Down, 2).pass(5).see(Failed, 2).pass(600);
    assert_eq!(world.story(), "15: out, the server has failed");
    world.see(Down, 3).pass(1).see(Ready, 3);
    assert_eq!(world.story(), "15: out, the server has failed; 616: in");
}

#[test]
fn always_refreshes_around_each_restart() {
    let mut world = World::new(RefreshMode::Always);
    world.see(Down, 0).see(Down, 1).pass(1).see(Ready, 1).pass(9);
    assert_eq!(world.story(), "");
    world.see(Down, 1).pass(5).see(Down, 2).pass(1).see(Ready, 2).pass(100);
    assert_eq!(world.story(), "10: out, the server is restarted; 16: in");
    // The second restart is quicker than any look at it.
    world.see(Ready, 3).pass(1);
    assert_eq!(world.done.last().unwrap().1, Step::Remove(RemovalReason::Restart));
    world.pass(1);
    assert_eq!(world.done.last().unwrap(), &(Duration::from_secs(118), Step::Add));
}

#[test]
fn the_first_run_of_a_server_with_a_used_name_is_no_restart() {
    let mut world = World::new(RefreshMode::Always);
    world.refresh =
        Refresh::new(world.now, RefreshMode::Always, HOLD, RefreshHistory { out: None, run: 3 });
    world.see(Down, 3).see(Down, 4).pass(1).see(Ready, 4).pass(1);
    assert_eq!(world.story(), "");
    world.see(Ready, 5);
    assert_eq!(world.story(), "2: out, the server is restarted");
}

#[test]
fn always_refreshes_a_server_that_dies_before_it_is_ready() {
    let mut world = World::new(RefreshMode::Always);
    world.see(Down, 1).pass(1).see(Down, 2).pass(1).see(Ready, 2).pass(2);
    assert_eq!(world.story(), "1: out, the server is restarted; 3: in");
}

#[test]
fn a_second_death_inside_the_minute_leaves_the_entry_in_place() {
    let mut world = World::new(RefreshMode::Always);
    world.see(Ready, 1).see(Down, 1).see(Ready, 2).pass(3);
    let once = "0: out, the server is restarted; 2: in";
    assert_eq!(world.story(), once);
    world.see(Down, 2).pass(6).see(Down, 3).pass(1).see(Ready, 3).pass(300);
    assert_eq!(world.story(), once);
    world.see(Down, 3).pass(1).see(Ready, 4).pass(1);
    assert_eq!(world.story(), format!("{once}; 310: out, the server is restarted; 312: in"));
}

#[test]
fn an_outage_that_outlives_the_minute_and_the_hold_is_a_reason() {
    let mut world = World::new(RefreshMode::Auto);
    world.see(Ready, 1).see(Down, 1).pass(50).see(Ready, 2).pass(3);
    let once = "45: out, the server has been down for longer than 45 s; 50: in";
    assert_eq!(world.story(), once);
    world.see(Down, 2).pass(56);
    assert_eq!(world.story(), once);
    world.pass(1);
    let again = "110: out, the server has been down for longer than 45 s";
    assert_eq!(world.story(), format!("{once}; {again}"));
}

#[test]
fn a_server_that_is_given_up_is_taken_out_of_every_client_at_once() {
    let mut world = World::new(RefreshMode::Always);
    world.see(Ready, 1).see(Down, 1);
    assert!(!world.refresh.is_in_for(true) && world.refresh.is_in_for(false));
    world.see(Failed, 1);
    assert!(!world.refresh.is_in_for(true) && !world.refresh.is_in_for(false));
    world.see(Ready, 2).pass(2);
    assert!(world.refresh.is_in());
    // Not even the limit keeps the entry of a server in place that does not come back.
    world.see(Failed, 2).pass(1);
    assert_eq!(
        world.story(),
        "0: out, the server is restarted; 0: out, the server has failed; 2: in; 2: out, the server has failed"
    );
}

#[test]
fn never_means_never_but_what_is_out_comes_back() {
    let mut world = World::new(RefreshMode::Never);
    world.see(Ready, 1).see(Down, 1).pass(100).see(Ready, 2).see(Failed, 2).pass(100);
    assert_eq!(world.story(), "");
    let mut world = World::new(RefreshMode::Auto);
    world.see(Ready, 1).see(Failed, 1).pass(100);
    world.refresh.set(RefreshMode::Never, HOLD);
    world.pass(1);
    assert_eq!(world.story(), "0: out, the server has failed; 100: in");
}

#[test]
fn a_server_that_its_user_turned_off_keeps_its_entries_as_they_are() {
    for mode in RefreshMode::ALL {
        let mut world = World::new(mode);
        world.see(Ready, 1).see(Off, 1).pass(1000);
        assert_eq!(world.story(), "", "{mode}");
    }
    let mut world = World::new(RefreshMode::Auto);
    world.see(Failed, 1).see(Off, 1).pass(1000);
    assert_eq!(world.story(), "0: out, the server has failed");
}

#[test]
fn lost_sessions_are_a_reason_once_the_server_is_ready() {
    let mut world = World::new(RefreshMode::Auto);
    world.refresh.lose_sessions();
    world.see(Down, 1).pass(1);
    assert_eq!(world.story(), "");
    world.see(Ready, 1).pass(10);
    let expected = "1: out, sessions were lost, so clients have to reconnect; 3: in";
    assert_eq!(world.story(), expected);
}

#[test]
fn what_an_earlier_daemon_took_out_comes_back_when_the_server_is_ready() {
    let now = any_moment();
    let mut refresh = Refresh::new(
        now,
        RefreshMode::Auto,
        HOLD,
        RefreshHistory { out: Some(Scope::All), run: 0 },
    );
    refresh.observe(now, Down, 1);
    assert_eq!(refresh.deadline(), None);
    refresh.observe(now, Ready, 1);
    assert_eq!((refresh.due(now), refresh.deadline()), (None, Some(now + GAP)));
    assert_eq!(refresh.due(now + GAP), Some(Step::Add));
}

fn any_serving() -> impl Strategy<Value = Serving> {
    prop_oneof![4 => Just(Ready), 4 => Just(Down), 1 => Just(Failed), 1 => Just(Off)]
}

proptest! {
    #[test]
    fn no_life_breaks_the_rules(
        mode in prop::sample::select(RefreshMode::ALL.to_vec()),
        life in prop::collection::vec((any_serving(), 0..3_u64, 0..100_u64), 1..60),
    ) {
        let mut world = World::new(mode);
        let mut run = 0;
        for (serving, restarts, seconds) in life {
            run += restarts;
            world.see(serving, run).pass(seconds);
        }
        let (mut removed, mut added): (Option<(Duration, RemovalReason)>, Option<Duration>) = (None, None);
        for (at, step) in &world.done {
            match step {
                Step::Remove(why) => {
                    let wider = removed.is_none_or(|(_, before)| before != RemovalReason::Failed && *why == RemovalReason::Failed);
                    prop_assert!(wider, "out twice: {}", world.story());
                    let quiet = added.is_none_or(|added| at.saturating_sub(added) >= CYCLE);
                    prop_assert!(quiet || *why == RemovalReason::Failed, "{}", world.story());
                    removed = Some((*at, *why));
                }
                Step::Add => {
                    let gap = removed.take().map(|(removed, _)| at.saturating_sub(removed));
                    prop_assert!(gap >= Some(GAP), "{}", world.story());
                    added = Some(*at);
                }
            }
        }
        prop_assert!(mode != RefreshMode::Never || world.done.is_empty());
        // With time, a server that stays ready is in every file.
        world.see(Ready, run).pass(GAP.as_secs());
        world.pass(GAP.as_secs());
        prop_assert!(world.refresh.is_in(), "{}", world.story());
        prop_assert_eq!(world.refresh.deadline(), None);
    }
}
