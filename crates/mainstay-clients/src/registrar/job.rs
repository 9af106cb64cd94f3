//! One operation on one entry of one file, under our lock.

use std::path::PathBuf;

use jiff::Timestamp;

use super::{Change, ClientError};
use crate::edit::{Created, EditError, Fields, Place, Reading, Value};
use crate::file::{FileError, OpenFile};
use crate::ledger::{
    self, Book, Cut, Done, Purpose, Record, Sight, Standing, State, Verdict, Wish,
};
use crate::table::Client;

/// An entry, its file and its record.
pub(super) struct Job<'a> {
    pub(super) book: &'a Book,
    pub(super) client: &'static Client,
    /// The name the client uses for its file.
    pub(super) path: PathBuf,
    pub(super) file: OpenFile,
    pub(super) server: &'a str,
    pub(super) record: Option<Record>,
    pub(super) now: Timestamp,
}

/// A text, and the entry in it.
struct View<'t> {
    /// Nothing if there is no file.
    file: Option<&'t str>,
    place: Place<'static>,
    reading: Reading<'t>,
    found: Option<Value>,
    standing: Standing,
}

/// What to do to a file.
enum Plan {
    /// Nothing.
    Keep(Done, Standing),
    /// Write it.
    Write(Box<Draft>),
}

/// A text to write, and the record that goes with it.
struct Draft {
    /// What the file said when this was drafted.
    from: Option<String>,
    text: Option<String>,
    record: Option<Record>,
    done: Done,
}

impl View<'_> {
    fn text(&self) -> &str {
        self.file.unwrap_or_default()
    }

    fn owned(&self) -> Option<String> {
        self.file.map(str::to_owned)
    }
}

impl Job<'_> {
    /// Adds the entry, or brings our fields in it up to date.
    pub(super) fn add(self, fields: &Fields, wish: Wish) -> Result<Change, ClientError> {
        let judge = |view: &View<'_>| {
            let says_it = view.found.as_ref().is_some_and(|found| self.says(found, fields));
            ledger::judge_add(view.standing.clone(), says_it, wish)
        };
        self.carry_out(judge, |view| self.with(view, fields))
    }

    /// Takes the entry out.
    pub(super) fn remove(self, purpose: Purpose) -> Result<Change, ClientError> {
        let judge = |view: &View<'_>| ledger::judge_remove(view.standing.clone(), purpose);
        let change = self.carry_out(judge, |view| self.without(view, purpose))?;
        if purpose == Purpose::ForGood && self.record.is_some() {
            self.finish(None)?;
        }
        Ok(change)
    }

    /// Looks, judges, writes down what is intended, does it, and writes down what was done. Somebody may
    /// write to the file meanwhile, so it is judged anew each time the file is read.
    fn carry_out(
        &self,
        judge: impl Fn(&View<'_>) -> Verdict,
        draft: impl Fn(&View<'_>) -> Result<Draft, EditError>,
    ) -> Result<Change, ClientError> {
        let plan = |text: Option<&str>| self.plan(text, &judge, &draft);
        let mut drafted = match self.file.read(plan)? {
            Plan::Keep(done, standing) => {
                self.settle(&standing)?;
                return Ok(self.change(done));
            }
            Plan::Write(drafted) => drafted,
        };
        let begun = drafted.record.as_ref().map(|record| self.begun(record));
        self.set(begun.or_else(|| self.leaving()))?;
        let written = self.file.edit(self.server, |text| {
            if text != drafted.from.as_deref() {
                drafted = match plan(text)? {
                    Plan::Write(drafted) => drafted,
                    Plan::Keep(done, standing) => {
                        let (from, text) = (text.map(str::to_owned), text.map(str::to_owned));
                        Box::new(Draft { from, text, record: self.settled(&standing), done })
                    }
                };
            }
            Ok(drafted.text.clone())
        });
        if let Err(error) = written {
            self.after_failure(drafted)?;
            return Err(error);
        }
        self.finish(drafted.record)?;
        Ok(self.change(drafted.done))
    }

    fn plan(
        &self,
        text: Option<&str>,
        judge: impl Fn(&View<'_>) -> Verdict,
        draft: impl Fn(&View<'_>) -> Result<Draft, EditError>,
    ) -> Result<Plan, ClientError> {
        let view = self.view(text).map_err(|error| self.refused(error))?;
        Ok(match judge(&view) {
            Verdict::Keep(done) => Plan::Keep(done, view.standing),
            Verdict::Write => {
                Plan::Write(Box::new(draft(&view).map_err(|error| self.refused(error))?))
            }
        })
    }

    /// Writes down how things stand after an edit that failed: as before, unless it failed after the
    /// file had been replaced.
    fn after_failure(&self, drafted: Box<Draft>) -> Result<(), ClientError> {
        let is_written = |text: Option<&str>| Ok::<_, FileError>(text == drafted.text.as_deref());
        match self.file.read(is_written) {
            Ok(true) => self.finish(drafted.record),
            Ok(false) => self.set(self.record.clone()),
            // Then what was intended stays written down, and can be completed.
            Err(_) => Ok(()),
        }
    }

    fn view<'t>(&self, file: Option<&'t str>) -> Result<View<'t>, EditError> {
        let text = file.unwrap_or_default();
        let (place, reading) = self.client.read(text)?;
        let found = reading.find(self.server)?;
        let sight = match (&found, file) {
            (Some(found), _) => Sight::There(found),
            (None, Some(_)) => Sight::Missing,
            (None, None) => Sight::NoFile,
        };
        let standing = ledger::standing(self.record.as_ref(), sight, self.client.owned, self.now);
        Ok(View { file, place, reading, found, standing })
    }

    /// The text with the entry in it, its owned fields saying `fields`.
    fn with(&self, view: &View<'_>, fields: &Fields) -> Result<Draft, EditError> {
        let owned = self.client.owned;
        let reading = &view.reading;
        let (text, created) = match &self.record {
            // In a text that has the entry only the owned fields are set.
            Some(Record { created, .. }) if view.found.is_some() => {
                (reading.upsert(self.server, fields, owned)?, created.clone())
            }
            Some(Record { state: State::Away { entry, cut }, created, .. }) => {
                let whole = merged(entry, fields, owned);
                if let Some(base) = cut.undo(view.text()) {
                    let reading = Reading::of(&base, &view.place)?;
                    (reading.upsert(self.server, &whole, owned)?, created.clone())
                } else {
                    let created = reading.outline()?.inherit(created.clone());
                    (reading.upsert(self.server, &whole, owned)?, created)
                }
            }
            Some(_) | None => (reading.upsert(self.server, fields, owned)?, reading.outline()?),
        };
        let done = match (&view.found, &view.standing) {
            (Some(_), _) => Done::Updated,
            (None, Standing::Away) => Done::PutBack,
            (None, _) => Done::Added,
        };
        let record = self.present(view, fields, created);
        Ok(Draft { from: view.owned(), text: Some(text), record: Some(record), done })
    }

    /// The text without the entry.
    fn without(&self, view: &View<'_>, purpose: Purpose) -> Result<Draft, EditError> {
        let (text, record) = match purpose {
            Purpose::ForGood => (self.without_a_trace(view)?, None),
            Purpose::Refresh => {
                // What is around the entry stays, because a client may not take an empty file.
                let left = view.reading.remove(self.server, &Created::default())?;
                let away = self.record.as_ref().map(|record| {
                    let entry = match &view.found {
                        Some(Value::Map(fields)) => fields.clone(),
                        Some(_) | None => record.fields.clone(),
                    };
                    let state = State::Away { entry, cut: Cut::between(view.text(), &left) };
                    Record { state, ..record.clone() }
                });
                (view.file.is_some().then_some(left), away)
            }
        };
        let done = if view.file == text.as_deref() { Done::NotThere } else { Done::Removed };
        Ok(Draft { from: view.owned(), text, record, done })
    }

    /// The text without the entry and what was created around it. That is still there if the entry is away.
    fn without_a_trace(&self, view: &View<'_>) -> Result<Option<String>, EditError> {
        let Some(record) = &self.record else { return Ok(view.owned()) };
        let left = match &record.state {
            State::Away { cut, .. } if view.found.is_none() => {
                let whole = match cut.undo(view.text()) {
                    Some(base) => base,
                    None => view.reading.upsert(self.server, &record.fields, &[])?,
                };
                Reading::of(&whole, &view.place)?.remove(self.server, &record.created)?
            }
            State::Away { .. }
            | State::Adding { .. }
            | State::Present
            | State::Leaving
            | State::Withdrawn => view.reading.remove(self.server, &record.created)?,
        };
        // A file that we made, and that holds nothing any more, is no file of the user's.
        let is_needed = !record.created_file || !left.trim().is_empty();
        Ok(is_needed.then_some(left))
    }

    /// The record of an entry that is in the file.
    fn present(&self, view: &View<'_>, fields: &Fields, created: Created) -> Record {
        let created_file = match (&self.record, view.file) {
            (Some(record), Some(_)) => record.created_file,
            (None, Some(_)) => false,
            (_, None) => true,
        };
        Record {
            client: self.client.id.to_owned(),
            file: self.path.clone(),
            server: self.server.to_owned(),
            fields: fields.clone(),
            created,
            created_file,
            at: self.now,
            state: State::Present,
        }
    }

    /// What is intended, before it is done. An entry that is taken out for a while is noted as out
    /// beforehand: if it then still is in the file, it is seen to be.
    fn begun(&self, record: &Record) -> Record {
        let state = match &record.state {
            State::Present => State::Adding { former: self.former() },
            State::Adding { .. } | State::Away { .. } | State::Leaving | State::Withdrawn => {
                record.state.clone()
            }
        };
        Record { state, ..record.clone() }
    }

    fn leaving(&self) -> Option<Record> {
        self.record.clone().map(|record| Record { state: State::Leaving, ..record })
    }

    /// What our fields say, if the entry is in the file.
    fn former(&self) -> Option<Fields> {
        let record = self.record.as_ref()?;
        match &record.state {
            State::Present => Some(record.fields.clone()),
            State::Adding { former } => former.clone(),
            State::Away { .. } | State::Leaving | State::Withdrawn => None,
        }
    }

    /// Writes down what a look at the file has shown.
    fn settle(&self, standing: &Standing) -> Result<(), ClientError> {
        let settled = self.settled(standing);
        if settled == self.record { Ok(()) } else { self.set(settled) }
    }

    /// The record as a look at the file shows it to be.
    fn settled(&self, standing: &Standing) -> Option<Record> {
        let record = self.record.clone()?;
        let state = match standing {
            Standing::Ours => State::Present,
            // An entry of somebody else's in the place of ours means that ours was not wanted.
            Standing::Withdrawn | Standing::Foreign => State::Withdrawn,
            Standing::Absent
            | Standing::Drifted { .. }
            | Standing::Away
            | Standing::Overwritten => record.state,
        };
        Some(Record { state, ..record })
    }

    fn says(&self, found: &Value, fields: &Fields) -> bool {
        ledger::differing(fields, found, self.client.owned).is_empty()
    }

    /// Writes down what was done.
    fn finish(&self, record: Option<Record>) -> Result<(), ClientError> {
        match record {
            Some(record) => self.set(Some(record)),
            None => Ok(self.book.forget(self.client.id, &self.path, self.server)?),
        }
    }

    fn set(&self, record: Option<Record>) -> Result<(), ClientError> {
        Ok(self.book.set(self.client.id, &self.path, self.server, record)?)
    }

    fn change(&self, done: Done) -> Change {
        let (file, server) = (self.path.clone(), self.server.to_owned());
        Change { client: self.client, file, server, done }
    }

    fn refused(&self, source: EditError) -> ClientError {
        ClientError::Edit { file: self.path.clone(), source }
    }
}

/// An entry with its owned fields set to `fields`, and the rest in its order.
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
    fn an_entry_comes_back_with_the_users_fields_in_their_order() {
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
