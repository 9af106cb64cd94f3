use std::path::PathBuf;

use super::*;
use crate::edit::Created;
use crate::ledger::TextDiff;

const OWNED: &[&str] = &["type", "url"];
const URL: &str = "http://127.0.0.1:7433/time/mcp";

fn fields(url: &str) -> Fields {
    vec![("url".to_owned(), Value::Text(url.to_owned()))]
}

fn entry(url: &str) -> Value {
    let mut fields = fields(url);
    fields.push(("disabled".to_owned(), Value::Flag(true)));
    Value::Map(fields)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn record(state: State) -> Record {
    Record {
        client: "cursor".to_owned(),
        file: PathBuf::from("/home/ann/.cursor/mcp.json"),
        server: "time".to_owned(),
        fields: fields(URL),
        former: None,
        created: Created::default(),
        created_file: false,
        created_dir: None,
        at: at(100),
        state,
    }
}

fn away() -> State {
    State::Away { entry: fields(URL), cut: TextDiff::between("ab", "a"), removed: None }
}

/// Checks how things stand, long after our last write.
#[track_caller]
fn check(state: State, observed: Observed<'_>, expected: &Standing) {
    let record = record(state);
    assert_eq!(standing(Some(&record), observed, OWNED, at(1000)), *expected);
}

#[test]
fn entries_without_a_record_are_foreign() {
    assert_eq!(standing(None, Observed::Missing, OWNED, at(0)), Standing::Absent);
    assert_eq!(standing(None, Observed::There(&entry(URL)), OWNED, at(0)), Standing::Foreign);
}

#[test]
fn an_entry_as_recorded_is_ours_in_every_state() {
    let states =
        [State::Adding { former: None }, State::Present, away(), State::Leaving, State::Withdrawn];
    for state in states {
        check(state, Observed::There(&entry(URL)), &Standing::Ours);
    }
}

#[test]
fn a_changed_owned_field_is_drift() {
    let drifted = |field: &str| Standing::Drifted { fields: vec![field.to_owned()] };
    check(State::Present, Observed::There(&entry("http://elsewhere")), &drifted("url"));
    let mut typed = fields(URL);
    typed.push(("type".to_owned(), Value::Text("sse".to_owned())));
    check(State::Present, Observed::There(&Value::Map(typed)), &drifted("type"));
    let text = Value::Text("odd".to_owned());
    let both = Standing::Drifted { fields: vec!["type".to_owned(), "url".to_owned()] };
    check(State::Present, Observed::There(&text), &both);
}

#[test]
fn an_entry_added_while_ours_is_away_is_foreign() {
    for state in [State::Adding { former: None }, away(), State::Leaving, State::Withdrawn] {
        check(state, Observed::There(&entry("http://elsewhere")), &Standing::Foreign);
    }
}

#[test]
fn an_interrupted_update_leaves_the_entry_ours() {
    let state = State::Adding { former: Some(fields("http://old")) };
    check(state.clone(), Observed::There(&entry("http://old")), &Standing::Ours);
    check(state.clone(), Observed::There(&entry(URL)), &Standing::Ours);
    let drifted = Standing::Drifted { fields: vec!["url".to_owned()] };
    check(state, Observed::There(&entry("http://elsewhere")), &drifted);
}

#[test]
fn the_state_decides_who_removed_a_missing_entry() {
    check(State::Present, Observed::Missing, &Standing::Withdrawn);
    check(State::Withdrawn, Observed::Missing, &Standing::Withdrawn);
    check(away(), Observed::Missing, &Standing::Away);
    check(State::Leaving, Observed::Missing, &Standing::Absent);
    check(State::Adding { former: None }, Observed::Missing, &Standing::Absent);
    check(State::Adding { former: Some(fields(URL)) }, Observed::Missing, &Standing::Withdrawn);
}

#[test]
fn a_file_deleted_while_the_entry_is_away_withdraws_it() {
    check(away(), Observed::NoFile, &Standing::Withdrawn);
    check(State::Present, Observed::NoFile, &Standing::Withdrawn);
    check(State::Adding { former: None }, Observed::NoFile, &Standing::Absent);
}

#[test]
fn removing_an_absent_entry_is_recorded_or_completed() {
    for purpose in [Purpose::Refresh, Purpose::ForGood] {
        assert_eq!(decide_remove(Standing::Overwritten, purpose), Verdict::Write);
    }
    let verdict = decide_remove(Standing::Away, Purpose::ForGood);
    assert_eq!(verdict, Verdict::Write, "with what was created around it");
}

#[test]
fn an_entry_missing_right_after_a_write_was_overwritten() {
    let record = record(State::Present);
    assert_eq!(standing(Some(&record), Observed::Missing, OWNED, at(104)), Standing::Overwritten);
    assert_eq!(standing(Some(&record), Observed::Missing, OWNED, at(105)), Standing::Withdrawn);
    let updating = self::record(State::Adding { former: Some(fields(URL)) });
    assert_eq!(standing(Some(&updating), Observed::Missing, OWNED, at(104)), Standing::Overwritten);
    // The clock was set back since.
    assert_eq!(standing(Some(&record), Observed::Missing, OWNED, at(50)), Standing::Withdrawn);
}

#[test]
fn former_fields_right_after_an_update_were_written_back() {
    let old = entry("http://old");
    let observed = Observed::There(&old);
    let drifted = Standing::Drifted { fields: vec!["url".to_owned()] };
    for (state, otherwise) in [(State::Present, drifted), (State::Leaving, Standing::Foreign)] {
        let record = Record { former: Some(fields("http://old")), ..record(state) };
        assert_eq!(standing(Some(&record), observed, OWNED, at(104)), Standing::Overwritten);
        assert_eq!(standing(Some(&record), observed, OWNED, at(105)), otherwise);
        let mine = entry("http://mine");
        let changed = standing(Some(&record), Observed::There(&mine), OWNED, at(104));
        assert_eq!(changed, otherwise, "this is no text of ours");
    }
}

#[test]
fn a_foreign_entry_is_never_changed() {
    for mode in [AddMode::Maintain, AddMode::Force] {
        assert_eq!(decide_add(Standing::Foreign, false, mode), left(Left::Foreign));
        let same = decide_add(Standing::Foreign, true, mode);
        assert_eq!(same, Verdict::Keep(Done::AlreadyThere));
    }
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        assert_eq!(decide_remove(Standing::Foreign, purpose), left(Left::Foreign));
    }
}

#[test]
fn drift_is_kept_unless_a_user_asks() {
    let drifted = || Standing::Drifted { fields: vec!["url".to_owned()] };
    let kept = left(Left::Drifted { fields: vec!["url".to_owned()] });
    assert_eq!(decide_add(drifted(), false, AddMode::Maintain), kept);
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        assert_eq!(decide_remove(drifted(), purpose), kept);
    }
    assert_eq!(decide_add(drifted(), false, AddMode::Force), Verdict::Write);
}

#[test]
fn an_entry_removed_by_a_user_stays_removed_unless_a_user_asks() {
    assert_eq!(decide_add(Standing::Withdrawn, false, AddMode::Maintain), left(Left::Withdrawn));
    assert_eq!(decide_add(Standing::Withdrawn, false, AddMode::Force), Verdict::Write);
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        let verdict = decide_remove(Standing::Withdrawn, purpose);
        assert_eq!(verdict, Verdict::Keep(Done::NotThere));
    }
}

#[test]
fn adding_twice_is_adding_once() {
    assert_eq!(decide_add(Standing::Absent, false, AddMode::Maintain), Verdict::Write);
    let again = decide_add(Standing::Ours, true, AddMode::Maintain);
    assert_eq!(again, Verdict::Keep(Done::AlreadyThere));
}
