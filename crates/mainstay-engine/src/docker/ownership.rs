//! Which of the containers that exist are ours to remove. Pure.
//!
//! Labels and names prove nothing: an image made by `docker commit` gives the labels of its container to
//! every container made from it, and anyone can copy labels or rename a container. Two things prove that
//! a container is ours:
//!
//! * its id is recorded, or
//! * it carries a nonce that was recorded before the container was created and that has no id yet: a
//!   daemon died, or the engine's answer was lost, in between. The id is recorded before the first start,
//!   so that container was never started. A copy of it is younger, so only the oldest one that carries
//!   the nonce counts.

use std::time::Duration;

use mainstay_core::ServerName;
use tokio::time::Instant;

use super::api::Listed;
use super::creations::{Creation, Entry};

/// A creation without an id whose container is in no list for this long has none.
const NEVER_CREATED: Duration = Duration::from_secs(600);

/// What a server needs of the containers that were created for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// None of them.
    Nothing,
    /// This one.
    Container(String),
    /// Not known yet, such as during a start.
    Unknown,
}

impl Need {
    /// Whether the server has this container, or may have it.
    fn includes(&self, container: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Container(needed) => needed == container,
            Self::Unknown => true,
        }
    }
}

/// What is to be done about the containers of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Nonces without an id, and the ids of the containers that carry them. To be bound, then removed.
    pub(crate) claim: Vec<(String, String)>,
    /// Recorded ids that no server needs.
    pub(crate) remove: Vec<String>,
    /// Nonces without an id, and whether the list lacks a container with them.
    pub(crate) unbound: Vec<(String, bool)>,
    /// Nonces whose containers were never created.
    pub(crate) expired: Vec<String>,
    /// Containers that have labels of this instance, but were not created by it.
    pub(crate) foreign: Vec<Listed>,
}

/// Decides what to do, given all containers that carry the label of this instance at the engine with this id, and its
/// address.
///
/// A recorded id that is in the list is proof by itself, because ids are random: the engine may have
/// another id of its own by now, or be reached at another address. An id that is not in the list is gone
/// only if the list is from the same engine at the same address.
pub(crate) fn plan(
    (engine_id, engine_address): (&str, &str),
    listed: &[Listed],
    entries: &[Entry],
    need: impl Fn(&ServerName) -> Need,
    now: Instant,
) -> Plan {
    let mut plan = Plan::default();
    let is_recorded =
        |id: &str| entries.iter().any(|entry| entry.creation.container.as_deref() == Some(id));
    let mut pending = Vec::new();
    for entry in entries {
        let Creation { server, address, engine, nonce, container } = &entry.creation;
        let is_same_engine = engine == engine_id;
        if let Some(id) = container {
            let is_listed = listed.iter().any(|found| found.id == *id);
            let is_gone = is_same_engine && address == engine_address;
            if (is_listed || is_gone) && !need(server).includes(id) {
                plan.remove.push(id.clone());
            }
            continue;
        }
        if !is_same_engine {
            continue;
        }
        let carriers = listed.iter().filter(|found| {
            found.nonce.as_ref() == Some(nonce)
                && found.server == server.as_str()
                && !is_recorded(&found.id)
        });
        let oldest = oldest(carriers).filter(|found| !found.started);
        pending.extend(oldest.map(|found| found.id.clone()));
        if entry.in_flight {
            continue;
        }
        plan.unbound.push((nonce.clone(), oldest.is_none()));
        match oldest {
            Some(found) if need(server).includes(&found.id) => {}
            Some(found) => plan.claim.push((nonce.clone(), found.id.clone())),
            None => {
                let expired = |since: Instant| now.duration_since(since) >= NEVER_CREATED;
                if entry.missing_since.is_some_and(expired) {
                    plan.expired.push(nonce.clone());
                }
            }
        }
    }
    let is_foreign = |found: &&Listed| !is_recorded(&found.id) && !pending.contains(&found.id);
    plan.foreign = listed.iter().filter(is_foreign).cloned().collect();
    plan
}

/// The one that was created first; `None` if two are equally old.
fn oldest<'a>(carriers: impl Iterator<Item = &'a Listed>) -> Option<&'a Listed> {
    let mut carriers: Vec<&Listed> = carriers.collect();
    carriers.sort_by_key(|found| found.created);
    match carriers[..] {
        [one, two, ..] if one.created == two.created => None,
        [one, ..] => Some(one),
        [] => None,
    }
}

#[cfg(test)]
mod tests;
