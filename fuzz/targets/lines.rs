//! The frame reader: however a server's output is cut up, the same lines come out, and of a line
//! that is too long its two ends.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

mod lines {
    include!(concat!(env!("OUT_DIR"), "/lines.rs"));
}

use lines::{Line, LineSplitter, MAX_LINE};

/// Stands for nearly as much as a line can have.
const FILLER: u8 = 0x07;

fuzz_target!(|input: &[u8]| {
    let Some((&size, script)) = input.split_first() else { return };
    let size = usize::from(size).max(1);
    let mut splitter = LineSplitter::default();
    let mut lines = Vec::new();
    let mut text = Vec::new();
    for piece in script.chunks(size) {
        let piece = filled(piece);
        text.extend_from_slice(&piece);
        lines.extend(splitter.push(piece.into()));
    }
    lines.extend(splitter.push(Bytes::from_static(b"\n")));
    assert_eq!(splitter.pending(), 0);
    assert_eq!(lines, expected(&text));
});

fn filled(piece: &[u8]) -> Vec<u8> {
    let mut filled = Vec::new();
    for &byte in piece {
        if byte == FILLER {
            filled.resize(filled.len() + MAX_LINE - 2, b'x');
        } else {
            filled.push(byte);
        }
    }
    filled
}

fn expected(text: &[u8]) -> Vec<Line> {
    const END: usize = 1024;
    let line = |line: &[u8]| {
        if line.len() > MAX_LINE {
            let ends = [&line[..END], b"\n", &line[line.len() - END..]].concat();
            return Some(Line::TooLong { length: line.len(), ends: ends.into() });
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (!line.is_empty()).then(|| Line::Whole(Bytes::copy_from_slice(line)))
    };
    text.split(|&byte| byte == b'\n').filter_map(line).collect()
}
