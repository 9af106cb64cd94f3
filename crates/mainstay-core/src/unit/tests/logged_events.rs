//! What the event log says of a whole life.

use super::world::*;
use crate::{Cause, Event, Wanted};

#[test]
fn a_life_reads_like_a_story() {
    let mut w = world();
    w.passes(secs(2));
    w.comes_up();
    w.passes(secs(3));
    w.crashes();
    w.crashes_after(secs(3));
    w.waits();
    w.comes_up();
    w.passes(secs(30));
    w.loses_engine();
    w.ends(Cause::StoppedBySomeone);
    w.tell(Event::EngineBack);
    w.waits();
    w.want(Wanted::Gone);
    w.crashes();
    let log: Vec<String> = w
        .logged()
        .iter()
        .map(|note| {
            let run = note.run().map_or("-".to_owned(), |run| run.to_string());
            format!("{} {run} {}: {note}", note.event(), note.cause().unwrap_or("-"))
        })
        .collect();
    let (delays, log): (Vec<_>, Vec<_>) =
        log.into_iter().partition(|line| line.contains("restart 2 of 10 in 5"));
    assert_eq!(delays.len(), 1);
    assert_eq!(
        log,
        [
            "wanted - -: asked to start",
            "starting 1 -: starting run 1",
            "started 1 -: run 1 has started",
            "ready 1 -: ready after 2 s",
            "ended 1 exited: exited 1 after 3 s (uses up a restart)",
            "scheduled - -: restart 1 of 10 now",
            "starting 2 -: starting run 2 (restart 1)",
            "started 2 -: run 2 has started",
            "ready 2 -: ready after 0 ms",
            "ended 2 exited: exited 1 after 3 s (uses up a restart)",
            "starting 3 -: starting run 3 (restart 2)",
            "started 3 -: run 3 has started",
            "ready 3 -: ready after 0 ms",
            "budget-reset 3 -: stable, earlier failures are forgotten",
            "engine-away - engine-away: no engine answers",
            "ended 3 engine-away: lost with its engine",
            "engine-back - -: the engine answers again",
            "starting 4 -: starting run 4",
            "wanted - -: asked to remove",
            "stopping 4 -: stopping run 4",
            "ended 4 asked: stopped on request after 0 ms",
            "removed - removed: removed for good",
        ]
    );
}

#[test]
fn giving_up_is_told_after_the_last_end() {
    let mut w = world_with(|policy| policy.max = 1);
    w.crashes();
    w.logged();
    w.crashes();
    let log: Vec<String> = w.logged().iter().map(ToString::to_string).collect();
    assert_eq!(log, ["exited 1 after 0 ms", "gave up after 1 restart"]);
}
