//! The limits of a container as a file holds them: only what differs from the default.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_core::Limits;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::write::{differing, texts};
use crate::limits::{self, Most};

#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawLimits {
    memory: Option<Memory>,
    pids: Option<Pids>,
    #[serde(default)]
    cap_add: BTreeSet<Capability>,
    new_privileges: Option<bool>,
    read_only: Option<bool>,
    init: Option<bool>,
}

impl RawLimits {
    pub(super) fn into_limits(self) -> Limits {
        let default = Limits::default();
        Limits {
            memory: self.memory.map_or(default.memory, |Memory(Most(memory))| memory),
            pids: self.pids.map_or(default.pids, |Pids(Most(pids))| pids),
            cap_add: self.cap_add.into_iter().map(|Capability(name)| name).collect(),
            new_privileges: self.new_privileges.unwrap_or(default.new_privileges),
            read_only: self.read_only.unwrap_or(default.read_only),
            init: self.init.unwrap_or(default.init),
        }
    }
}

pub(super) fn limits_lines(limits: &Limits) -> Vec<(&'static str, toml::Value)> {
    let default = Limits::default();
    let pids = limits.pids.map_or_else(|| limits::NONE.into(), |pids| i64::from(pids).into());
    let new_privileges = limits.new_privileges;
    differing([
        (limits.memory == default.memory, "memory", limits::memory_text(limits.memory).into()),
        (limits.pids == default.pids, "pids", pids),
        (limits.cap_add == default.cap_add, "cap-add", texts(&limits.cap_add)),
        (new_privileges == default.new_privileges, "new-privileges", new_privileges.into()),
        (limits.read_only == default.read_only, "read-only", limits.read_only.into()),
        (limits.init == default.init, "init", limits.init.into()),
    ])
}

/// A size such as "512m", or "none".
#[derive(PartialEq)]
struct Memory(Most<u64>);

/// A number, or "none".
#[derive(PartialEq)]
struct Pids(Most<u32>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Capability(String);

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        limits::memory(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Capability {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        limits::capability(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Written by hand, because an untagged enum does not say what is wrong with a value.
impl<'de> Deserialize<'de> for Pids {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PidsVisitor;

        impl Visitor<'_> for PidsVisitor {
            type Value = Pids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or \"none\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Pids, E> {
                let pids = u32::try_from(number);
                let pids =
                    pids.map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
                Ok(Pids(Most(Some(pids))))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pids, E> {
                limits::pids(text).map(Pids).map_err(E::custom)
            }
        }

        from.deserialize_any(PidsVisitor)
    }
}
