//! Runs that do not answer. They are idle, so a probe finds that out.

use mainstay_core::supervisor::Event;

use super::*;

/// The time after which an idle run is probed, and then the time after which it is killed.
const IDLE: Duration = Duration::from_secs(5 * 60);
const HANG_AFTER: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_run_that_hangs_is_killed_after_its_stacks_are_logged() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    let (first, begun) = (key("time", 1), tokio::time::Instant::now());
    world.engine.hang(&first);
    let shown = world.until(|shown| shown.info().generation == 2).await;
    let exit = shown.info().last_exit.unwrap();
    assert_eq!(exit.cause, "hung");
    assert!(exit.detail.contains("it has read nothing for 1 min"), "{}", exit.detail);
    let took = begun.elapsed();
    assert!((IDLE + HANG_AFTER..IDLE + HANG_AFTER * 2).contains(&took), "{took:?}");
    assert_eq!((world.engine.kills(), world.engine.stacks()), (vec![first.clone()], vec![first]));
    world.status(Status::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_never_killed_for_a_hang_stays() {
    let policy = RestartPolicy { hang_after: None, ..RestartPolicy::default() };
    let mut world = World::new(policy);
    world.status(Status::Running).await;
    world.engine.hang(&key("time", 1));
    tokio::time::sleep(IDLE * 3).await;
    assert_eq!(world.engine.kills(), []);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_run_is_shown_and_left_alone() {
    let mut world = World::new(RestartPolicy::default());
    world.status(Status::Running).await;
    let first = key("time", 1);
    world.engine.suspend(&first, true);
    let shown = world.status(Status::Suspended).await;
    assert!(shown.info().reason.starts_with("process 7 is stopped"), "{}", shown.info().reason);
    tokio::time::sleep(IDLE * 3).await;
    assert_eq!(world.handle.view.borrow().info().status, Status::Suspended);
    assert_eq!(world.engine.kills(), []);
    // A stop takes effect all the same.
    world.send(Event::Want(Wanted::Off)).await;
    world.status(Status::Stopped).await;
}
