use proptest::prelude::*;

use super::*;
use crate::codec::DecodeError;

const CONSUMED: u8 = 5;

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn any_to_shim() -> impl Strategy<Value = ToShim> {
    prop_oneof![
        any::<u64>().prop_map(|number| ToShim::Daemon { number }),
        any::<u64>().prop_map(|from| ToShim::Attach { from }),
        Just(ToShim::Watch),
        (any::<u64>(), any_bytes()).prop_map(|(id, line)| ToShim::Write { id, line }),
        any::<u64>().prop_map(|offset| ToShim::Consumed { offset }),
        any::<u32>().prop_map(|grace_ms| ToShim::End { grace_ms }),
        Just(ToShim::Kill),
        any_bytes().prop_map(|text| ToShim::Log { text }),
        Just(ToShim::Tail),
        Just(ToShim::Dismiss),
        Just(ToShim::Restore),
        Just(ToShim::CountUnread),
    ]
}

fn any_hello() -> impl Strategy<Value = FromShim> {
    any::<(u32, u32, u32, u64, u64, u64, u64, bool, u64)>().prop_map(
        |(
            version,
            shim_pid,
            server_pid,
            started_unix_ms,
            out_start,
            out_end,
            written,
            exited,
            newest_daemon,
        )| {
            FromShim::Hello {
                version,
                shim_pid,
                server_pid,
                started_unix_ms,
                out_start,
                out_end,
                written,
                exited,
                newest_daemon,
            }
        },
    )
}

fn any_from_shim() -> impl Strategy<Value = FromShim> {
    let exited = (any::<(Option<i32>, Option<i32>, bool, u64)>(), any_bytes()).prop_map(
        |((code, signal, oom, at_unix_ms), stderr_tail)| FromShim::Exited {
            code,
            signal,
            oom,
            at_unix_ms,
            stderr_tail,
        },
    );
    prop_oneof![
        any_hello(),
        (any::<u64>(), any_bytes()).prop_map(|(offset, bytes)| FromShim::Output { offset, bytes }),
        Just(FromShim::Closed),
        any::<u64>().prop_map(|through| FromShim::Written { through }),
        exited,
        any::<u32>().prop_map(|survivors| FromShim::Gone { survivors }),
        any::<(u64, u64)>()
            .prop_map(|(read_through, bytes)| FromShim::Unread { read_through, bytes }),
        any_bytes().prop_map(|stderr| FromShim::Tail { stderr }),
        any::<String>().prop_map(|why| FromShim::Refused { why }),
    ]
}

/// Decodes a stream that arrives in pieces of the given sizes.
fn decoded<F: Frame>(stream: &[u8], cuts: &[usize]) -> Result<Vec<F>, WireError> {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    let (mut rest, mut cuts) = (stream, cuts.iter().copied().cycle());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
        decoder.push(piece);
        rest = after;
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

proptest! {
    #[test]
    fn requests_survive_any_split(
        frames in prop::collection::vec(any_to_shim(), 0..20),
        cuts in prop::collection::vec(1..40usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            frame.encode(&mut stream);
        }
        prop_assert_eq!(decoded::<ToShim>(&stream, &cuts), Ok(frames));
    }

    #[test]
    fn answers_survive_any_split(
        frames in prop::collection::vec(any_from_shim(), 0..20),
        cuts in prop::collection::vec(1..40usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            frame.encode(&mut stream);
        }
        prop_assert_eq!(decoded::<FromShim>(&stream, &cuts), Ok(frames));
    }

    #[test]
    fn garbage_never_panics(junk in any::<Vec<u8>>(), cut in 1..9usize) {
        let _requests = decoded::<ToShim>(&junk, &[cut]);
        let _answers = decoded::<FromShim>(&junk, &[cut]);
    }

    #[test]
    fn a_damaged_frame_never_panics(
        frame in any_from_shim(), at in any::<prop::sample::Index>(), byte: u8,
    ) {
        let mut stream = Vec::new();
        frame.encode(&mut stream);
        let at = at.index(stream.len());
        stream[at] = byte;
        let _damaged = decoded::<FromShim>(&stream, &[]);
    }

    #[test]
    fn fields_of_a_later_version_are_ignored(offset: u64, more in any_bytes()) {
        let mut stream = Vec::new();
        framed(&mut stream, CONSUMED, |out| {
            offset.put(out);
            out.extend_from_slice(&more);
        });
        prop_assert_eq!(decoded(&stream, &[]), Ok(vec![ToShim::Consumed { offset }]));
    }

    #[test]
    fn optional_frames_of_a_later_version_are_skipped(
        unknown in 131..=255_u8, payload in any_bytes(), cuts in prop::collection::vec(1..40usize, 1..20),
    ) {
        let (mut stream, mut answers) = (Vec::new(), Vec::new());
        for offset in [1, 2] {
            framed(&mut stream, unknown, |out| out.extend_from_slice(&payload));
            ToShim::Consumed { offset }.encode(&mut stream);
            framed(&mut answers, unknown, |out| out.extend_from_slice(&payload));
        }
        let expected = vec![ToShim::Consumed { offset: 1 }, ToShim::Consumed { offset: 2 }];
        prop_assert_eq!(decoded(&stream, &cuts), Ok(expected));
        prop_assert_eq!(decoded::<FromShim>(&answers, &cuts), Ok(Vec::new()));
    }
}

#[test]
fn invalid_frames_are_rejected_with_a_reason() {
    let check = |stream: &[u8], error| assert_eq!(decoded::<ToShim>(stream, &[]), Err(error));
    check(&[255, 255, 255, 255], WireError::TooLong(0xffff_ffff));
    check(&[0, 0, 0, 0], WireError::Empty);
    check(&[1, 0, 0, 0, 99], WireError::UnknownType(99));
    check(&[1, 0, 0, 0, 127], WireError::UnknownType(127));
    check(
        &[2, 0, 0, 0, CONSUMED, 7],
        WireError::Payload { kind: CONSUMED, source: DecodeError::Short },
    );
}

#[test]
fn the_frame_limit_can_be_changed() {
    let mut decoder = Decoder::<ToShim>::default();
    decoder.set_limit(9);
    let mut stream = Vec::new();
    ToShim::Write { id: 1, line: Vec::new() }.encode(&mut stream);
    ToShim::Write { id: 2, line: b"x".to_vec() }.encode(&mut stream);
    decoder.push(&stream);
    assert_eq!(decoder.next(), Ok(Some(ToShim::Write { id: 1, line: Vec::new() })));
    assert_eq!(decoder.next(), Err(WireError::TooLong(10)));
    decoder.set_limit(10);
    assert_eq!(decoder.next_raw().unwrap().unwrap().as_write(), Some((2, &b"x"[..])));
    assert_eq!(decoder.next(), Ok(None));
}

#[test]
fn output_in_two_pieces_is_one_frame() {
    let mut stream = Vec::new();
    put_output(&mut stream, 40, (b"ab", b"c"));
    let expected = FromShim::Output { offset: 40, bytes: b"abc".to_vec() };
    assert_eq!(decoded(&stream, &[]), Ok(vec![expected]));
    let mut decoder = Decoder::<FromShim>::default();
    decoder.push(&stream);
    assert_eq!(decoder.next_raw().unwrap().unwrap().as_write(), None);
}

#[test]
fn the_bytes_are_those_of_earlier_versions() {
    let check = |encode: &dyn Fn(&mut Vec<u8>), expected: &[u8]| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        assert_eq!(bytes, expected);
    };
    let write = ToShim::Write { id: 1, line: b"a\n".to_vec() };
    check(&|out| write.encode(out), b"\x0b\0\0\0\x04\x01\0\0\0\0\0\0\0a\n");
    check(&|out| ToShim::End { grace_ms: 5 }.encode(out), b"\x05\0\0\0\x07\x05\0\0\0");
    check(&|out| ToShim::Restore.encode(out), b"\x01\0\0\0\x80");
    let exited = FromShim::Exited {
        code: Some(3),
        signal: None,
        oom: false,
        at_unix_ms: 9,
        stderr_tail: b"x".to_vec(),
    };
    let bytes = b"\x19\0\0\0\x44\x01\x03\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0x";
    check(&|out| exited.encode(out), bytes);
    check(&|out| FromShim::Refused { why: "no".into() }.encode(out), b"\x07\0\0\0\x47\x02\0\0\0no");
}
