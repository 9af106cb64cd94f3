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
use toml_parser::parser::{Event, EventKind, RecursionGuard, ValidateWhitespace, parse_document};
use toml_parser::{ParseError, Source};

use self::names::{Names, Scope};
use super::lines::{Kind, Statement};

/// As deep as the full parser goes.
const MAX_DEPTH: u32 = 80;

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
    let events = events(source)?;
    let mut scanner = Scanner {
        source,
        events: events.iter(),
        root,
        names: Names::with_room_for(events.len() / 8),
        statements: Vec::new(),
    };
    let is_sound = scanner.document()?;
    Some(Scan { statements: scanner.statements, is_doubtful: !is_sound })
}

/// The text in the parser's terms, without white space and comments, if nothing is wrong with it.
fn events(source: Source) -> Option<Vec<Event>> {
    let tokens = source.lex().into_vec();
    let mut events: Vec<Event> = Vec::with_capacity(tokens.len());
    let mut wrong: Option<ParseError> = None;
    let mut checked = ValidateWhitespace::new(&mut events, source);
    parse_document(&tokens, &mut RecursionGuard::new(&mut checked, MAX_DEPTH), &mut wrong);
    events.retain(|event| {
        !matches!(event.kind(), EventKind::Whitespace | EventKind::Comment | EventKind::Newline)
    });
    wrong.is_none().then_some(events)
}

struct Scanner<'t, 'e> {
    source: Source<'t>,
    events: std::slice::Iter<'e, Event>,
    root: Option<&'e str>,
    names: Names<'t>,
    statements: Vec<Statement>,
}

/// Of all methods, nothing means that the text breaks the grammar, and false that something may be there twice.
impl<'t> Scanner<'t, '_> {
    fn document(&mut self) -> Option<bool> {
        let mut is_sound = true;
        let mut scope = Some(Scope::ROOT);
        let mut above = Vec::new();
        while let Some(event) = self.events.next() {
            match event.kind() {
                EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                    let (keys, end) = self.header()?;
                    let is_list = event.kind() == EventKind::ArrayTableOpen;
                    self.push(event.span().start()..end, Kind::Header, &[], &keys);
                    scope = self.names.header(&keys, is_list);
                    above = keys;
                }
                EventKind::SimpleKey => {
                    let keys = self.keys(event)?;
                    let at = self.statements.len();
                    let start = event.span().start();
                    self.push(start..start, Kind::Key(keys.len()), &above, &keys);
                    is_sound &= scope.is_some_and(|scope| self.names.key(scope, &keys));
                    let (end, sound) = self.value()?;
                    is_sound &= sound;
                    self.statements[at].span.end = end;
                }
                _ => return None,
            }
            is_sound &= scope.is_some();
        }
        Some(is_sound)
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
        self.statements.push(Statement { span, path, kind });
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

    /// Goes behind a value: where it ends, and whether it is sound.
    fn value(&mut self) -> Option<(usize, bool)> {
        let event = self.events.next()?;
        match event.kind() {
            EventKind::Scalar => Some((event.span().end(), self.is_scalar(event)?)),
            EventKind::ArrayOpen => self.list(),
            EventKind::InlineTableOpen => self.table(),
            _ => None,
        }
    }

    fn list(&mut self) -> Option<(usize, bool)> {
        let mut is_sound = true;
        loop {
            match self.events.as_slice().first()?.kind() {
                EventKind::ArrayClose => return Some((self.events.next()?.span().end(), is_sound)),
                EventKind::ValueSep => drop(self.events.next()),
                _ => is_sound &= self.value()?.1,
            }
        }
    }

    fn table(&mut self) -> Option<(usize, bool)> {
        let mut is_sound = true;
        let scope = self.names.nameless();
        loop {
            let event = self.events.next()?;
            match event.kind() {
                EventKind::InlineTableClose => return Some((event.span().end(), is_sound)),
                EventKind::ValueSep => {}
                EventKind::SimpleKey => {
                    let keys = self.keys(event)?;
                    is_sound &= self.names.key(scope, &keys);
                    is_sound &= self.value()?.1;
                }
                _ => return None,
            }
        }
    }

    /// Whether a plain value means something. What it means is not kept.
    fn is_scalar(&self, event: &Event) -> Option<bool> {
        let mut text = Cow::Borrowed("");
        let mut wrong: Option<ParseError> = None;
        let kind = self.source.get(event)?.decode_scalar(&mut text, &mut wrong);
        let means_something = match kind {
            ScalarKind::String | ScalarKind::Boolean(_) => true,
            ScalarKind::Integer(radix) => i64::from_str_radix(&text, radix.value()).is_ok(),
            ScalarKind::Float => text.parse::<f64>().is_ok_and(f64::is_finite),
            ScalarKind::DateTime => text.parse::<Datetime>().is_ok(),
        };
        wrong.is_none().then_some(means_something)
    }
}
