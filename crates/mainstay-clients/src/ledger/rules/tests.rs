use std::path::PathBuf;

use super::*;
use crate::edit::Created;
use crate::ledger::Cut;

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
    State::Away { entry: fields(URL), cut: Cut::between("ab", "a"), removed: None }
}

/// Checks how things stand, long after our last write.
#[track_caller]
fn check(state: State, sight: Sight<'_>, expected: &Standing) {
    let record = record(state);
    assert_eq!(standing(Some(&record), sight, OWNED, at(1000)), *expected);
}

#[test]
fn what_is_not_in_the_ledger_is_foreign() {
    assert_eq!(standing(None, Sight::Missing, OWNED, at(0)), Standing::Absent);
    assert_eq!(standing(None, Sight::There(&entry(URL)), OWNED, at(0)), Standing::Foreign);
}

#[test]
fn an_entry_that_says_what_we_wrote_is_ours_in_every_state() {
    let states =
        [State::Adding { former: None }, State::Present, away(), State::Leaving, State::Withdrawn];
    for state in states {
        check(state, Sight::There(&entry(URL)), &Standing::Ours);
    }
}

#[test]
fn a_changed_field_of_ours_is_drift_if_the_entry_was_ours() {
    let drifted = |field: &str| Standing::Drifted { fields: vec![field.to_owned()] };
    check(State::Present, Sight::There(&entry("http://elsewhere")), &drifted("url"));
    let mut typed = fields(URL);
    typed.push(("type".to_owned(), Value::Text("sse".to_owned())));
    check(State::Present, Sight::There(&Value::Map(typed)), &drifted("type"));
    let text = Value::Text("odd".to_owned());
    let both = Standing::Drifted { fields: vec!["type".to_owned(), "url".to_owned()] };
    check(State::Present, Sight::There(&text), &both);
}

#[test]
fn what_came_while_ours_was_out_is_foreign() {
    for state in [State::Adding { former: None }, away(), State::Leaving, State::Withdrawn] {
        check(state, Sight::There(&entry("http://elsewhere")), &Standing::Foreign);
    }
}

#[test]
fn an_update_that_was_broken_off_leaves_the_entry_ours() {
    let state = State::Adding { former: Some(fields("http://old")) };
    check(state.clone(), Sight::There(&entry("http://old")), &Standing::Ours);
    check(state.clone(), Sight::There(&entry(URL)), &Standing::Ours);
    let drifted = Standing::Drifted { fields: vec!["url".to_owned()] };
    check(state, Sight::There(&entry("http://elsewhere")), &drifted);
}

#[test]
fn what_is_missing_was_taken_out_by_whom_the_state_says() {
    check(State::Present, Sight::Missing, &Standing::Withdrawn);
    check(State::Withdrawn, Sight::Missing, &Standing::Withdrawn);
    check(away(), Sight::Missing, &Standing::Away);
    check(State::Leaving, Sight::Missing, &Standing::Absent);
    check(State::Adding { former: None }, Sight::Missing, &Standing::Absent);
    check(State::Adding { former: Some(fields(URL)) }, Sight::Missing, &Standing::Withdrawn);
}

#[test]
fn a_file_that_goes_while_the_entry_is_out_takes_it_along() {
    check(away(), Sight::NoFile, &Standing::Withdrawn);
    check(State::Present, Sight::NoFile, &Standing::Withdrawn);
    check(State::Adding { former: None }, Sight::NoFile, &Standing::Absent);
}

#[test]
fn what_is_out_already_is_noted_or_tidied_up() {
    for purpose in [Purpose::Refresh, Purpose::ForGood] {
        assert_eq!(judge_remove(Standing::Overwritten, purpose), Verdict::Write);
    }
    let verdict = judge_remove(Standing::Away, Purpose::ForGood);
    assert_eq!(verdict, Verdict::Write, "with what was created around it");
}

#[test]
fn what_goes_right_after_our_write_was_written_over_by_the_client() {
    let record = record(State::Present);
    assert_eq!(standing(Some(&record), Sight::Missing, OWNED, at(104)), Standing::Overwritten);
    assert_eq!(standing(Some(&record), Sight::Missing, OWNED, at(105)), Standing::Withdrawn);
    let updating = self::record(State::Adding { former: Some(fields(URL)) });
    assert_eq!(standing(Some(&updating), Sight::Missing, OWNED, at(104)), Standing::Overwritten);
    // The clock was set back since.
    assert_eq!(standing(Some(&record), Sight::Missing, OWNED, at(50)), Standing::Withdrawn);
}

#[test]
fn what_says_again_what_it_said_before_our_update_was_written_back_by_the_client() {
    let old = entry("http://old");
    let sight = Sight::There(&old);
    let drifted = Standing::Drifted { fields: vec!["url".to_owned()] };
    for (state, otherwise) in [(State::Present, drifted), (State::Leaving, Standing::Foreign)] {
        let record = Record { former: Some(fields("http://old")), ..record(state) };
        assert_eq!(standing(Some(&record), sight, OWNED, at(104)), Standing::Overwritten);
        assert_eq!(standing(Some(&record), sight, OWNED, at(105)), otherwise);
        let mine = entry("http://mine");
        let changed = standing(Some(&record), Sight::There(&mine), OWNED, at(104));
        assert_eq!(changed, otherwise, "this is no text of ours");
    }
}

#[test]
fn a_foreign_entry_is_never_touched() {
    for wish in [Wish::Keep, Wish::Anew] {
        assert_eq!(judge_add(Standing::Foreign, false, wish), left(Left::Foreign));
        let same = judge_add(Standing::Foreign, true, wish);
        assert_eq!(same, Verdict::Keep(Done::AlreadyThere));
    }
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        assert_eq!(judge_remove(Standing::Foreign, purpose), left(Left::Foreign));
    }
}

#[test]
fn drift_is_kept_unless_a_person_asks() {
    let drifted = || Standing::Drifted { fields: vec!["url".to_owned()] };
    let kept = left(Left::Drifted { fields: vec!["url".to_owned()] });
    assert_eq!(judge_add(drifted(), false, Wish::Keep), kept);
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        assert_eq!(judge_remove(drifted(), purpose), kept);
    }
    assert_eq!(judge_add(drifted(), false, Wish::Anew), Verdict::Write);
}

#[test]
fn what_a_person_took_out_stays_out_unless_one_asks() {
    assert_eq!(judge_add(Standing::Withdrawn, false, Wish::Keep), left(Left::Withdrawn));
    assert_eq!(judge_add(Standing::Withdrawn, false, Wish::Anew), Verdict::Write);
    for purpose in [Purpose::ForGood, Purpose::Refresh] {
        let verdict = judge_remove(Standing::Withdrawn, purpose);
        assert_eq!(verdict, Verdict::Keep(Done::NotThere));
    }
}

#[test]
fn adding_twice_is_adding_once() {
    assert_eq!(judge_add(Standing::Absent, false, Wish::Keep), Verdict::Write);
    let again = judge_add(Standing::Ours, true, Wish::Keep);
    assert_eq!(again, Verdict::Keep(Done::AlreadyThere));
}
