//! Whose an entry is, and what may be done to it. Pure.

use jiff::{SignedDuration, Timestamp};

use super::{Record, State};
use crate::edit::{Fields, Value};

/// A client that has its settings in memory writes them over ours within this time. An entry that goes
/// so soon was not taken out by a person, and one that comes back so soon not put back by one.
const WRITE_BACK_TIME: SignedDuration = SignedDuration::from_secs(5);

/// Whose an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// There is none, and none is meant to be there.
    Absent,
    /// It is ours, as we wrote it.
    Ours,
    /// Somebody else's, of the same name.
    Foreign,
    /// It is ours, but somebody changed these of our fields.
    Drifted {
        /// The fields that say something else now.
        fields: Vec<String>,
    },
    /// It is ours, and we took it out to put it back.
    Away,
    /// It is ours, and the client has just written over it: it is gone, or says what it said before.
    Overwritten,
    /// It was ours, and somebody took it out.
    Withdrawn,
}

/// What is seen where an entry would be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Observed<'a> {
    /// Not even a file.
    NoFile,
    /// A file without the entry.
    Missing,
    /// The entry.
    There(&'a Value),
}

/// Why an entry is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The server is gone. What had to be created around the entry goes too.
    ForGood,
    /// The client shall notice. The entry will be put back as it was.
    Refresh,
}

/// How much an addition is wanted.
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
    /// The file is to be changed.
    Write,
    /// The file stays, and this is what there is to say.
    Keep(Done),
}

/// What was done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The entry was added.
    Added,
    /// Our fields in it were brought up to date.
    Updated,
    /// It was taken out.
    Removed,
    /// It was put back.
    PutBack,
    /// It was there already and says what it shall.
    AlreadyThere,
    /// There was none.
    NotThere,
    /// It was left alone.
    Left(Left),
}

/// Why an entry was left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// It is somebody else's.
    Foreign,
    /// Somebody changed these of our fields.
    Drifted {
        /// The fields.
        fields: Vec<String>,
    },
    /// Somebody took it out.
    Withdrawn,
}

/// Whose an entry is, by what we wrote and by what the file says.
pub(crate) fn standing(
    record: Option<&Record>,
    observed: Observed<'_>,
    owned: &[&str],
    now: Timestamp,
) -> Standing {
    match (record, observed) {
        (None, Observed::NoFile | Observed::Missing) => Standing::Absent,
        (None, Observed::There(_)) => Standing::Foreign,
        // Taking an entry out leaves its file, so somebody did not want the file any more.
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

/// Whether we have just written. A clock that was set back does not make it so.
pub(crate) fn is_fresh(record: &Record, now: Timestamp) -> bool {
    let age = now.duration_since(record.at);
    !age.is_negative() && age < WRITE_BACK_TIME
}

fn present(record: &Record, found: &Value, owned: &[&str], now: Timestamp) -> Standing {
    let drifted = differing(&record.fields, found, owned);
    if drifted.is_empty() {
        return Standing::Ours;
    }
    let says = |fields: &Option<Fields>| {
        fields.as_ref().is_some_and(|fields| differing(fields, found, owned).is_empty())
    };
    match &record.state {
        State::Adding { former } if says(former) => Standing::Ours,
        State::Present | State::Adding { .. } | State::Leaving
            if is_fresh(record, now) && says(&record.former) =>
        {
            Standing::Overwritten
        }
        State::Present | State::Adding { former: Some(_) } => Standing::Drifted { fields: drifted },
        // It was not there when we last looked, so it is not ours that was changed.
        State::Adding { former: None } | State::Away { .. } | State::Leaving | State::Withdrawn => {
            Standing::Foreign
        }
    }
}

/// The owned fields in which an entry differs from what we write.
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

/// What may be done when an entry is to be added. `says_it`: what is there says what it shall.
pub(crate) fn decide_add(standing: Standing, says_it: bool, mode: AddMode) -> Verdict {
    match (standing, mode) {
        (Standing::Ours | Standing::Foreign | Standing::Drifted { .. }, _) if says_it => {
            Verdict::Keep(Done::AlreadyThere)
        }
        (Standing::Foreign, _) => left(Left::Foreign),
        (Standing::Drifted { fields }, AddMode::Maintain) => left(Left::Drifted { fields }),
        (Standing::Withdrawn, AddMode::Maintain) => left(Left::Withdrawn),
        (Standing::Absent | Standing::Ours | Standing::Away | Standing::Overwritten, _)
        | (Standing::Drifted { .. } | Standing::Withdrawn, AddMode::Force) => Verdict::Write,
    }
}

/// What may be done when an entry is to be taken out.
pub(crate) fn decide_remove(standing: Standing, purpose: Purpose) -> Verdict {
    match (standing, purpose) {
        (Standing::Foreign, _) => left(Left::Foreign),
        (Standing::Drifted { fields }, _) => left(Left::Drifted { fields }),
        // One that the client wrote over may be out, but not because a person wanted it so: it is noted.
        (Standing::Ours | Standing::Overwritten, _)
        // What was created around it is still there, and goes.
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
