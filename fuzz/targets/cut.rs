//! Messages that were too long: their ends never tell of another request than the whole would.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_mcp::frame::{self, Frame};
use mainstay_mcp::upstream::cut::{self, Cut};

fuzz_target!(|input: &[u8]| {
    let Some((&place, text)) = input.split_first() else { return };
    let head = text.len() * usize::from(place) / 255;
    if text[..head].trim_ascii().is_empty() {
        // The head that is kept is a thousand bytes long.
        return;
    }
    // What lies between is lost; with nothing between, as much as possible is known.
    let read = cut::read(&text[..head], &text[head..]);
    let Ok(Frame::Response { id: Some(id), .. }) = frame::scan(text) else { return };
    match read {
        Cut::Answer(found) => assert_eq!(Some(found), id.as_u64()),
        Cut::SomeAnswer => {}
        Cut::NoAnswer => panic!("an answer was taken for something else"),
    }
});
