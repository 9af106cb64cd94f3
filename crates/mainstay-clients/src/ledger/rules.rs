//! Who owns an entry, and what may be done to it. Pure.

use jiff::{SignedDuration, Timestamp};

use super::{Record, State};
use crate::edit::{Fields, Value};

/// A client that has its settings in memory may write them over ours within this time. A removal so soon was not made
/// by a user, nor was a reappearance.
const WRITE_BACK_TIME: SignedDuration = SignedDuration::from_secs(5);

/// Who owns an entry, and whether it is as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It does not exist, and should not.
    Absent,
    /// Ours, as written.
    Ours,
    /// An entry of someone else with the same name.
    Foreign,
    /// Ours, but some owned fields were changed.
    Drifted {
        /// The changed fields.
        fields: Vec<String>,
    },
    /// Ours, and removed temporarily.
    Away,
    /// Ours, and the client has just overwritten it: it is missing, or has its former fields.
    Overwritten,
    /// It was ours, and a user removed it.
    Withdrawn,
}

/// What the file has in place of an entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Observed<'a> {
    NoFile,
    /// A file without the entry.
    Missing,
    There(&'a Value),
}

/// Why an entry is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The server was removed. What was created around the entry is removed, too.
    ForGood,
    /// To make the client reconnect. The entry will be put back as it was.
    Refresh,
}

/// What to do about changes that a user made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddMode {
    /// Keeps the entry up to date. A user's change or removal of it stays.
    Maintain,
    /// A user asked for it: changed fields are reset, a removed entry is added again.
    Force,
}

/// What may be done to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Change the file.
    Write,
    /// Leave the file unchanged, with this result.
    Keep(Done),
}

/// What was done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Added,
    /// Owned fields were updated.
    Updated,
    Removed,
    /// A temporarily removed entry was added again.
    PutBack,
    /// It exists with the right fields.
    AlreadyThere,
    NotThere,
    /// It was not changed.
    Left(Left),
}

/// Why an entry was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// It belongs to someone else.
    Foreign,
    /// A user changed these owned fields.
    Drifted { fields: Vec<String> },
    /// A user removed it.
    Withdrawn,
}

pub(crate) fn standing(
    record: Option<&Record>,
    observed: Observed<'_>,
    owned: &[&str],
    now: Timestamp,
) -> Standing {
    match (record, observed) {
        (None, Observed::NoFile | Observed::Missing) => Standing::Absent,
        (None, Observed::There(_)) => Standing::Foreign,
        // A temporary removal keeps the file, so a user deleted it.
        (Some(Record { state: State::Away { .. }, .. }), Observed::NoFile) => Standing::Withdrawn,
        (Some(record), Observed::NoFile | Observed::Missing) => missing(record, now),
        (Some(record), Observed::There(found)) => present(record, found, owned, now),
    }
}

fn missing(record: &Record, now: Timestamp) -> Standing {
    match &record.state {
        State::Adding { former: None } | State::Leaving => Standing::Absent,
        State::Away { .. } => Standing::Away,
        // It is being written, or was a moment ago.
        State::Present | State::Adding { former: Some(_) } if is_fresh(record, now) => {
            Standing::Overwritten
        }
        State::Present | State::Adding { former: Some(_) } | State::Withdrawn => {
            Standing::Withdrawn
        }
    }
}

/// Whether the record was written a moment ago. False if the clock was set back.
pub(crate) fn is_fresh(record: &Record, now: Timestamp) -> bool {
    let age = now.duration_since(record.at);
    !age.is_negative() && age < WRITE_BACK_TIME
}

fn present(record: &Record, found: &Value, owned: &[&str], now: Timestamp) -> Standing {
    let drifted = differing(&record.fields, found, owned);
    if drifted.is_empty() {
        return Standing::Ours;
    }
    let matches = |fields: &Option<Fields>| {
        fields.as_ref().is_some_and(|fields| differing(fields, found, owned).is_empty())
    };
    match &record.state {
        State::Adding { former } if matches(former) => Standing::Ours,
        State::Present | State::Adding { .. } | State::Leaving
            if is_fresh(record, now) && matches(&record.former) =>
        {
            Standing::Overwritten
        }
        State::Present | State::Adding { former: Some(_) } => Standing::Drifted { fields: drifted },
        // It was not in the file before, so it is not a changed entry of ours.
        State::Adding { former: None } | State::Away { .. } | State::Leaving | State::Withdrawn => {
            Standing::Foreign
        }
    }
}

/// The owned fields in which an entry differs from `fields`.
pub(crate) fn differing(fields: &Fields, found: &Value, owned: &[&str]) -> Vec<String> {
    let Value::Map(found) = found else {
        return owned.iter().map(|field| (*field).to_owned()).collect();
    };
    let get = |fields: &'_ Fields, name: &str| {
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone())
    };
    let differs = |field: &&&str| get(fields, field) != get(found, field);
    owned.iter().filter(differs).map(|field| (*field).to_owned()).collect()
}

/// What to do to add an entry. `is_current`: the owned fields in the file have the right values.
pub(crate) fn decide_add(standing: Standing, is_current: bool, mode: AddMode) -> Verdict {
    match (standing, mode) {
        (Standing::Ours | Standing::Foreign | Standing::Drifted { .. }, _) if is_current => {
            Verdict::Keep(Done::AlreadyThere)
        }
        (Standing::Foreign, _) => left(Left::Foreign),
        (Standing::Drifted { fields }, AddMode::Maintain) => left(Left::Drifted { fields }),
        (Standing::Withdrawn, AddMode::Maintain) => left(Left::Withdrawn),
        (Standing::Absent | Standing::Ours | Standing::Away | Standing::Overwritten, _)
        | (Standing::Drifted { .. } | Standing::Withdrawn, AddMode::Force) => Verdict::Write,
    }
}

/// What to do to remove an entry.
pub(crate) fn decide_remove(standing: Standing, purpose: Purpose) -> Verdict {
    match (standing, purpose) {
        (Standing::Foreign, _) => left(Left::Foreign),
        (Standing::Drifted { fields }, _) => left(Left::Drifted { fields }),
        // An overwritten entry may be missing, but no user removed it, so the removal is recorded.
        (Standing::Ours | Standing::Overwritten, _)
        // What was created around it still exists.
        | (Standing::Away, Purpose::ForGood) => Verdict::Write,
        (Standing::Away, Purpose::Refresh)
        | (Standing::Absent | Standing::Withdrawn, _) => Verdict::Keep(Done::NotThere),
    }
}

fn left(why: Left) -> Verdict {
    Verdict::Keep(Done::Left(why))
}

#[cfg(test)]
mod tests;
