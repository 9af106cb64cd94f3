//! An edit of a text alone: pure functions, no file.

use mainstay_clients::Target;
use mainstay_clients::edit::ParsedText;
use serde::Serialize;

use super::{ClientBenchError, Cost, Document, Stopwatch};

#[derive(Debug, Serialize)]
pub(super) struct Times {
    /// To read the text, find out what has to be created, and put the entry in place.
    pub(super) add: Cost,
    /// To read it again and take the entry out.
    pub(super) remove: Cost,
}

/// Adds an entry and removes it, from the same text again and again.
pub(super) fn measure(document: &Document, edits: u32) -> Result<Times, ClientBenchError> {
    let Document { client, text, .. } = document;
    let place = client.place(text)?;
    let fields = client.entry(&target())?;
    let (mut add, mut remove) = (Stopwatch::default(), Stopwatch::default());
    for _ in 0..edits {
        let (created, added) = add.time(|| {
            let reading = ParsedText::parse(text, &place)?;
            let added = reading.upsert("time", &fields, client.owned)?;
            Ok::<_, ClientBenchError>((reading.to_create()?, added))
        })?;
        let removed =
            remove.time(|| ParsedText::parse(&added, &place)?.remove("time", &created))?;
        if removed != *text || added.len() <= text.len() {
            return Err(ClientBenchError::Harmed { client: client.id, what: "the text changed" });
        }
    }
    Ok(Times { add: add.cost(), remove: remove.cost() })
}

/// What every entry here leads to.
pub(super) fn target() -> Target {
    Target::Http { url: "http://127.0.0.1:7433/time/mcp".to_owned() }
}
