use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// How many of the first lines of the stream are also the last ones of the log.
fn overlap(log: &[Bytes], stream: &[Bytes]) -> usize {
    let most = log.len().min(stream.len());
    (0..=most).rev().find(|&count| log.ends_with(&stream[..count])).unwrap_or(0)
}

fn lines(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

/// So many lines, no two of which are equal.
fn distinct(count: usize) -> Vec<Bytes> {
    (0..count).map(|number| Bytes::from(format!("line {number}"))).collect()
}

fn tail_of(lines: &[Bytes]) -> Tail {
    let mut tail = Tail::default();
    for line in lines {
        tail.push(line);
    }
    tail
}

/// What passes of a stream that was opened before this log was read.
fn spliced(log: &[Bytes], stream: &[Bytes]) -> Vec<Bytes> {
    let mut splice = Splice::new(log.to_vec());
    stream.iter().flat_map(|line| splice.pass(line.clone())).collect()
}

#[track_caller]
fn check_first_new(tail: &[&str], log: &[&str], expected: usize) {
    assert_eq!(first_new(&tail_of(&lines(tail)), &lines(log)), expected);
}

#[test]
fn lines_after_the_delivered_ones_are_new() {
    check_first_new(&[], &[], 0);
    check_first_new(&[], &["a", "b"], 0);
    check_first_new(&["a"], &[], 0);
    check_first_new(&["a", "b"], &["a", "b"], 2);
    check_first_new(&["a", "b"], &["a", "b", "c"], 2);
}

#[test]
fn a_rotated_log_may_begin_anywhere() {
    check_first_new(&["a", "b", "c"], &["b", "c", "d"], 2);
    check_first_new(&["a", "b", "c"], &["c", "d"], 1);
    check_first_new(&["a", "b", "c"], &["d", "e"], 0);
    check_first_new(&["a", "b", "c"], &["e", "f"], 0);
}

#[test]
fn repeated_lines_are_distinguished_by_context_and_count() {
    check_first_new(&["a", "x"], &["a", "x", "b", "x"], 2);
    check_first_new(&["x"], &["x", "b", "x"], 1);
    check_first_new(&["x", "x"], &["x", "x", "x", "x"], 2);
    // Of a rotated log only the surroundings are known.
    check_first_new(&["a", "b", "x"], &["x", "c", "x"], 3);
}

#[test]
fn a_splice_holds_back_only_possible_parts_of_the_log() {
    let mut splice = Splice::new(lines(&["a", "b", "a", "c"]));
    let mut pass = |text: &str| {
        let passed = splice.pass(Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(passed.concat()).unwrap()
    };
    assert_eq!([pass("a"), pass("b"), pass("a"), pass("c"), pass("c")], ["", "", "", "", "c"]);
    let mut splice = Splice::new(lines(&["a", "b", "c"]));
    let mut pass = |text: &str| splice.pass(Bytes::copy_from_slice(text.as_bytes()));
    // It only looked like the log's.
    assert_eq!(pass("a"), lines(&[]));
    assert_eq!(pass("c"), lines(&["a", "c"]));
    assert_eq!(pass("b"), lines(&["b"]));
}

#[test]
fn without_a_log_everything_passes() {
    assert_eq!(spliced(&[], &lines(&["a", "b"])), lines(&["a", "b"]));
}

/// A run's lines, how many of them were handed on, and which are in the log.
fn story(alphabet: usize) -> impl Strategy<Value = (Vec<Bytes>, usize, Range<usize>)> {
    let words = vec((0..alphabet).prop_map(|word| Bytes::from(word.to_string())), 0..1200);
    words.prop_flat_map(|lines| {
        let count = lines.len();
        (Just(lines), 0..=count).prop_flat_map(move |(lines, handed)| {
            let log = (0..=count, handed..=count).prop_map(|(begin, end)| begin.min(end)..end);
            (Just(lines), Just(handed), log)
        })
    })
}

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn distinct_lines_are_delivered_exactly_once(
        count in 0..1200_usize,
        cuts in prop::array::uniform5(any::<prop::sample::Index>()),
    ) {
        let lines = distinct(count);
        let mut cuts = cuts.map(|cut| cut.index(count + 1));
        let (handed, begin) = (cuts[0], cuts[1]);
        cuts[2..].sort_unstable();
        let (opened, end, heard) = (cuts[2].max(begin), cuts[3].max(handed).max(begin), cuts[4]);
        let opened = opened.min(end);
        let heard = heard.max(opened);
        let (log, stream) = (&lines[begin..end], &lines[opened..heard]);

        let new = first_new(&tail_of(&lines[..handed]), log);
        let joined = [&log[new..], &spliced(log, stream)[..]].concat();
        prop_assert_eq!(&joined[..], &lines[handed.max(begin)..end.max(heard)]);
        if heard >= end {
            prop_assert_eq!(overlap(log, stream), end - opened);
        }
    }

    #[test]
    fn a_log_that_was_not_rotated_is_cut_exactly(
        (lines, handed, log) in prop_oneof![story(1), story(2), story(5)],
    ) {
        prop_assert_eq!(first_new(&tail_of(&lines[..handed]), &lines[..log.end]), handed);
    }

    #[test]
    fn a_rotated_log_repeats_nothing_and_loses_only_repetitions(
        (lines, handed, log) in prop_oneof![story(1), story(2), story(5), story(300)],
    ) {
        let begin = log.start;
        let log = &lines[log];
        let new = first_new(&tail_of(&lines[..handed]), log);
        let due = handed.saturating_sub(begin);
        prop_assert!(new >= due, "{new} before {due}");
        if new > due {
            let common = due.clamp(1, TAIL_LINES);
            prop_assert!(log[..new].ends_with(&lines[handed - common..handed]));
        }
    }

    #[test]
    fn a_splice_passes_lines_beyond_the_overlap(
        log in vec(0..3_u8, 0..12),
        stream in vec(0..3_u8, 0..24),
    ) {
        let own = |words: Vec<u8>| -> Vec<Bytes> {
            words.into_iter().map(|word| Bytes::from(vec![word])).collect()
        };
        let (log, mut stream) = (own(log), own(stream));
        let overlap = overlap(&log, &stream);
        // A line like no other ends what may be held back.
        stream.push(Bytes::from_static(b"end"));
        prop_assert_eq!(&spliced(&log, &stream)[..], &stream[overlap..]);
    }
}
