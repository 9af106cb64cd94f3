//! What a user can do about entries in clients' files.

use std::collections::BTreeSet;

use mainstay_api::EventRecord;

use super::super::steps::{client_of, file_of};

/// What to do about the last entry with a problem, unless a later event resolves it. Clients that are no longer
/// `wanted` are ignored.
pub(super) fn on_events(
    events: &[EventRecord],
    wanted: Option<&BTreeSet<String>>,
) -> Option<String> {
    let of_clients: Vec<&EventRecord> =
        events.iter().filter(|event| event.event == EventRecord::CLIENT).collect();
    let open = |at: &usize| {
        let (event, later) = (of_clients[*at], &of_clients[at + 1..]);
        is_wanted(event, wanted) && !later.iter().any(|later| settles(later, event))
    };
    (0..of_clients.len()).rev().filter(open).find_map(|at| on_event(of_clients[at]))
}

/// Whether the client of an event, or any client if the event names none, is to have an entry.
fn is_wanted(event: &EventRecord, wanted: Option<&BTreeSet<String>>) -> bool {
    let Some(wanted) = wanted else { return true };
    client_of(event).map_or(!wanted.is_empty(), |client| wanted.contains(client.id))
}

fn on_event(event: &EventRecord) -> Option<String> {
    match (event.cause.as_deref()?, client_of(event)) {
        ("left", Some(client)) => Some(format!(
            "its entry in {} was changed by hand and is left so: `mainstay client add {id}` restores an entry of Mainstay; see `mainstay client show {id}`",
            client.product,
            id = client.id
        )),
        ("left", None) => Some(
            "its entry in a client's file was changed by hand and is left so: see `mainstay client ls`"
                .to_owned(),
        ),
        ("failed", _) => Some(
            "a client's file could not be edited: `mainstay client ls` shows which one and why; Mainstay tries again within a minute, or at once with `mainstay client add ID`"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Whether `later` resolves the problem of `event`.
fn settles(later: &EventRecord, event: &EventRecord) -> bool {
    let done = matches!(later.cause.as_deref(), Some("added" | "updated" | "removed"));
    done && file_of(later).is_some_and(|file| event.detail.contains(file))
}

#[cfg(test)]
mod tests {
    use super::super::super::steps::tests::client_event;
    use super::*;

    #[test]
    fn a_problem_is_reported_until_it_is_resolved() {
        let mut events = Vec::new();
        let mut then = |cause: &str, detail: &str, expected: &str| {
            events.push(client_event(0, cause, detail));
            let given = on_events(&events, None).unwrap_or_default();
            assert!(given.contains(expected), "{detail}: {given}");
            assert_eq!(given.is_empty(), expected.is_empty(), "{detail}: {given}");
        };
        then("added", "added `a` to Zed (/zed)", "");
        then("failed", "/zed was left as it is: line 1", "`mainstay client add ID`");
        then("added", "added `a` to Kiro (/kiro)", "`mainstay client add ID`");
        then("updated", "brought `a` up to date in Zed (/zed)", "");
        let left = "left `a` in Cursor (/cursor) alone: `url` was changed by hand";
        then("left", left, "`mainstay client add cursor` restores");
        then("added", "put `a` back into Kiro (/kiro)", "`mainstay client add cursor`");
        then("removed", "removed `a` from Cursor (/cursor)", "");
        then("left", "left alone", "`mainstay client ls`");
    }

    #[test]
    fn a_removed_client_gets_no_advice() {
        let left = "left `a` in Cursor (/cursor) alone: `url` was changed by hand";
        let events =
            [client_event(0, "failed", "/zed is read-only"), client_event(1, "left", left)];
        let advice = |wanted: &[&str]| {
            let wanted = wanted.iter().map(|id| (*id).to_owned()).collect();
            on_events(&events, Some(&wanted)).unwrap_or_default()
        };
        assert!(advice(&["cursor", "zed"]).contains("`mainstay client add cursor`"));
        assert!(advice(&["zed"]).contains("`mainstay client add ID`"));
        assert_eq!(advice(&[]), "");
    }
}
