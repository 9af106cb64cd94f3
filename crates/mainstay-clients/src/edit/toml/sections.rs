//! Entries that are tables with headers, taken out of a text and put back.
//!
//! The neighbours of an entry are the sections of the file: a header with the keys below it. The first section is what stands
//! above all headers, and is always there. A section is named by its header as it is written.

use super::super::layout;
use super::super::removed::{Gap, Removed, neighbours};
use super::super::splice::Splice;
use super::lines::{self, Kind, Statement, is_spaced};

/// The name of what stands above all headers.
const TOP: &str = "";

struct Section<'t> {
    name: &'t str,
    /// Where the line of the header begins, and the line of the last key ends.
    start: usize,
    end: usize,
    /// The way to the entry that it is of, if it is of one.
    entry: &'t [String],
}

/// The sections of a text. All tables of an entry that follow each other are one. `depth` is how many keys lead to one.
fn sections<'t>(text: &'t str, statements: &'t [Statement], depth: usize) -> Vec<Section<'t>> {
    let mut sections = vec![Section { name: TOP, start: 0, end: 0, entry: &[] }];
    for statement in statements {
        let lines = statement.lines(text);
        let last = sections.last_mut().expect("the first section is always there");
        let entry = statement.path.get(..depth).unwrap_or(&[]);
        if statement.kind == Kind::Header && (entry.is_empty() || entry != last.entry) {
            let name = &text[statement.span.clone()];
            sections.push(Section { name, start: lines.start, end: lines.end, entry });
        } else {
            last.end = lines.end;
        }
    }
    sections
}

/// What there is to know of the entry at `path`, if its tables stand together and nothing of it stands elsewhere.
pub(super) fn removed(
    text: &str,
    statements: &[Statement],
    path: &[&str],
    left: &str,
    out: &[&Removed],
) -> Option<Removed> {
    let is_ours = |statement: &Statement| statement.is_within(path);
    let first = statements.iter().position(is_ours)?;
    let run = statements[first..].iter().take_while(|one| is_ours(one)).count();
    let stands_together = statements.iter().filter(|one| is_ours(one)).count() == run;
    if statements[first].kind != Kind::Header || !stands_together {
        return None;
    }
    let sections = sections(text, statements, path.len());
    let index = sections.iter().position(|section| section.entry == path)?;
    let Section { start: from, end: to, .. } = sections[index];
    let next = sections.get(index + 1);
    let (start, end) = (sections[index - 1].end, next.map_or(text.len(), |next| next.start));
    let without = left.get(start..left.len().checked_sub(text.len() - end)?)?;
    // A blank line above goes with the entry if it was put there for it.
    let blank = layout::line_start(text, from.saturating_sub(1));
    let is_spaced = (end - start) - (to - from) > without.len();
    let lead = if is_spaced { &text[blank..from] } else { "" };
    let names: Vec<_> = sections.iter().map(|section| section.name).collect();
    let (before, after) = neighbours(&names, index, out);
    Some(Removed {
        name: names[index].to_owned(),
        text: text[from..to].to_owned(),
        lead: lead.to_owned(),
        tail: String::new(),
        above: comment(&text[start..from - lead.len()]).to_owned(),
        before,
        after,
        gap: Gap {
            with: text[start..end].to_owned(),
            without: without.to_owned(),
            is_trailed: false,
            is_first: false,
            is_last: next.is_none(),
        },
    })
}

/// Puts an entry back behind the nearest section that stood before it.
pub(super) fn restore(
    text: &str,
    statements: &[Statement],
    depth: usize,
    removed: &Removed,
    out: &[&Removed],
) -> Splice {
    let sections = sections(text, statements, depth);
    let names: Vec<_> = sections.iter().map(|section| section.name).collect();
    // The first section is before all others.
    let slot = removed.slot(&names).max(1);
    let start = sections[slot - 1].end;
    let next = sections.get(slot);
    let end = next.map_or(text.len(), |next| next.start);
    if let Some(gap) = removed.exact(&text[start..end], false, next.is_none()) {
        return Splice::replace(start..end, gap);
    }
    let newline = layout::newline_of(text).unwrap_or("\n");
    let mut below = None;
    let mut line = start;
    while line < end {
        let next = layout::line_end(text, line);
        let is_above = removed.goes_below(comment(&text[line..next]), out);
        (below, line) = (if is_above { Some(next) } else { below }, next);
    }
    let mut at = below.unwrap_or_else(|| lines::behind(text, start, next.map(|next| next.start)));
    let mut lead = removed.lead.as_str();
    if lead.is_empty() && below.is_none() && !is_spaced(text, at) {
        // A blank line that was there before the entry is above it again.
        let line = layout::line_end(text, at);
        if text[at..line].trim().is_empty() && line > at && line <= end {
            at = line;
        } else {
            lead = newline;
        }
    }
    Splice::insert(at, format!("{lead}{}", removed.text))
}

/// The last line, if it is a comment.
fn comment(text: &str) -> &str {
    text.lines().next_back().filter(|line| line.trim_start().starts_with('#')).unwrap_or("")
}
