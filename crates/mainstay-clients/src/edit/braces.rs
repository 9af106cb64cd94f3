//! Members between braces: a JSON object, or an inline table of TOML.
//!
//! [`Members::append`] and [`Members::remove`] are inverse operations, by these rules:
//!
//! - A new member follows the last one and the comments on its line, so that no existing comment appears to belong to
//!   the new member.
//! - A member on a line of its own is removed from the line break before it; any other from the end of what
//!   precedes it, so that a comment there stays.
//! - The comma between the last two members is added and removed with the last one, unless there is a trailing comma.
//!
//! The edit functions of `jsonc-parser`'s CST and of `toml_edit` are not used, because they change foreign bytes.
//! Appending to `{"mcpServers": {"a": 1}}` in the CST moves `"a": 1` to a line of its own, and removing the new member
//! does not move it back. `toml_edit` writes `\r\n` as `\n`, drops a byte order mark, ends the last line, and moves keys:
//! `a.b = 1`, `z = 1`, `a.c = 2` is written with `z` last.

use std::ops::Range;

use super::removed::{Gap, Removed, neighbours};
use super::text::{self, Kind, Piece, Splice, apply, pieces};
use super::value::Value;
use super::{Created, EditError, Position, json, toml};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    Json,
    Toml,
}

impl Syntax {
    fn member(self, key: &str, value: &Value, style: &Style) -> String {
        match self {
            Self::Json => json::write::member(key, value, style),
            Self::Toml => toml::write::field(key, value),
        }
    }

    fn value(self, value: &Value, style: &Style) -> String {
        match self {
            Self::Json => json::write::value(value, style),
            Self::Toml => toml::write::value(value),
        }
    }
}

/// How a file is formatted.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) newline: &'static str,
    /// One step of indentation.
    pub(super) unit: String,
    /// Whether new members of empty braces stay on one line.
    pub(super) flat: bool,
    /// Whether a space follows colons and commas within a line.
    pub(super) spaced: bool,
}

/// How one value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Style {
    /// On one line.
    Line { spaced: bool },
    /// On several lines; `indent` is that of the line in which the value begins.
    Lines { newline: &'static str, indent: String, unit: String },
}

impl Style {
    /// What precedes a value.
    fn lead(&self) -> String {
        match self {
            Self::Line { spaced } => if *spaced { " " } else { "" }.to_owned(),
            Self::Lines { newline, indent, .. } => format!("{newline}{indent}"),
        }
    }
}

/// The members between two braces, as byte ranges of a text.
#[derive(Debug)]
pub(super) struct Members<'t> {
    pub(super) text: &'t str,
    pub(super) syntax: Syntax,
    /// What is between the braces.
    pub(super) inner: Range<usize>,
    /// In the order of the text.
    pub(super) items: Vec<Member>,
    /// The indentation of the line with the opening brace.
    pub(super) margin: &'t str,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: String,
    /// From the key to the end of the value.
    pub(super) range: Range<usize>,
    pub(super) value: Range<usize>,
    /// Whether `key` is the first segment of a dotted key. Other members may then begin with the same one.
    pub(super) is_dotted: bool,
}

/// The comma and the comments that follow the value of a member.
struct Tail {
    comma: Option<usize>,
    end: usize,
}

/// Applies changes of fields to the entry that `read` finds in a text.
pub(super) fn update(
    text: &str,
    layout: &Layout,
    changes: &[(&str, Option<&Value>)],
    read: impl Fn(&str) -> Result<Members<'_>, EditError>,
) -> Result<String, EditError> {
    let mut edited = text.to_owned();
    for (field, value) in changes {
        let members = read(&edited)?;
        let splices = match (members.position(field)?, value) {
            (Some(index), Some(value)) => {
                let written = members.syntax.value(value, &members.style_of(index, layout));
                vec![Splice::replace(members.items[index].value.clone(), written)]
            }
            (Some(index), None) => members.remove(index),
            (None, Some(value)) => members.append(layout, field, value),
            (None, None) => Vec::new(),
        };
        edited = apply(&edited, splices);
    }
    Ok(edited)
}

/// Removes the member `name` of the last of `levels`, which are nested in each other. Braces that were created for it and
/// contain nothing else are removed too. `keys` is the path to the last level.
pub(super) fn remove_nested(
    levels: &[Members],
    keys: &[&str],
    name: &str,
    created: &Created,
) -> Result<Vec<Splice>, EditError> {
    let mut level = levels.len() - 1;
    let outermost = level.saturating_sub(created.containers);
    let mut key = name;
    loop {
        let members = &levels[level];
        let index = members.position(key)?.expect("the path leads through this member");
        if !members.holds_only(index) {
            return Ok(members.remove(index));
        }
        if level == outermost {
            let gap = created.gap.as_deref().unwrap_or("");
            return Ok(vec![Splice::replace(members.inner.clone(), gap)]);
        }
        key = keys[keys.len() + level - levels.len()];
        level -= 1;
    }
}

impl Members<'_> {
    /// The index of the member with this key, which must be unique.
    pub(super) fn position(&self, key: &str) -> Result<Option<usize>, EditError> {
        let at = |member: &Member| Position::of(self.text, member.range.start);
        let mut found = self.items.iter().enumerate().filter(|(_, member)| member.key == key);
        match (found.next(), found.next()) {
            (Some((_, dotted)), _) if dotted.is_dotted => {
                Err(EditError::DottedInBraces { key: key.to_owned(), at: at(dotted) })
            }
            (Some((_, first)), Some((_, second))) => Err(EditError::Duplicate {
                key: key.to_owned(),
                first: at(first).line,
                second: at(second).line,
            }),
            (first, _) => Ok(first.map(|(index, _)| index)),
        }
    }

    pub(super) fn append(&self, layout: &Layout, key: &str, value: &Value) -> Vec<Splice> {
        let style = self.style_of_new(layout);
        let member = self.syntax.member(key, value, &style);
        match self.items.len().checked_sub(1) {
            Some(last) => self.append_after(last, &style, &member),
            None => vec![self.fill(&style, &member)],
        }
    }

    pub(super) fn remove(&self, index: usize) -> Vec<Splice> {
        let tail = self.tail(index);
        let is_last = index + 1 == self.items.len();
        let mut splices = Vec::new();
        if is_last
            && tail.comma.is_none()
            && let Some(comma) = index.checked_sub(1).and_then(|before| self.tail(before).comma)
        {
            splices.push(Splice::delete(comma..comma + 1));
        }
        splices.push(Splice::delete(self.extent(index, &tail)));
        splices
    }

    pub(super) fn keys(&self) -> Vec<&str> {
        self.items.iter().map(|member| member.key.as_str()).collect()
    }

    /// What [`Members::restore`] needs to put the member at `index` back; `left` is the text without it.
    pub(super) fn removed(&self, index: usize, left: &str, absent: &[&Removed]) -> Option<Removed> {
        let (item, tail) = (&self.items[index].range, self.tail(index));
        let extent = self.extent(index, &tail);
        let behind = |range: Range<usize>| match tail.comma {
            Some(comma) if range.contains(&comma) => {
                [&self.text[range.start..comma], &self.text[comma + 1..range.end]].concat()
            }
            Some(_) | None => self.text[range].to_owned(),
        };
        let (is_first, is_last) = (index == 0, index + 1 == self.items.len());
        let start = if is_first { self.inner.start } else { self.items[index - 1].range.end };
        let end = self.limit(index);
        let (before, after) = neighbours(&self.keys(), index, absent);
        Some(Removed {
            name: self.items[index].key.clone(),
            text: self.text[item.clone()].to_owned(),
            lead: self.text[extent.start..item.start].to_owned(),
            tail: behind(item.end..extent.end),
            above: self
                .comment(start..extent.start)
                .map_or("", |piece| &self.text[piece.start..piece.end])
                .to_owned(),
            before,
            after,
            gap: Gap {
                with: self.text[start..end].to_owned(),
                without: left.get(start..left.len() - (self.text.len() - end))?.to_owned(),
                is_trailed: self.tail(self.items.len() - 1).comma.is_some(),
                is_first,
                is_last,
            },
        })
    }

    /// Puts a member back after the first `slot` ones.
    pub(super) fn restore(
        &self,
        slot: usize,
        removed: &Removed,
        absent: &[&Removed],
    ) -> Vec<Splice> {
        let last = slot.checked_sub(1);
        let is_last = slot == self.items.len();
        let start = last.map_or(self.inner.start, |last| self.items[last].range.end);
        let end = self.items.get(slot).map_or(self.inner.end, |next| next.range.start);
        if let Some(gap) = removed.exact(&self.text[start..end], slot == 0, is_last) {
            return vec![Splice::replace(start..end, gap)];
        }
        let Removed { lead, text, tail, .. } = removed;
        let newline = text::newline_of(self.text);
        let breaks = |text: &str| text::first_newline(text).is_some();
        let mut splices = Vec::new();
        let (at, has_comma) = match last.map(|last| (&self.items[last].range, self.tail(last))) {
            Some((_, Tail { comma: Some(_), end })) => (end, true),
            Some((last, Tail { comma: None, end })) => {
                splices.push(Splice::insert(last.end, ","));
                (end, false)
            }
            None => {
                let is_later =
                    |piece: &&Piece| removed.goes_above(&self.text[piece.start..piece.end], absent);
                let pieces = self.pieces(start..end);
                let later = pieces.iter().find(is_later).map_or(end, |piece| piece.start);
                (self.opening(later), !is_last || removed.gap.is_trailed)
            }
        };
        let is_above = |piece: &Piece| {
            piece.kind.is_comment()
                && removed.goes_below(&self.text[piece.start..piece.end], absent)
        };
        let above = self.pieces(start..end).into_iter().rfind(is_above);
        let at = above.map_or(at, |piece| at.max(piece.end));
        let comma = if has_comma { "," } else { "" };
        let mut member = format!("{lead}{text}{comma}{tail}");
        // Without a line break, the member would become part of a line comment.
        let is_commented =
            |range| self.pieces(range).last().is_some_and(|piece| piece.kind == Kind::LineComment);
        if is_commented(start..at) && !member.starts_with(['\n', '\r']) {
            member.insert_str(0, newline);
        }
        let rest = &self.text[at..end];
        let closing = match (self.items.is_empty(), breaks(lead)) {
            (true, true) if !breaks(rest) => format!("{newline}{}", self.margin),
            (true, false) if rest.is_empty() => lead.clone(),
            _ => String::new(),
        };
        member.push_str(&closing);
        let own = pieces(tail, 0..tail.len(), self.syntax);
        let ends_in_comment = own.last().is_some_and(|piece| piece.kind == Kind::LineComment);
        if ends_in_comment
            && !breaks(&closing)
            && !rest.trim_start_matches([' ', '\t']).starts_with(['\n', '\r'])
        {
            member.push_str(newline);
        }
        splices.push(Splice::insert(at, member));
        splices
    }

    /// The comment at the end of a range, ignoring white space.
    fn comment(&self, range: Range<usize>) -> Option<Piece> {
        let is_blank = |kind| matches!(kind, Kind::Space | Kind::Newline);
        let last = self.pieces(range).into_iter().rfind(|piece| !is_blank(piece.kind));
        last.filter(|piece| piece.kind.is_comment())
    }

    /// Where the first member is inserted: after the comments in the line of the brace, or after all of them if there
    /// is nothing else.
    fn opening(&self, end: usize) -> usize {
        let pieces = self.pieces(self.inner.start..end);
        let line = pieces.iter().position(|piece| piece.kind == Kind::Newline);
        let own = match (self.items.is_empty(), line) {
            (true, _) => &pieces[..],
            (false, Some(newline)) => &pieces[..newline],
            (false, None) => &[],
        };
        own.iter()
            .rfind(|piece| piece.kind.is_comment())
            .map_or(self.inner.start, |piece| piece.end)
    }

    /// Whether the braces contain this member and otherwise only commas and white space.
    pub(super) fn holds_only(&self, index: usize) -> bool {
        let item = &self.items[index].range;
        self.items.len() == 1
            && !self.has_comment(self.inner.start..item.start)
            && !self.has_comment(item.end..self.inner.end)
    }

    /// The white space between the braces, if there is nothing else.
    pub(super) fn gap(&self) -> Option<&str> {
        (self.items.is_empty() && !self.has_comment(self.inner.clone()))
            .then(|| &self.text[self.inner.clone()])
    }

    /// How the member at `index` is formatted.
    pub(super) fn style_of(&self, index: usize, layout: &Layout) -> Style {
        match text::own_line_indent(self.text, self.items[index].range.start) {
            Some(indent) => self.lines(indent.to_owned(), layout),
            None => Style::Line { spaced: layout.spaced },
        }
    }

    fn style_of_new(&self, layout: &Layout) -> Style {
        if self.in_lines(layout) {
            let indent = self
                .indent()
                .map_or_else(|| format!("{}{}", self.margin, self.unit(layout)), str::to_owned);
            self.lines(indent, layout)
        } else {
            Style::Line { spaced: layout.spaced }
        }
    }

    fn lines(&self, indent: String, layout: &Layout) -> Style {
        Style::Lines {
            newline: text::first_newline(&self.text[self.inner.clone()]).unwrap_or(layout.newline),
            indent,
            unit: self.unit(layout).to_owned(),
        }
    }

    /// Whether a new member gets a line of its own.
    fn in_lines(&self, layout: &Layout) -> bool {
        let breaks = |range| {
            self.pieces(range)
                .iter()
                .any(|piece| matches!(piece.kind, Kind::Newline | Kind::LineComment))
        };
        match self.items.len().checked_sub(1) {
            Some(last) => {
                breaks(self.lead(last)..self.items[last].range.start)
                    || breaks(self.items[last].range.end..self.inner.end)
            }
            None if self.gap().is_some() => !layout.flat,
            None => breaks(self.inner.clone()),
        }
    }

    /// The indentation of the last member that begins a line.
    fn indent(&self) -> Option<&str> {
        self.items.iter().rev().find_map(|item| text::own_line_indent(self.text, item.range.start))
    }

    fn unit<'l>(&'l self, layout: &'l Layout) -> &'l str {
        self.indent()
            .and_then(|indent| indent.strip_prefix(self.margin))
            .filter(|unit| !unit.is_empty())
            .unwrap_or(&layout.unit)
    }

    fn append_after(&self, last: usize, style: &Style, member: &str) -> Vec<Splice> {
        let tail = self.tail(last);
        let lead = style.lead();
        let comma = match (style, tail.comma) {
            (_, Some(_)) => return vec![Splice::insert(tail.end, format!("{lead}{member},"))],
            (Style::Lines { .. }, None) => self.items[last].range.end,
            (Style::Line { .. }, None) => tail.end,
        };
        vec![Splice::insert(comma, ","), Splice::insert(tail.end, format!("{lead}{member}"))]
    }

    fn fill(&self, style: &Style, member: &str) -> Splice {
        let lead = style.lead();
        let comment =
            self.pieces(self.inner.clone()).into_iter().rfind(|one| one.kind.is_comment());
        match (style, comment) {
            (Style::Lines { newline, .. }, None) => {
                let margin = self.margin;
                Splice::replace(self.inner.clone(), format!("{lead}{member}{newline}{margin}"))
            }
            (Style::Line { .. }, None) => {
                Splice::replace(self.inner.clone(), format!("{lead}{member}{lead}"))
            }
            (Style::Lines { .. }, Some(comment)) => {
                Splice::insert(comment.end, format!("{lead}{member}"))
            }
            (Style::Line { .. }, Some(comment)) => {
                Splice::insert(comment.end, format!(" {member}"))
            }
        }
    }

    /// What is removed with a member: its line if it has one; else the space before it or, if it begins a line that
    /// others continue, the space after it.
    fn extent(&self, index: usize, tail: &Tail) -> Range<usize> {
        let item = &self.items[index].range;
        let is_last = index + 1 == self.items.len();
        let before = self.pieces(self.lead(index)..item.start);
        let behind = self.pieces(tail.end..self.limit(index));
        let line_ends = first_solid(behind.iter()) == Some(Kind::Newline);
        let Some(newline) = before.iter().rposition(|piece| piece.kind == Kind::Newline) else {
            let solid = before.iter().rfind(|piece| piece.kind != Kind::Space);
            return solid.map_or(self.lead(index), |piece| piece.end)..tail.end;
        };
        // What follows must not become part of a line comment.
        let after_line_comment =
            first_solid(before[..newline].iter().rev()) == Some(Kind::LineComment);
        if line_ends || (is_last && !after_line_comment) {
            before[newline].start..tail.end
        } else if is_last {
            item.start..tail.end
        } else {
            let space = behind.first().filter(|piece| piece.kind == Kind::Space);
            item.start..space.map_or(tail.end, |piece| piece.end)
        }
    }

    /// The comma of a member, and the end of its comments: those before the comma, and those after it if they end the
    /// line. Without a comma: those up to the end of the line.
    fn tail(&self, index: usize) -> Tail {
        let item_end = self.items[index].range.end;
        let pieces = self.pieces(item_end..self.limit(index));
        let comma = pieces.iter().position(|piece| piece.kind == Kind::Comma);
        let (from, rest) = match comma {
            Some(at) => (pieces[at].end, &pieces[at + 1..]),
            None => (item_end, &pieces[..]),
        };
        let line = rest.iter().position(|piece| piece.kind == Kind::Newline);
        let own = match (comma, line) {
            (_, Some(newline)) => &rest[..newline],
            (None, None) => rest,
            (Some(_), None) => &[],
        };
        Tail {
            comma: comma.map(|at| pieces[at].start),
            end: own.iter().rfind(|piece| piece.kind.is_comment()).map_or(from, |piece| piece.end),
        }
    }

    /// Where the space before a member begins: after the previous comma, or after the brace.
    fn lead(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            Some(before) => {
                self.tail(before).comma.map_or(self.items[before].range.end, |comma| comma + 1)
            }
            None => self.inner.start,
        }
    }

    /// Where the space after a member ends.
    fn limit(&self, index: usize) -> usize {
        self.items.get(index + 1).map_or(self.inner.end, |next| next.range.start)
    }

    fn has_comment(&self, range: Range<usize>) -> bool {
        self.pieces(range).iter().any(|piece| piece.kind.is_comment())
    }

    fn pieces(&self, range: Range<usize>) -> Vec<Piece> {
        pieces(self.text, range, self.syntax)
    }
}

/// The first kind other than white space within a line.
fn first_solid<'p>(mut pieces: impl Iterator<Item = &'p Piece>) -> Option<Kind> {
    pieces.find(|piece| piece.kind != Kind::Space).map(|piece| piece.kind)
}
