use proptest::prelude::*;

use super::*;

/// A program of 64 bits as a linker would begin it: one segment, no sections.
fn elf64(machine: u16, segment: (u64, u64)) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 56];
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &3u16.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &1u16.to_le_bytes());
    put(64 + 8, &segment.0.to_le_bytes());
    put(64 + 32, &segment.1.to_le_bytes());
    bytes
}

fn with(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

/// A program of 32 bits and the other byte order, with one segment and one section.
fn elf32() -> Vec<u8> {
    let mut bytes = vec![0; 52 + 32];
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 2]);
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &2u16.to_be_bytes());
    put(18, &20u16.to_be_bytes());
    put(28, &52u32.to_be_bytes());
    put(32, &1000u32.to_be_bytes());
    for (at, value) in [(42, 32u16), (44, 1), (46, 40), (48, 1)] {
        put(at, &value.to_be_bytes());
    }
    put(52 + 4, &100u32.to_be_bytes());
    put(52 + 16, &200u32.to_be_bytes());
    bytes
}

fn mach_o(segment: (u64, u64)) -> Vec<u8> {
    let mut bytes = vec![0; 32 + 8 + 72];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    for (at, value) in [(0, 0xfeed_facf_u32), (4, 0x0100_000c), (12, 2), (20, 80)] {
        put(at, &value.to_le_bytes());
    }
    for (at, value) in [(32, 0x1b_u32), (36, 8), (40, 0x19), (44, 72)] {
        put(at, &value.to_le_bytes());
    }
    put(40 + 40, &segment.0.to_le_bytes());
    put(40 + 48, &segment.1.to_le_bytes());
    bytes
}

fn check(bytes: &[u8], expected: Result<(&str, u64), HeaderError>) {
    let found = Header::read(&bytes[..bytes.len().min(HEAD)]);
    let found = found.map(|header| {
        let start = usize::try_from(header.parts.offset).unwrap();
        let len = usize::try_from(header.parts.len).unwrap();
        (header.platform.to_string(), header.extent(&bytes[start..start + len]))
    });
    let found = found.as_ref().map(|(platform, extent)| (platform.as_str(), *extent));
    assert_eq!(found.map_err(|error| *error), expected);
}

#[test]
fn a_program_says_what_it_is_for_and_how_long_it_is() {
    check(&elf64(62, (0, 10)), Ok(("x86-64 (64-bit ELF)", 120)));
    check(&elf64(183, (4096, 1000)), Ok(("arm64 (64-bit ELF)", 5096)));
    check(&elf64(9999, (u64::MAX, 2)), Ok(("processor 9999 (64-bit ELF)", u64::MAX)));
    check(&elf32(), Ok(("processor 20 (32-bit ELF, big-endian)", 1040)));
    check(&mach_o((16384, 7)), Ok(("arm64 (Mach-O)", 16391)));
}

#[test]
fn its_sections_are_a_part_of_it() {
    let sections = with(elf64(62, (0, 10)), 40, &9000u64.to_le_bytes());
    let sections = with(sections, 58, &64u16.to_le_bytes());
    check(&with(sections, 60, &10u16.to_le_bytes()), Ok(("x86-64 (64-bit ELF)", 9640)));
}

#[test]
fn what_is_no_program_is_told() {
    use HeaderError as E;
    let good = elf64(62, (0, 10));
    check(b"", Err(E::Foreign));
    check(b"#!/bin/sh\nexit 0\n", Err(E::Foreign));
    check(b"\x7fELF", Err(E::Foreign));
    check(&good[..20], Err(E::Senseless));
    check(&good[..60], Err(E::Senseless));
    check(&with(good.clone(), 4, &[3]), Err(E::Senseless));
    check(&with(good.clone(), 5, &[0]), Err(E::Senseless));
    check(&with(good.clone(), 16, &[1, 0]), Err(E::NotExecutable));
    check(&with(good.clone(), 54, &[55, 0]), Err(E::Senseless));
    check(&with(good.clone(), 56, &[0, 0]), Err(E::Senseless));
    check(&with(good, 32, &[0xff; 8]), Err(E::Senseless));
    check(&with(mach_o((0, 1)), 12, &[6]), Err(E::NotExecutable));
    check(&with(mach_o((0, 1)), 20, &[0xff; 4]), Err(E::Senseless));
}

#[test]
fn the_program_that_runs_this_is_whole() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let header = Header::read(&bytes[..HEAD]).unwrap();
    let start = usize::try_from(header.parts.offset).unwrap();
    let len = usize::try_from(header.parts.len).unwrap();
    let extent = header.extent(&bytes[start..start + len]);
    let len = u64::try_from(bytes.len()).unwrap();
    assert!(extent <= len, "{extent} of {len}");
    assert!(extent + 4096 > len, "what is cut off is missed: {extent} of {len}");
}

proptest! {
    #[test]
    fn any_bytes_get_an_answer(
        head in prop::collection::vec(any::<u8>(), 0..HEAD + 1),
        parts in prop::collection::vec(any::<u8>(), 0..400),
        magic in prop::sample::select(vec![
            vec![],
            vec![0x7f, b'E', b'L', b'F', 1, 1],
            vec![0x7f, b'E', b'L', b'F', 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            vec![0x7f, b'E', b'L', b'F', 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0],
            vec![0xcf, 0xfa, 0xed, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        ]),
    ) {
        let mut bytes = magic;
        let rest = head.get(bytes.len()..).unwrap_or_default();
        bytes.extend_from_slice(rest);
        if let Ok(header) = Header::read(&bytes) {
            prop_assert!(header.parts.len <= MAX_TABLE);
            prop_assert!(header.extent(&parts) >= header.parts.offset + header.parts.len);
        }
    }

    #[test]
    fn a_real_header_with_any_bytes_changed_gets_an_answer(
        changes in prop::collection::vec((0..120usize, any::<u8>()), 0..6),
        mach in any::<bool>(),
    ) {
        let mut bytes = if mach { mach_o((0, 1)) } else { elf64(62, (0, 1)) };
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(header) = Header::read(&bytes[..HEAD]) {
            prop_assert!(header.extent(&bytes[HEAD..]) >= header.parts.offset);
        }
    }
}
