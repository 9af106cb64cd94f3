//! A copy of a daemon's socket has leaked to another process.

use std::path::Path;

use super::support::Bench;

/// `Ending` with request 1: the holder would close all listeners.
const ENDING: &str = "050100000000000000";

/// Half of a message.
const GARBAGE: &str = "08ff";

/// `Replace` by a program.
fn replace(exe: &Path) -> String {
    let exe = exe.to_str().unwrap().as_bytes();
    let length = u32::try_from(exe.len()).unwrap().to_le_bytes();
    let bytes = [&[8][..], &length, exe, &[0]].concat();
    bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[test]
fn another_process_with_the_daemons_socket_is_not_obeyed() {
    let (bench, holder) = Bench::serving();
    let (_, daemon, _) = bench.who();
    let address = bench.address();
    let unwanted = bench.program("unwanted", "unwanted", "");
    let too_long = "00".repeat(40_000);
    for packet in [ENDING, GARBAGE, "", &replace(&unwanted), &too_long] {
        assert_eq!(bench.tell(&format!("leak {packet}")), "sent");
    }
    // The holder answers in order, so it has seen all of that.
    assert_eq!(bench.address(), address);
    assert_eq!(bench.who(), ("v1".into(), daemon, holder));
    assert!(!bench.log().iter().any(|line| line.starts_with("unwanted")), "{:?}", bench.log());

    // The daemon itself is obeyed.
    assert_eq!(bench.tell(&format!("send {}", replace(&unwanted))), "sent");
    bench.logged("unwanted ready");
}
