use proptest::prelude::*;

use super::*;

const ENGINE: &str = "E";

const SOURCE: (&str, &str) = (ENGINE, "unix:///x");

fn listed(id: &str, nonce: Option<&str>, created: i64) -> Listed {
    Listed {
        id: id.to_owned(),
        name: format!("mainstay-time-{id}"),
        server: "time".to_owned(),
        nonce: nonce.map(str::to_owned),
        created,
        started: false,
    }
}

fn running(id: &str, nonce: Option<&str>, created: i64) -> Listed {
    Listed { started: true, ..listed(id, nonce, created) }
}

fn entry(nonce: &str, container: Option<&str>) -> Entry {
    Entry::from(Creation {
        server: "time".parse().unwrap(),
        address: "unix:///x".to_owned(),
        engine: ENGINE.to_owned(),
        nonce: nonce.to_owned(),
        container: container.map(str::to_owned),
    })
}

fn planned(found: &[Listed], entries: &[Entry], need: &Need) -> Plan {
    plan(SOURCE, found, entries, |_| need.clone(), Instant::now())
}

/// Asserts what is removed, by id or by nonce, and what is foreign.
#[track_caller]
fn check(
    found: &[Listed],
    entries: &[Entry],
    need: &Need,
    (remove, claim, foreign): (&[&str], &[&str], &[&str]),
) {
    let plan = planned(found, entries, need);
    assert_eq!(plan.remove, remove, "removed");
    let claimed: Vec<&str> = plan.claim.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(claimed, claim, "claimed");
    let others: Vec<&str> = plan.foreign.iter().map(|found| found.id.as_str()).collect();
    assert_eq!(others, foreign, "foreign");
}

#[test]
fn a_recorded_container_is_removed_when_no_server_needs_it() {
    let (found, entries) = ([listed("a", Some("n"), 1)], [entry("n", Some("a"))]);
    check(&found, &entries, &Need::Nothing, (&["a"], &[], &[]));
    check(&found, &entries, &Need::Container("b".to_owned()), (&["a"], &[], &[]));
    check(&found, &entries, &Need::Container("a".to_owned()), (&[], &[], &[]));
    check(&found, &entries, &Need::Unknown, (&[], &[], &[]));
}

#[test]
fn a_recorded_container_is_removed_although_no_list_has_it() {
    check(&[], &[entry("n", Some("a"))], &Need::Nothing, (&["a"], &[], &[]));
}

#[test]
fn a_container_that_was_never_bound_is_found_by_its_nonce() {
    let (found, entries) = ([listed("a", Some("n"), 1)], [entry("n", None)]);
    check(&found, &entries, &Need::Nothing, (&[], &["a"], &[]));
    check(&found, &entries, &Need::Container("b".to_owned()), (&[], &["a"], &[]));
    check(&found, &entries, &Need::Unknown, (&[], &[], &[]));
}

#[test]
fn a_container_whose_creation_is_in_flight_is_kept() {
    let entries = [Entry { in_flight: true, ..entry("n", None) }];
    check(&[listed("a", Some("n"), 1)], &entries, &Need::Nothing, (&[], &[], &[]));
}

#[test]
fn labels_and_names_alone_prove_nothing() {
    let copies = [listed("copy", Some("n"), 2), listed("old", None, 1)];
    check(&copies, &[], &Need::Nothing, (&[], &[], &["copy", "old"]));
    // The nonce is bound to the container that was copied, whether that still exists or not.
    let entries = [entry("n", Some("a"))];
    check(&copies, &entries, &Need::Nothing, (&["a"], &[], &["copy", "old"]));
    check(&copies, &entries, &Need::Container("a".to_owned()), (&[], &[], &["copy", "old"]));
}

#[test]
fn of_several_containers_with_an_unbound_nonce_only_the_oldest_is_ours() {
    let entries = [entry("n", None)];
    let found = [listed("copy", Some("n"), 2), listed("a", Some("n"), 1)];
    check(&found, &entries, &Need::Nothing, (&[], &["a"], &["copy"]));
    let doubtful = [listed("a", Some("n"), 1), listed("b", Some("n"), 1)];
    check(&doubtful, &entries, &Need::Nothing, (&[], &[], &["a", "b"]));
}

#[test]
fn a_container_that_was_started_is_not_ours_while_the_nonce_is_unbound() {
    let entries = [entry("n", None)];
    // The original is gone, and its copies are left.
    check(&[running("copy", Some("n"), 2)], &entries, &Need::Nothing, (&[], &[], &["copy"]));
    let copies = [listed("new", Some("n"), 3), running("copy", Some("n"), 2)];
    check(&copies, &entries, &Need::Nothing, (&[], &[], &["new", "copy"]));
    let both = [running("copy", Some("n"), 2), listed("a", Some("n"), 1)];
    check(&both, &entries, &Need::Nothing, (&[], &["a"], &["copy"]));
    assert_eq!(planned(&copies, &entries, &Need::Nothing).unbound, [("n".to_owned(), true)]);
}

#[test]
fn a_nonce_counts_only_for_the_server_and_the_engine_it_was_made_for() {
    let other_server = Listed { server: "web".to_owned(), ..listed("a", Some("n"), 1) };
    check(&[other_server], &[entry("n", None)], &Need::Nothing, (&[], &[], &["a"]));
    let mut elsewhere = entry("n", None);
    elsewhere.creation.engine = "another".to_owned();
    check(&[listed("a", Some("n"), 1)], &[elsewhere], &Need::Nothing, (&[], &[], &["a"]));
}

#[test]
fn an_unlisted_id_is_gone_only_if_its_own_engine_lacks_it() {
    let (mut engine, mut address) = (entry("n", Some("a")), entry("o", Some("b")));
    engine.creation.engine = "another".to_owned();
    address.creation.address = "unix:///y".to_owned();
    check(&[], &[engine, address], &Need::Nothing, (&[], &[], &[]));
}

#[test]
fn a_listed_id_is_proof_whichever_engine_lists_it() {
    let mut renamed = entry("n", Some("a"));
    renamed.creation.engine = "before".to_owned();
    renamed.creation.address = "unix:///y".to_owned();
    let found = [running("a", Some("n"), 1)];
    let check = |need, removed| check(&found, &[renamed.clone()], &need, (removed, &[], &[]));
    check(Need::Nothing, &["a"]);
    check(Need::Container("a".to_owned()), &[]);
    check(Need::Unknown, &[]);
}

#[test]
fn a_creation_without_a_container_expires() {
    let now = Instant::now();
    let later = now + NEVER_CREATED;
    let missing = Entry { missing_since: Some(now), ..entry("n", None) };
    let plan = |found: &[Listed], at| {
        super::plan(SOURCE, found, std::slice::from_ref(&missing), |_| Need::Nothing, at)
    };
    assert_eq!(plan(&[], now).expired, [""; 0]);
    assert_eq!(plan(&[], now).unbound, [("n".to_owned(), true)]);
    assert_eq!(plan(&[], later).expired, ["n"]);
    let found = plan(&[listed("a", Some("n"), 1)], later);
    assert_eq!((found.expired, found.unbound), (vec![], vec![("n".to_owned(), false)]));
}

fn any_need() -> impl Strategy<Value = Need> {
    prop_oneof![Just(Need::Nothing), Just(Need::Unknown), "[a-d]".prop_map(Need::Container),]
}

fn any_listed() -> impl Strategy<Value = Listed> {
    let labels = ("(time|web)", proptest::option::of("[n-q]"));
    ("[a-d]", labels, "[x-z]", 0..3_i64, any::<bool>()).prop_map(
        |(id, (server, nonce), name, created, started)| Listed {
            id,
            name,
            server,
            nonce,
            created,
            started,
        },
    )
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let place = ("(E|F)", "unix:///(x|y)");
    ("[n-q]", proptest::option::of("[a-d]"), "(time|web)", place, any::<bool>()).prop_map(
        |(nonce, container, server, (engine, address), in_flight)| {
            let mut made = entry(&nonce, container.as_deref());
            made.creation.server = server.parse().unwrap();
            made.creation.engine = engine;
            made.creation.address = address;
            made.in_flight = in_flight;
            made
        },
    )
}

proptest! {
    #[test]
    fn only_recorded_ids_and_unbound_nonces_are_removed(
        mut found in proptest::collection::vec(any_listed(), 0..6),
        entries in proptest::collection::vec(any_entry(), 0..6),
        need in any_need(),
    ) {
        found.sort_by(|one, two| one.id.cmp(&two.id));
        found.dedup_by(|one, two| one.id == two.id);
        let plan = planned(&found, &entries, &need);
        for id in &plan.remove {
            let is_listed = found.iter().any(|found| found.id == *id);
            let is_recorded = |entry: &Entry| {
                let Creation { address, engine, container, .. } = &entry.creation;
                let is_here = engine == SOURCE.0 && address == SOURCE.1;
                container.as_ref() == Some(id) && (is_listed || is_here)
            };
            prop_assert!(entries.iter().any(is_recorded));
            prop_assert_ne!(&need, &Need::Container(id.clone()));
        }
        for (nonce, id) in &plan.claim {
            let carrier = found.iter().find(|found| found.id == *id).unwrap();
            prop_assert_eq!(carrier.nonce.as_ref(), Some(nonce));
            prop_assert!(!carrier.started);
            let is_unbound = |entry: &Entry| {
                let Creation { server, engine, container, .. } = &entry.creation;
                entry.creation.nonce == *nonce
                    && container.is_none()
                    && !entry.in_flight
                    && engine == ENGINE
                    && *server.as_str() == *carrier.server
            };
            prop_assert!(entries.iter().any(is_unbound));
        }
        for foreign in &plan.foreign {
            prop_assert!(!plan.remove.contains(&foreign.id));
            prop_assert!(plan.claim.iter().all(|(_, id)| *id != foreign.id));
        }
        if need == Need::Unknown {
            prop_assert!(plan.remove.is_empty() && plan.claim.is_empty());
        }
    }

    #[test]
    fn names_change_nothing(
        found in proptest::collection::vec(any_listed(), 0..6),
        entries in proptest::collection::vec(any_entry(), 0..6),
        need in any_need(),
    ) {
        let renamed: Vec<Listed> = found
            .iter()
            .map(|found| Listed { name: "mainstay-time".to_owned(), ..found.clone() })
            .collect();
        let (before, after) = (planned(&found, &entries, &need), planned(&renamed, &entries, &need));
        prop_assert_eq!((before.claim, before.remove), (after.claim, after.remove));
    }
}
