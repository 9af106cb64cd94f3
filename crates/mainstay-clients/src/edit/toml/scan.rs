//! One quick pass over a whole text: where its statements are, and whether something may be defined twice.
//!
//! Building a tree of a large file takes longer than all the rest of an edit, and most of the file has nothing to do
//! with it. So this pass checks the grammar and every value, and only what belongs to the container gets a tree. The
//! pass may doubt a text that is sound, never the other way round; what it doubts is left to the full parser.

mod names;

use std::borrow::Cow;
use std::ops::Range;

use toml_edit::Datetime;
use toml_parser::decoder::ScalarKind;
use toml_parser::parser::{Event, EventKind};
use toml_parser::{ParseError, Source};

use self::names::{Names, Scope};
use super::events::{MAX_DEPTH, events};
use super::lines::{Kind, Statement};

/// What a pass over a text has found.
pub(super) struct Scan {
    /// All statements, in their order.
    pub(super) statements: Vec<Statement>,
    /// Whether only the full parser can say that the text is sound.
    pub(super) is_doubtful: bool,
}

/// Passes over a text; nothing comes of one that breaks the grammar. Paths are kept of the statements that are within
/// `root`, the first key of their path, or of all of them.
pub(super) fn scan(text: &str, root: Option<&str>) -> Option<Scan> {
    let source = Source::new(text);
    let mut state = State {
        names: Names::with_room_for(text.len() / 32),
        scope: Some(Scope::ROOT),
        above: Vec::new(),
        scan: Scan { statements: Vec::new(), is_doubtful: false },
    };
    let mut is_whole = true;
    let read = events(source, |events| {
        let mut scanner = Scanner { source, events: events.iter(), root, state: &mut state };
        is_whole = is_whole && scanner.statements().is_some();
    });
    (read.is_ok() && is_whole).then_some(state.scan)
}

/// What is known at the end of some statements.
struct State<'t> {
    names: Names,
    /// That of the last header, unless it may be there twice.
    scope: Option<Scope>,
    /// The keys of the last header.
    above: Vec<Cow<'t, str>>,
    scan: Scan,
}

struct Scanner<'t, 's> {
    source: Source<'t>,
    events: std::slice::Iter<'s, Event>,
    root: Option<&'s str>,
    state: &'s mut State<'t>,
}

/// Of all methods, nothing means that the text breaks the grammar.
impl<'t> Scanner<'t, '_> {
    fn statements(&mut self) -> Option<()> {
        while let Some(event) = self.events.next() {
            match event.kind() {
                EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                    let (keys, end) = self.header()?;
                    self.push(event.span().start()..end, Kind::Header, &[], &keys);
                    let is_list = event.kind() == EventKind::ArrayTableOpen;
                    self.state.scope = self.state.names.header(&keys, is_list);
                    self.doubt_unless(self.state.scope.is_some() && !is_deep(&keys));
                    self.state.above = keys;
                }
                EventKind::SimpleKey => {
                    let keys = self.keys(event)?;
                    if let Some(scope) = self.state.scope {
                        self.define(scope, &keys);
                    }
                    let end = self.value()?;
                    let above = std::mem::take(&mut self.state.above);
                    self.push(event.span().start()..end, Kind::Key(keys.len()), &above, &keys);
                    self.state.above = above;
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn define(&mut self, scope: Scope, keys: &[Cow<str>]) {
        let is_new = self.state.names.key(scope, keys);
        self.doubt_unless(is_new && !is_deep(keys));
    }

    fn doubt_unless(&mut self, is_sound: bool) {
        self.state.scan.is_doubtful |= !is_sound;
    }

    fn push(&mut self, span: Range<usize>, kind: Kind, above: &[Cow<str>], keys: &[Cow<str>]) {
        let is_near = self
            .root
            .is_none_or(|root| above.first().or(keys.first()).is_some_and(|key| key == root));
        let path = if is_near {
            above.iter().chain(keys).map(|key| key.clone().into_owned()).collect()
        } else {
            Vec::new()
        };
        self.state.scan.statements.push(Statement { span, path, kind });
    }

    /// The keys of a header that has been opened, and where it ends.
    fn header(&mut self) -> Option<(Vec<Cow<'t, str>>, usize)> {
        let mut keys = Vec::with_capacity(2);
        loop {
            let event = self.events.next()?;
            match event.kind() {
                EventKind::SimpleKey => keys.push(self.name(event)?),
                EventKind::KeySep => {}
                EventKind::StdTableClose | EventKind::ArrayTableClose => {
                    return Some((keys, event.span().end()));
                }
                _ => return None,
            }
        }
    }

    /// The keys of a statement up to its equals sign.
    fn keys(&mut self, first: &Event) -> Option<Vec<Cow<'t, str>>> {
        let mut keys = vec![self.name(first)?];
        loop {
            let event = self.events.next()?;
            match event.kind() {
                EventKind::SimpleKey => keys.push(self.name(event)?),
                EventKind::KeySep => {}
                EventKind::KeyValSep => return Some(keys),
                _ => return None,
            }
        }
    }

    fn name(&self, event: &Event) -> Option<Cow<'t, str>> {
        let mut name = Cow::Borrowed("");
        let mut wrong: Option<ParseError> = None;
        self.source.get(event)?.decode_key(&mut name, &mut wrong);
        wrong.is_none().then_some(name)
    }

    /// Goes behind a value, to where it ends.
    fn value(&mut self) -> Option<usize> {
        let event = self.events.next()?;
        match event.kind() {
            EventKind::Scalar => {
                let is_sound = self.means_something(event)?;
                self.doubt_unless(is_sound);
                Some(event.span().end())
            }
            EventKind::ArrayOpen => self.list(),
            EventKind::InlineTableOpen => self.table(),
            _ => None,
        }
    }

    fn list(&mut self) -> Option<usize> {
        loop {
            match self.events.as_slice().first()?.kind() {
                EventKind::ArrayClose => return Some(self.events.next()?.span().end()),
                EventKind::ValueSep => drop(self.events.next()),
                _ => drop(self.value()?),
            }
        }
    }

    fn table(&mut self) -> Option<usize> {
        let scope = self.state.names.nameless();
        loop {
            let event = self.events.next()?;
            match event.kind() {
                EventKind::InlineTableClose => return Some(event.span().end()),
                EventKind::ValueSep => {}
                EventKind::SimpleKey => {
                    let keys = self.keys(event)?;
                    self.define(scope, &keys);
                    self.value()?;
                }
                _ => return None,
            }
        }
    }

    /// Whether a plain value means something. What it means is not kept.
    fn means_something(&self, event: &Event) -> Option<bool> {
        let mut text = Cow::Borrowed("");
        let mut wrong: Option<ParseError> = None;
        let kind = self.source.get(event)?.decode_scalar(&mut text, &mut wrong);
        let is_sound = match kind {
            ScalarKind::String | ScalarKind::Boolean(_) => true,
            ScalarKind::Integer(radix) => i64::from_str_radix(&text, radix.value()).is_ok(),
            ScalarKind::Float => text.parse::<f64>().is_ok_and(f64::is_finite),
            ScalarKind::DateTime => text.parse::<Datetime>().is_ok(),
        };
        wrong.is_none().then_some(is_sound)
    }
}

/// Whether a path may be longer than the full parser takes.
fn is_deep(path: &[Cow<str>]) -> bool {
    path.len() >= MAX_DEPTH as usize
}
