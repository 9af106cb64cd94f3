//! Removing entries that are tables with headers, and putting them back.
//!
//! The neighbours of an entry are the sections of the file: a header with the keys below it. The first section is what is
//! above all headers, and always exists. The name of a section is its header as it is written.

use super::super::removed::{Gap, Removed, neighbours};
use super::super::text::{Splice, line_end, line_start, newline_of};
use super::ParsedText;
use super::lines::{self, Kind, Statement, is_spaced};

/// The name of the section above all headers.
const TOP: &str = "";

struct Section<'t> {
    name: &'t str,
    /// The start of the line of the header.
    start: usize,
    /// The end of the line of the last key.
    end: usize,
    /// The path of the entry to which it belongs; empty if it belongs to none.
    entry: &'t [String],
}

impl ParsedText<'_> {
    /// The sections of a text. Adjacent tables of one entry of the container are one section.
    fn sections(&self) -> Vec<Section<'_>> {
        let text = self.text.as_ref();
        let mut sections = vec![Section { name: TOP, start: 0, end: 0, entry: &[] }];
        for statement in &self.statements {
            let lines = statement.lines(text);
            let last = sections.last_mut().expect("the first section always exists");
            let is_ours = statement.is_within(self.keys);
            let entry = statement.path.get(..=self.keys.len()).filter(|_| is_ours).unwrap_or(&[]);
            if statement.kind == Kind::Header && (entry.is_empty() || entry != last.entry) {
                let name = &text[statement.span.clone()];
                sections.push(Section { name, start: lines.start, end: lines.end, entry });
            } else {
                last.end = lines.end;
            }
        }
        sections
    }

    /// What [`Self::restore_table`] needs to put an entry back, if its tables are adjacent and nothing of it is elsewhere.
    pub(super) fn removed_table(
        &self,
        name: &str,
        left: &str,
        absent: &[&Removed],
    ) -> Option<Removed> {
        let (text, statements, path) = (self.text.as_ref(), &self.statements, self.path(name));
        let is_ours = |statement: &Statement| statement.is_within(&path);
        let first = statements.iter().position(is_ours)?;
        let run = statements[first..].iter().take_while(|one| is_ours(one)).count();
        let is_adjacent = statements.iter().filter(|one| is_ours(one)).count() == run;
        if statements[first].kind != Kind::Header || !is_adjacent {
            return None;
        }
        let sections = self.sections();
        let index = sections.iter().position(|section| section.entry == path)?;
        let Section { start: from, end: to, .. } = sections[index];
        let next = sections.get(index + 1);
        let (start, end) = (sections[index - 1].end, next.map_or(text.len(), |next| next.start));
        let without = left.get(start..left.len().checked_sub(text.len() - end)?)?;
        // A blank line above is removed with the entry if it was added for it.
        let blank = line_start(text, from.saturating_sub(1));
        let is_spaced = (end - start) - (to - from) > without.len();
        let lead = if is_spaced { &text[blank..from] } else { "" };
        let names: Vec<_> = sections.iter().map(|section| section.name).collect();
        let (before, after) = neighbours(&names, index, absent);
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

    /// Puts an entry back after the nearest section that was before it.
    pub(super) fn restore_table(&self, removed: &Removed, absent: &[&Removed]) -> Splice {
        let (text, sections) = (self.text.as_ref(), self.sections());
        let names: Vec<_> = sections.iter().map(|section| section.name).collect();
        // The first section is before all others.
        let slot = removed.slot(&names).max(1);
        let start = sections[slot - 1].end;
        let next = sections.get(slot);
        let end = next.map_or(text.len(), |next| next.start);
        if let Some(gap) = removed.exact(&text[start..end], false, next.is_none()) {
            return Splice::replace(start..end, gap);
        }
        let newline = newline_of(text);
        let mut below = None;
        let mut line = start;
        while line < end {
            let next = line_end(text, line);
            let is_above = removed.goes_below(comment(&text[line..next]), absent);
            (below, line) = (if is_above { Some(next) } else { below }, next);
        }
        let mut at =
            below.unwrap_or_else(|| lines::after(text, start, next.map(|next| next.start)));
        let mut lead = removed.lead.as_str();
        if lead.is_empty() && below.is_none() && !is_spaced(text, at) {
            // A blank line that was above the entry is above it again.
            let line = line_end(text, at);
            if text[at..line].trim().is_empty() && line > at && line <= end {
                at = line;
            } else {
                lead = newline;
            }
        }
        Splice::insert(at, format!("{lead}{}", removed.text))
    }
}

/// The last line, if it is a comment.
fn comment(text: &str) -> &str {
    text.lines().next_back().filter(|line| line.trim_start().starts_with('#')).unwrap_or("")
}
