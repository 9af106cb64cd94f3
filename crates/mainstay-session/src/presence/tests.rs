use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MOMENT: Duration = Duration::from_millis(1);

fn facts() -> impl Strategy<Value = SessionFacts> {
    let presence = prop_oneof![
        1 => Just(Presence::Present),
        4 => (0..100_u64).prop_map(|since| Presence::Absent { since: Duration::from_secs(since) }),
    ];
    (presence, any::<bool>(), prop::bool::weighted(0.9)).prop_map(
        |(presence, is_used, is_recorded)| SessionFacts { presence, is_used, is_recorded },
    )
}

fn absent(seconds: u64, is_used: bool) -> SessionFacts {
    let presence = Presence::Absent { since: Duration::from_secs(seconds) };
    SessionFacts { presence, is_used, is_recorded: true }
}

proptest! {
    #[test]
    fn no_more_sessions_than_necessary_are_moved_and_the_lowest_ranked_first(
        sessions in vec(facts(), 0..60),
        limit in 0..70_usize,
    ) {
        let moved: BTreeSet<usize> =
            to_move_to_disk(sessions.iter().copied().enumerate(), limit).into_iter().collect();
        let may_go = |it: &SessionFacts| it.is_recorded && it.presence != Presence::Present;
        let excess = sessions.len().saturating_sub(limit);
        let movable = sessions.iter().filter(|it| may_go(it)).count();
        prop_assert_eq!(moved.len(), excess.min(movable));
        for (number, session) in sessions.iter().enumerate() {
            if moved.contains(&number) {
                prop_assert!(may_go(session));
                continue;
            }
            // No session that stayed but was movable ranks lower than one that was moved.
            for gone in moved.iter().map(|number| &sessions[*number]) {
                prop_assert!(!may_go(session) || gone.eviction_rank() <= session.eviction_rank());
            }
        }
    }

    #[test]
    fn present_clients_never_expire_and_expiry_is_monotonic(
        session in facts(),
        at in 0..200_000_u64,
    ) {
        let (now, later) = (Duration::from_secs(at), Duration::from_secs(at + 1));
        if session.presence == Presence::Present {
            prop_assert!(!session.is_expired(now));
            prop_assert_eq!(session.is_active(now), session.is_used);
        }
        prop_assert!(!session.is_expired(now) || session.is_expired(later));
        prop_assert!(!session.is_active(later) || session.is_active(now));
        prop_assert!(!(session.is_active(now) && session.is_expired(now)));
    }
}

#[test]
fn a_flood_of_unused_sessions_displaces_no_used_one() {
    let flood = (0..1_000).map(|n| (false, absent(50 + n, false)));
    let clients = (0..100).map(|n| (true, absent(n, true)));
    let moved = to_move_to_disk(flood.chain(clients), 500);
    assert_eq!(moved.len(), 600);
    assert!(!moved.contains(&true));
}

#[test]
fn sessions_end_by_how_long_they_were_absent_and_whether_they_were_used() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    for (is_used, at, expected) in [
        (false, minutes(5).saturating_sub(MOMENT), false),
        (false, minutes(5), true),
        (true, minutes(24 * 60).saturating_sub(MOMENT), false),
        (true, minutes(24 * 60), true),
    ] {
        assert_eq!(absent(0, is_used).is_expired(at), expected, "{is_used} {at:?}");
    }
    assert!(absent(10, true).is_active(Duration::from_secs(39)));
    assert!(!absent(10, true).is_active(Duration::from_secs(40)));
    assert!(!absent(10, false).is_active(Duration::from_secs(10)), "it cannot be about this one");
}
