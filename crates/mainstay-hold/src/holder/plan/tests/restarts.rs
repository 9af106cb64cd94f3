//! How soon a daemon that died is followed by the next one.

use super::*;

#[test]
fn a_daemon_that_dies_after_a_while_is_started_again_at_once() {
    let (mut story, mut id) = Story::serving();
    for _ in 0..100 {
        story.now += LONG_LIVED;
        let start = story.starts(gone(id), "old", false);
        assert_eq!(start.last_output.as_deref(), Some(HOW));
        id = start.id;
        assert_eq!(story.sends(id, READY), []);
    }
}

#[test]
fn daemons_that_keep_dying_are_restarted_with_a_pause_forever() {
    let (mut story, mut id) = Story::serving();
    let mut waits = Vec::new();
    for _ in 0..100 {
        story.now += SECOND;
        let mut actions = story.gone(id);
        let mut waited = Duration::ZERO;
        if actions.is_empty() {
            (waited, actions) = story.in_time();
        }
        waits.push(waited);
        let start = only_start(actions, "old", false);
        id = start.id;
        assert_eq!(story.sends(id, READY), []);
    }
    assert_eq!(
        waits[..MAX_IMMEDIATE],
        [Duration::ZERO; MAX_IMMEDIATE],
        "the first restarts are immediate"
    );
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(waits[99], SHORT_LIVED_PAUSE);

    story.now += LONG_LIVED;
    let id = story.starts(gone(id), "old", false).id;
    assert_eq!(story.sends(id, READY), []);
    story.now += SECOND;
    story.starts(gone(id), "old", false);
}

#[test]
fn unstable_daemons_are_restarted_with_growing_pauses_forever() {
    let (mut story, mut id) = Story::serving();
    let mut waits = Vec::new();
    for death in 1..40 {
        let report = Action::Report(HOW.into());
        assert_eq!(story.gone(id), if death < REPORTED { vec![] } else { vec![report] });
        let mut waited = Duration::ZERO;
        let start = loop {
            let (passed, actions) = story.in_time();
            waited += passed;
            if !actions.is_empty() {
                break only_start(actions, "old", false);
            }
        };
        waits.push(waited);
        assert_eq!(start.last_output.as_deref(), Some(HOW));
        id = start.id;
    }
    assert_eq!(waits[..4], [100, 200, 400, 800].map(Duration::from_millis));
    assert!(waits.is_sorted() && waits[38] == MAX_PAUSE, "{waits:?}");
    assert_eq!(story.sends(id, READY), [Action::ClearReport]);
}

#[test]
fn a_client_that_waits_shortens_a_long_wait() {
    let (mut story, mut id) = Story::serving();
    for _ in 0..20 {
        story.gone(id);
        assert!(story.plan.is_resting());
        id = loop {
            if let [Action::Start(start)] = &story.in_time().1[..] {
                break start.id;
            }
        };
    }
    story.gone(id);
    assert!(!story.plan.watches_listeners());
    assert_eq!(story.take(Event::ClientWaits), [], "not at once, or it would spin");
    assert_eq!(story.in_time(), (MAX_PAUSE_OF_CLIENT, vec![]));
    assert!(story.plan.watches_listeners());
    story.starts(Event::ClientWaits, "old", false);
    assert!(!story.plan.watches_listeners() && !story.plan.is_resting());
}

#[test]
fn a_stable_daemon_resets_the_pause() {
    let (mut story, mut id) = Story::serving();
    for _ in 0..20 {
        assert_eq!(story.gone(id), []);
        id = only_start(story.in_time().1, "old", false).id;
        story.sends(id, READY);
        story.now += LONG_LIVED;
        id = story.starts(gone(id), "old", false).id;
        story.sends(id, READY);
    }
}
