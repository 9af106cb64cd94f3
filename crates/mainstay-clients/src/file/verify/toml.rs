//! TOML, compared statement by statement as it is written.
//!
//! A statement is a header, or a key with its value. If those outside of the entry are the same in the same
//! order, so is what they mean, because what a statement means depends on the header above it alone. What
//! could clash with the entry begins with the same key; that part is read as values once more.

use std::borrow::Cow;

use toml_parser::parser::{Event, EventKind};
use toml_parser::{ParseError, Source};

use super::Harm;
use crate::edit::toml::events::events;

/// Whether two texts differ in what is within `path` only.
pub(super) fn same(before: &str, after: &str, path: &[&str]) -> Result<bool, Harm> {
    let (shared, start) = Sorter::of_shared(before, after, path);
    let (mut old, mut new) = (start.clone(), start);
    old.read(&before[shared..]).map_err(|error| broken("old", &error))?;
    new.read(&after[shared..]).map_err(|error| broken("new", &error))?;
    let near = toml::from_str::<toml::Table>(&new.near);
    near.map_err(|error| Harm::Toml { which: "new", problem: error.message().to_owned() })?;
    Ok(old.others == new.others)
}

fn broken(which: &'static str, error: &ParseError) -> Harm {
    Harm::Toml { which, problem: error.description().to_owned() }
}

/// How many events the first statement, or the first member between braces, has.
fn length(events: &[Event]) -> usize {
    let mut depth = 0_usize;
    let mut has_value = false;
    for (at, event) in events.iter().enumerate() {
        match event.kind() {
            EventKind::StdTableClose | EventKind::ArrayTableClose => return at + 1,
            EventKind::ArrayOpen | EventKind::InlineTableOpen => depth += 1,
            EventKind::ArrayClose | EventKind::InlineTableClose => {
                depth = depth.saturating_sub(1);
                has_value = true;
            }
            EventKind::Scalar => has_value = true,
            _ => {}
        }
        if has_value && depth == 0 {
            return at + 1;
        }
    }
    events.len()
}

/// Tells statements of a text apart.
#[derive(Clone)]
struct Sorter<'t, 'p> {
    source: Source<'t>,
    path: &'p [&'p str],
    /// The keys of the last header.
    above: Vec<Cow<'t, str>>,
    /// The last plain value, if it is the last of all.
    last: Option<Event>,
    /// Statements outside of the entry, as they are written.
    others: Vec<&'t str>,
    /// Statements that begin with the same key as the entry, and the entry, as a text of their own.
    near: String,
}

impl<'t, 'p> Sorter<'t, 'p> {
    fn new(path: &'p [&'p str]) -> Self {
        let (above, others) = (Vec::new(), Vec::new());
        Self { source: Source::new(""), path, above, last: None, others, near: String::new() }
    }

    /// Reads the lines that two texts begin with, once for both, and answers with their length. Lines that are no whole
    /// statements are not read.
    fn of_shared(before: &'t str, after: &'t str, path: &'p [&'p str]) -> (usize, Self) {
        let same = before.bytes().zip(after.bytes()).take_while(|(old, new)| old == new).count();
        let end = before.as_bytes()[..same].iter().rposition(|byte| *byte == b'\n');
        let lines = end.map_or(0, |end| end + 1);
        let mut sorter = Self::new(path);
        if sorter.read(&before[..lines]).is_err() || !sorter.is_closed() {
            return (0, Self::new(path));
        }
        sorter.others.clear();
        (lines, sorter)
    }

    /// Whether the last value that was read is a whole one. A text over several lines that has no end is seen only when it
    /// is decoded.
    fn is_closed(&self) -> bool {
        let mut wrong: Option<ParseError> = None;
        let last = self.last.and_then(|last| self.source.get(last));
        last.map(|value| value.decode_scalar(&mut (), &mut wrong));
        wrong.is_none()
    }

    /// Goes on with a text.
    fn read(&mut self, text: &'t str) -> Result<(), ParseError> {
        self.source = Source::new(text);
        events(self.source, |events| self.take(events))
    }

    fn take(&mut self, events: &[Event]) {
        if let Some(last) = events.last() {
            self.last = Some(*last).filter(|last| last.kind() == EventKind::Scalar);
        }
        let mut rest = events;
        while let Some(first) = rest.first() {
            let (statement, behind) = rest.split_at(length(rest));
            if first.kind() == EventKind::SimpleKey {
                let above = std::mem::take(&mut self.above);
                self.sort(statement, &above);
                self.above = above;
            } else {
                self.above = self.keys(statement);
                self.sort(statement, &[]);
            }
            rest = behind;
        }
    }

    fn sort(&mut self, statement: &[Event], above: &[Cow<'t, str>]) {
        let written = self.written(statement);
        if !self.is_near(statement, above) {
            return self.others.push(written);
        }
        self.near.push_str(written);
        self.near.push('\n');
        let keys = self.keys(statement);
        let way = || above.iter().chain(&keys);
        let shared = way().zip(self.path).take_while(|(key, part)| key == part).count();
        if shared == self.path.len() {
            return;
        }
        let open = statement.iter().position(|event| event.kind() == EventKind::InlineTableOpen);
        match open {
            // Braces on the way to the entry may come and go with it; what else is in them may not.
            Some(open) if shared == way().count() && is_whole(statement, open) => {
                let inner = &statement[open + 1..statement.len() - 1];
                let above: Vec<_> = way().cloned().collect();
                self.sort_members(inner, &above, self.written(&statement[..open]));
            }
            Some(_) | None => self.others.push(written),
        }
    }

    /// Whether a statement begins with the same key as the entry.
    fn is_near(&self, statement: &[Event], above: &[Cow<'t, str>]) -> bool {
        let own = || statement.iter().find(|event| event.kind() == EventKind::SimpleKey);
        let first = above.first().cloned().or_else(|| own().map(|key| self.name(key)));
        first.as_deref() == self.path.first().copied()
    }

    fn sort_members(&mut self, inner: &[Event], above: &[Cow<'t, str>], whose: &'t str) {
        let near = self.near.len();
        let count = self.others.len();
        let mut rest = inner;
        while let Some(first) = rest.first() {
            if first.kind() == EventKind::ValueSep {
                rest = &rest[1..];
                continue;
            }
            let (member, behind) = rest.split_at(length(rest));
            self.sort(member, above);
            rest = behind;
        }
        if self.others.len() > count {
            self.others.insert(count, whose);
        }
        // They are part of a statement that is there already.
        self.near.truncate(near);
    }

    fn keys(&self, statement: &[Event]) -> Vec<Cow<'t, str>> {
        let is_key = |event: &&Event| {
            !matches!(
                event.kind(),
                EventKind::KeyValSep | EventKind::StdTableClose | EventKind::ArrayTableClose
            )
        };
        let keys = statement.iter().take_while(is_key);
        keys.filter(|event| event.kind() == EventKind::SimpleKey)
            .map(|key| self.name(key))
            .collect()
    }

    fn name(&self, key: &Event) -> Cow<'t, str> {
        let mut name = Cow::Borrowed("");
        if let Some(raw) = self.source.get(key) {
            raw.decode_key(&mut name, &mut ());
        }
        name
    }

    fn written(&self, events: &[Event]) -> &'t str {
        match (events.first(), events.last()) {
            (Some(first), Some(last)) => {
                &self.source.input()[first.span().start()..last.span().end()]
            }
            (None, _) | (_, None) => "",
        }
    }
}

/// Whether a statement's value is the one that opens here.
fn is_whole(statement: &[Event], open: usize) -> bool {
    statement[open - 1].kind() == EventKind::KeyValSep
}
