use proptest::prelude::*;

use super::*;

fn a_place() -> impl Strategy<Value = ListenAddr> {
    prop_oneof![
        any::<std::net::SocketAddrV4>().prop_map(|address| ListenAddr::Tcp(address.into())),
        ("[a-z/]{1,200}", "[a-z.]{1,20}")
            .prop_map(|(dir, name)| ListenAddr::Unix { dir: dir.into(), name }),
    ]
}

fn a_message() -> impl Strategy<Value = ToHolder> {
    prop_oneof![
        any::<(u32, bool, u32)>().prop_map(|(version, stderr, listeners)| {
            ToHolder::Handover { version, stderr, listeners }
        }),
        prop::collection::vec(a_place(), 0..20)
            .prop_map(|listen_addrs| ToHolder::Listeners { listen_addrs }),
        (any::<u64>(), a_place())
            .prop_map(|(request, listen_addr)| ToHolder::Bind { request, listen_addr }),
        (any::<u64>(), a_place())
            .prop_map(|(request, listen_addr)| ToHolder::Release { request, listen_addr }),
        any::<(u64, u32)>().prop_map(|(request, holder)| ToHolder::Ready { request, holder }),
        any::<(u32, bool, u32, Vec<u8>)>().prop_map(|(version, stderr, listeners, last_output)| {
            ToHolder::Resume { version, stderr, listeners, last_output }
        }),
        any::<u64>().prop_map(|request| ToHolder::Ending { request }),
        any::<Vec<u8>>().prop_map(|error| ToHolder::Failed { error }),
        ("[a-z/]{1,30}", any::<bool>()).prop_map(|(exe, fallback)| ToHolder::Replace {
            fallback: fallback.then(|| format!("{exe}.old").into()),
            exe: exe.into(),
        }),
        Just(ToHolder::Prepared),
        any::<u64>().prop_map(|request| ToHolder::HandedOver { request }),
        Just(ToHolder::Pulse),
        prop::collection::vec(a_place(), 0..20)
            .prop_map(|listen_addrs| ToHolder::Connections { listen_addrs }),
        responses().prop_map(|responses| ToHolder::Responses { responses }),
        any::<u32>().prop_map(|format| ToHolder::ShareMemory { format }),
        (any::<u32>(), a_place())
            .prop_map(|(slot, listen_addr)| ToHolder::Store { slot, listen_addr }),
        any::<u32>().prop_map(|slot| ToHolder::Forget { slot }),
    ]
}

fn responses() -> impl Strategy<Value = Vec<Unfinished>> {
    let response = (a_place(), any::<Vec<u8>>());
    let unfinished = response.prop_map(|(listen_addr, state)| Unfinished { listen_addr, state });
    prop::collection::vec(unfinished, 0..5)
}

fn an_order() -> impl Strategy<Value = ToDaemon> {
    let text = || prop::option::of(".{0,40}");
    prop_oneof![
        (any::<(u32, u32, bool, u32, u32)>(), text(), text(), any::<u64>()).prop_map(
            |(numbers, failed, words, every)| {
                let (version, holder_pid, standby, listeners, interrupted) = numbers;
                ToDaemon::Welcome {
                    version,
                    holder_pid,
                    standby,
                    replacement_failed: failed,
                    last_output: words,
                    watchdog_micros: every,
                    listeners,
                    interrupted,
                }
            }
        ),
        prop::collection::vec(a_place(), 0..20)
            .prop_map(|listen_addrs| ToDaemon::Listeners { listen_addrs }),
        any::<(u32, u32)>()
            .prop_map(|(version, holder_pid)| ToDaemon::TakenOver { version, holder_pid }),
        any::<u64>().prop_map(|request| ToDaemon::Done { request, result: Ok(()) }),
        (any::<u64>(), any::<i32>(), ".{0,40}").prop_map(|(request, errno, text)| ToDaemon::Done {
            request,
            result: Err(Refusal { errno, text }),
        }),
        ".{0,40}".prop_map(|why| ToDaemon::NotReplaced { why }),
        ".{0,40}".prop_map(|why| ToDaemon::ReexecFailed { why }),
        Just(ToDaemon::Serve),
        Just(ToDaemon::HandOver),
        prop::collection::vec(a_place(), 0..20)
            .prop_map(|listen_addrs| ToDaemon::Connections { listen_addrs }),
        responses().prop_map(|responses| ToDaemon::Responses { responses }),
        responses().prop_map(|connections| ToDaemon::Interrupted { connections }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_are_read_as_they_were_written(message in a_message(), order in an_order()) {
        let longer = |mut bytes: Vec<u8>| { bytes.extend(b"from the future"); bytes };
        prop_assert_eq!(decode(&longer(encode(&message))), Ok(Some(message)));
        prop_assert_eq!(decode(&longer(encode(&order))), Ok(Some(order)));
    }

    #[test]
    fn decoding_never_panics(bytes: Vec<u8>) {
        let (_message, _order) = (decode::<ToHolder>(&bytes), decode::<ToDaemon>(&bytes));
    }

    #[test]
    fn lists_hold_everything_in_order(lengths in prop::collection::vec(0..4096_usize, 0..200)) {
        let listen_addr = |length: usize| ListenAddr::Unix { dir: "d".repeat(length).into(), name: "s".into() };
        let held: Vec<_> = lengths.into_iter().map(listen_addr).zip(0_u16..).collect();
        let lists = lists(&held);
        prop_assert_eq!(&lists.concat(), &held);
        for list in lists {
            prop_assert!(list.len() <= MAX_DESCRIPTORS);
            let listen_addrs = list.iter().map(|(listen_addr, _)| listen_addr.clone()).collect();
            let message = ToDaemon::Listeners { listen_addrs };
            prop_assert!(encode(&message).len() <= MAX_BYTES);
        }
    }
}

#[test]
fn optional_messages_of_unknown_type_are_skipped() {
    assert_eq!(decode::<ToHolder>(&[200, 1, 2]), Ok(None));
    assert_eq!(decode::<ToDaemon>(&[131]), Ok(None));
    assert_eq!(decode::<ToHolder>(&[127]), Err(DecodeError::Invalid("type")));
    assert_eq!(decode::<ToDaemon>(&[]), Err(DecodeError::Short));
}

#[test]
fn version_1_daemons_support_holder_version_1() {
    let old = [&[4][..], &7_u64.to_le_bytes()].concat();
    assert_eq!(decode(&old), Ok(Some(ToHolder::Ready { request: 7, holder: 1 })));
}

#[test]
fn an_error_keeps_its_kind() {
    let taken = io::Error::from_raw_os_error(rustix::io::Errno::ADDRINUSE.raw_os_error());
    assert_eq!(io::Error::from(Refusal::from(taken)).kind(), io::ErrorKind::AddrInUse);
    let other = io::Error::from(Refusal::from(io::Error::other("no such address")));
    assert_eq!(other.to_string(), "no such address");
}

#[test]
fn the_bytes_are_those_of_earlier_versions() {
    let tcp = ListenAddr::Tcp(([127, 0, 0, 1], 80).into());
    let unix = ListenAddr::Unix { dir: "/r".into(), name: "s".into() };
    let check = |bytes: Vec<u8>, expected: &[u8]| assert_eq!(bytes, expected);
    check(
        encode(&ToHolder::Bind { request: 7, listen_addr: tcp }),
        b"\x02\x07\0\0\0\0\0\0\0\0\x0c\0\0\x00127.0.0.1:80",
    );
    check(
        encode(&ToHolder::Connections { listen_addrs: vec![unix] }),
        b"\x80\x01\0\0\0\x01\x02\0\0\0/r\x01\0\0\0s",
    );
    check(
        encode(&ToHolder::Replace { exe: "/a".into(), fallback: Some("/b".into()) }),
        b"\x08\x02\0\0\0/a\x01\x02\0\0\0/b",
    );
    check(encode(&ToHolder::Replace { exe: "/a".into(), fallback: None }), b"\x08\x02\0\0\0/a\0");
    check(
        encode(&ToHolder::Handover { version: 2, stderr: true, listeners: 3 }),
        b"\x01\x02\0\0\0\x01\x03\0\0\0",
    );
    check(encode(&ToDaemon::Serve), &[68]);
    check(encode(&ToDaemon::HandOver), &[69]);
    check(encode(&ToHolder::HandedOver { request: 1 }), &[9, 1, 0, 0, 0, 0, 0, 0, 0]);
    let refused = Err(Refusal { errno: 98, text: "no".into() });
    check(
        encode(&ToDaemon::Done { request: 1, result: refused }),
        b"C\x01\0\0\0\0\0\0\0\0\x62\0\0\0\x02\0\0\0no",
    );
}
