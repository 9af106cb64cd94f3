//! The new text of a file, and the new record of an entry in it. Does no I/O.

use std::path::Path;

use super::{Job, Operation};
use crate::edit::{Created, EditError, Fields, ParsedText, Place, Removed, Value};
use crate::ledger::{
    self, Done, Observed, Purpose, Record, Standing, State, TextDiff, Verdict, differing, is_fresh,
};

pub(super) struct Draft {
    /// The text of the file when this was drafted; nothing if there was no file.
    pub(super) from: Option<String>,
    /// Whether it had the entry.
    pub(super) found: bool,
    /// The new text; nothing if there is to be no file.
    pub(super) text: Option<String>,
    /// The new record.
    pub(super) record: Option<Record>,
    pub(super) done: Done,
    /// The user's own fields that are removed.
    pub(super) own_fields: Vec<String>,
}

impl Draft {
    /// Whether the file has to be written.
    pub(super) fn is_change(&self) -> bool {
        self.from != self.text
    }
}

/// A text, and the entry in it.
struct View<'t> {
    /// Nothing if there is no file.
    file: Option<&'t str>,
    place: Place<'static>,
    parsed: ParsedText<'t>,
    found: Option<Value>,
    standing: Standing,
    /// The record, unless it is obsolete.
    record: Option<&'t Record>,
}

impl View<'_> {
    fn text(&self) -> &str {
        self.file.unwrap_or_default()
    }

    fn owned(&self) -> Option<String> {
        self.file.map(str::to_owned)
    }

    fn draft(&self, text: Option<String>, record: Option<Record>, done: Done) -> Draft {
        let (from, found) = (self.owned(), self.found.is_some());
        Draft { from, found, text, record, done, own_fields: Vec::new() }
    }
}

impl Job<'_> {
    pub(super) fn draft(
        &self,
        text: Option<&str>,
        operation: Operation<'_>,
    ) -> Result<Draft, EditError> {
        let view = self.view(text)?;
        let verdict = match operation {
            Operation::Add { fields, mode, .. } => {
                let is_current =
                    view.found.as_ref().is_some_and(|found| self.has_fields(found, fields));
                ledger::decide_add(view.standing.clone(), is_current, mode)
            }
            Operation::Remove(purpose) => ledger::decide_remove(view.standing.clone(), purpose),
        };
        match (verdict, operation) {
            (Verdict::Keep(done), _) => {
                Ok(view.draft(view.owned(), self.unchanged_record(&view.standing, operation), done))
            }
            (Verdict::Write, Operation::Add { fields, carried_over, .. }) => {
                self.draft_add(&view, fields, carried_over)
            }
            (Verdict::Write, Operation::Remove(purpose)) => self.draft_remove(&view, purpose),
        }
    }

    fn view<'t>(&'t self, file: Option<&'t str>) -> Result<View<'t>, EditError> {
        let (place, parsed) = self.client.read(file.unwrap_or_default())?;
        let found = parsed.find(self.server)?;
        let observed = match (&found, file) {
            (Some(found), _) => Observed::There(found),
            (None, Some(_)) => Observed::Missing,
            (None, None) => Observed::NoFile,
        };
        let standing =
            ledger::standing(self.record.as_ref(), observed, self.client.owned, self.now);
        let is_obsolete = |record: &&Record| {
            // The file that we created was removed with the entry, so this is another file.
            let is_another = record.created_file && file.is_some();
            let has_left = found.is_none() && record.state == State::Leaving;
            has_left && (is_another || !is_fresh(record, self.now))
        };
        let record = self.record.as_ref().filter(|record| !is_obsolete(record));
        Ok(View { file, place, parsed, found, standing, record })
    }

    /// The record of an entry that is not changed.
    fn unchanged_record(&self, standing: &Standing, operation: Operation<'_>) -> Option<Record> {
        let record = self.record.clone()?;
        let has_left = record.state == State::Leaving;
        if has_left && *standing == Standing::Foreign {
            // Our entry was removed before this one was added.
            return None;
        }
        match operation {
            Operation::Add { .. } | Operation::Remove(Purpose::Refresh) => {
                let state = observed_state(record.state, standing);
                Some(Record { state, ..record })
            }
            // An entry that was just removed may be written back; all others are no longer managed.
            Operation::Remove(Purpose::ForGood) => {
                let is_remembered = has_left && *standing == Standing::Absent;
                (is_remembered && is_fresh(&record, self.now)).then_some(record)
            }
        }
    }

    /// Adds the entry, or sets its owned fields. A new entry also gets the fields of `carried_over`.
    fn draft_add(
        &self,
        view: &View<'_>,
        fields: &Fields,
        carried_over: &Fields,
    ) -> Result<Draft, EditError> {
        let owned = self.client.owned;
        let parsed = &view.parsed;
        let new = || parsed.upsert(self.server, &merged(carried_over, fields, owned), owned);
        let (text, created) = match view.record {
            // Only the owned fields of an existing entry are set.
            Some(record) if view.found.is_some() => {
                (parsed.upsert(self.server, fields, owned)?, record.created.clone())
            }
            Some(Record { state: State::Away { entry, cut, removed }, created, .. }) => {
                let whole = merged(entry, fields, owned);
                let absent: Vec<_> = self.absent.iter().collect();
                let put_back =
                    |removed: &Removed| parsed.restore(self.server, removed, &absent, &view.place);
                if let Some(base) = cut.undo(view.text()) {
                    let parsed = ParsedText::parse(&base, &view.place)?;
                    (parsed.upsert(self.server, &whole, owned)?, created.clone())
                } else if let Some(base) = removed.as_deref().map(put_back).transpose()?.flatten() {
                    let created = parsed.to_create()?.put_back(created.clone());
                    let parsed = ParsedText::parse(&base, &view.place)?;
                    (parsed.upsert(self.server, &whole, owned)?, created)
                } else {
                    let created = parsed.to_create()?.inherit(created.clone());
                    (parsed.upsert(self.server, &whole, owned)?, created)
                }
            }
            // What we created a moment ago may still exist, or exist again.
            Some(record) if is_fresh(record, self.now) => {
                (new()?, parsed.to_create()?.inherit(record.created.clone()))
            }
            Some(_) | None => (new()?, parsed.to_create()?),
        };
        let done = match (&view.found, &view.standing) {
            (Some(_), _) if text == view.text() => Done::AlreadyThere,
            (Some(_), _) => Done::Updated,
            (None, Standing::Away) => Done::PutBack,
            (None, _) => Done::Added,
        };
        Ok(view.draft(Some(text), Some(self.present_record(view, fields, created)), done))
    }

    fn draft_remove(&self, view: &View<'_>, purpose: Purpose) -> Result<Draft, EditError> {
        let (text, state, own_fields) = match purpose {
            Purpose::ForGood => {
                (self.remove_completely(view)?, State::Leaving, self.own_fields(view))
            }
            Purpose::Refresh => {
                // What is around the entry stays, because a client may reject an empty file.
                let created = self.record.as_ref().map(|record| record.created.layout());
                let absent: Vec<_> = self.absent.iter().collect();
                let (left, removed) =
                    view.parsed.extract(self.server, &created.unwrap_or_default(), &absent)?;
                let entry = match (&view.found, &self.record) {
                    (Some(Value::Map(fields)), _) => fields.clone(),
                    (_, Some(record)) => record.fields.clone(),
                    (_, None) => Fields::new(),
                };
                let cut = TextDiff::between(view.text(), &left);
                let text = view.file.is_some().then_some(left);
                let removed = removed.map(Box::new);
                (text, State::Away { entry, cut, removed }, Vec::new())
            }
        };
        let record = self.record.clone().map(|record| Record { state, at: self.now, ..record });
        let done = if view.file == text.as_deref() { Done::NotThere } else { Done::Removed };
        Ok(Draft { own_fields, ..view.draft(text, record, done) })
    }

    /// The text without the entry and what was created around it, which still exists if the entry is removed
    /// temporarily.
    fn remove_completely(&self, view: &View<'_>) -> Result<Option<String>, EditError> {
        let (Some(record), Some(_)) = (&self.record, view.file) else { return Ok(view.owned()) };
        let left = match &record.state {
            State::Away { cut, .. } if view.found.is_none() => {
                let (whole, created) = if let Some(base) = cut.undo(view.text()) {
                    (base, record.created.clone())
                } else {
                    let created = view.parsed.to_create()?.inherit(record.created.clone());
                    (view.parsed.upsert(self.server, &record.fields, &[])?, created)
                };
                ParsedText::parse(&whole, &view.place)?.remove(self.server, &created)?
            }
            State::Away { .. }
            | State::Adding { .. }
            | State::Present
            | State::Leaving
            | State::Withdrawn => view.parsed.remove(self.server, &record.created)?,
        };
        // A file that we created and that is empty is removed.
        let is_needed = !record.created_file || !left.trim().is_empty();
        Ok(is_needed.then_some(left))
    }

    /// The fields of the entry that are the user's own.
    fn own_fields(&self, view: &View<'_>) -> Vec<String> {
        let Some(Value::Map(fields)) = &view.found else { return Vec::new() };
        let names = fields.iter().map(|(name, _)| name);
        names.filter(|name| !self.client.owned.contains(&name.as_str())).cloned().collect()
    }

    /// The record of an entry that is in the file.
    fn present_record(&self, view: &View<'_>, fields: &Fields, created: Created) -> Record {
        let created_file = match (view.record, view.file) {
            (Some(record), Some(_)) => record.created_file,
            (None, Some(_)) => false,
            (_, None) => true,
        };
        let created_dir = view.record.and_then(|record| record.created_dir.clone());
        let created_dir = match view.file {
            Some(_) => created_dir,
            None => self.file.missing_directory().map(Path::to_owned).or(created_dir),
        };
        let former = view.record.and_then(|record| {
            let is_update = record.fields != *fields;
            if is_update { Some(record.fields.clone()) } else { record.former.clone() }
        });
        Record {
            client: self.client.id.to_owned(),
            file: self.path.clone(),
            server: self.server.to_owned(),
            fields: fields.clone(),
            former,
            created,
            created_file,
            created_dir,
            at: self.now,
            state: State::Present,
        }
    }

    fn has_fields(&self, found: &Value, fields: &Fields) -> bool {
        differing(fields, found, self.client.owned).is_empty()
    }
}

/// The state of an entry according to the file.
fn observed_state(state: State, standing: &Standing) -> State {
    match standing {
        Standing::Ours => State::Present,
        // An entry of someone else in place of ours means that a user replaced it.
        Standing::Withdrawn | Standing::Foreign => State::Withdrawn,
        Standing::Absent | Standing::Drifted { .. } | Standing::Away | Standing::Overwritten => {
            state
        }
    }
}

/// An entry with its owned fields set to `fields`. The other fields and the order stay.
fn merged(entry: &Fields, fields: &Fields, owned: &[&str]) -> Fields {
    let ours = |name: &str| fields.iter().find(|(field, _)| field == name);
    let kept = entry.iter().filter_map(|(name, value)| match ours(name) {
        Some(set) => Some(set.clone()),
        None if owned.contains(&name.as_str()) => None,
        None => Some((name.clone(), value.clone())),
    });
    let is_new = |(name, _): &&(String, Value)| entry.iter().all(|(field, _)| field != name);
    kept.chain(fields.iter().filter(is_new).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_the_users_fields_and_their_order() {
        let text = |text: &str| Value::Text(text.to_owned());
        let field = |name: &str, value: Value| (name.to_owned(), value);
        let entry = vec![
            field("disabled", Value::Flag(false)),
            field("url", text("http://old")),
            field("command", text("old")),
            field("timeout", Value::Number(60)),
        ];
        let fields = vec![field("type", text("http")), field("url", text("http://new"))];
        let expected = vec![
            field("disabled", Value::Flag(false)),
            field("url", text("http://new")),
            field("timeout", Value::Number(60)),
            field("type", text("http")),
        ];
        assert_eq!(merged(&entry, &fields, &["type", "url", "command"]), expected);
    }
}
