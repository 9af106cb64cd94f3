//! The tables of the file, as they are read and written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use mainstay_clients::Client;
use mainstay_core::{
    EngineKind, HeaderName, ImageRef, Limits, OnStop, ProxySettings, RefreshMode, RemoteUrl,
    RestartPolicy, ServerName, StableFrom, TimeLimit, Volume,
};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::transport::TransportName;

/// What every version has. Nothing else is read before the version is known.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(default)]
    pub(super) servers: BTreeMap<ServerName, Server>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Server {
    pub(super) command: Option<Vec<String>>,
    pub(super) image: Option<ImageRef>,
    pub(super) url: Option<RemoteUrl>,
    pub(super) headers: BTreeMap<HeaderName, Value>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) args: Vec<String>,
    pub(super) engine: Option<EngineKind>,
    pub(super) host: Option<String>,
    pub(super) volumes: Vec<Volume>,
    pub(super) network: Option<String>,
    pub(super) user: Option<String>,
    pub(super) transport: Option<TransportName>,
    pub(super) target_port: Option<u16>,
    pub(super) path: Option<String>,
    pub(super) env: BTreeMap<String, Value>,
    pub(super) limits: Option<ContainerLimits>,
    #[serde(deserialize_with = "client_ids")]
    pub(super) clients: Option<BTreeSet<String>>,
    pub(super) refresh: Option<RefreshMode>,
    #[serde(with = "Proxy")]
    pub(super) proxy: ProxySettings,
    #[serde(with = "Restart")]
    pub(super) restart: RestartPolicy,
}

/// The value of a variable or a header: as it is, or where to find it.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or `{ from-env = \"NAME\" }`")]
pub(super) enum Value {
    Literal(String),
    Reference(Reference),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Reference {
    pub(super) from_env: String,
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct ContainerLimits(#[serde(with = "LimitsTable")] pub(super) Limits);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits", default = "Limits::default")]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LimitsTable {
    #[serde(with = "memory")]
    memory: Option<u64>,
    #[serde(with = "pids")]
    pids: Option<u32>,
    #[serde(deserialize_with = "capabilities")]
    cap_add: BTreeSet<String>,
    new_privileges: bool,
    read_only: bool,
    init: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ProxySettings", default = "ProxySettings::default")]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Proxy {
    #[serde(with = "duration")]
    hold: Duration,
    isolate: bool,
    #[serde(with = "duration")]
    isolate_idle: Duration,
    #[serde(with = "time_limit")]
    call_timeout: Option<Duration>,
    tool_timeouts: BTreeMap<String, TimeLimit>,
    replay: BTreeSet<String>,
    port: Option<u16>,
    quiet_restart: bool,
    late_results: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RestartPolicy", default = "RestartPolicy::default")]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Restart {
    max: u32,
    #[serde(with = "duration")]
    initial: Duration,
    #[serde(with = "duration")]
    cap: Duration,
    #[serde(with = "duration")]
    stable_after: Duration,
    stable_from: StableFrom,
    on_stop: OnStop,
    #[serde(with = "duration")]
    start_timeout: Duration,
    #[serde(with = "duration")]
    stop_timeout: Duration,
    #[serde(with = "time_limit")]
    hang_after: Option<Duration>,
    #[serde(with = "time_limit")]
    busy_limit: Option<Duration>,
    #[serde(with = "time_limit")]
    block_limit: Option<Duration>,
}

fn client_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeSet<String>>, D::Error> {
    let ids = Option::<BTreeSet<String>>::deserialize(from)?;
    match ids.iter().flatten().find(|id| Client::by_id(id).is_none()) {
        None => Ok(ids),
        Some(id) => Err(D::Error::custom(format!(
            "there is no client `{id}`: `mainstay client ls -a` lists all of them"
        ))),
    }
}

fn capabilities<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let names = names.iter().map(|name| limits::capability(name));
    names.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// A duration such as "45s".
mod duration {
    use std::time::Duration;

    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    use crate::text;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        text::duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A duration such as "45s", or "never".
mod time_limit {
    use std::time::Duration;

    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    use crate::limits::Limit;
    use crate::text;

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(
        limit: &Limit<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match limit {
            Some(limit) => super::duration::serialize(limit, to),
            None => to.serialize_str(text::NEVER),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Limit<Duration>, D::Error> {
        text::time_limit(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A size such as "512m", or "none".
mod memory {
    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    use crate::limits::{self, Limit};

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(limit: &Limit<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&limits::memory_text(*limit))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Limit<u64>, D::Error> {
        limits::memory(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A number, or "none".
mod pids {
    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    use crate::limits::{self, Limit};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(limit: &Limit<u32>, to: S) -> Result<S::Ok, S::Error> {
        match limit {
            Some(pids) => to.serialize_u32(*pids),
            None => to.serialize_str(limits::NONE),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Limit<u32>, D::Error> {
        let text = match toml::Value::deserialize(from)? {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        limits::pids(&text).map_err(D::Error::custom)
    }
}
