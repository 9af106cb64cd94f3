//! What a file may hold, and how that becomes specs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_core::{
    EnvVar, OnStop, ProcessSpec, RestartPolicy, ServerName, ServerSpec, StableFrom, Transport,
    Workload,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use super::ReadError;
use crate::context::Caller;
use crate::text;
use crate::transport::{Mismatch, TransportName};

/// What every version has. Nothing else is looked at before the version is known.
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Server {
    command: Vec<String>,
    cwd: Option<PathBuf>,
    #[serde(default)]
    transport: TransportName,
    target_port: Option<u16>,
    path: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    #[serde(default)]
    restart: Restart,
}

/// A variable's value: as it is, or where to find it.
enum Value {
    Literal(String),
    FromEnv(String),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Restart {
    max: Option<u32>,
    initial: Option<Time>,
    cap: Option<Time>,
    stable_after: Option<Time>,
    stable_from: Option<StableFrom>,
    on_stop: Option<OnStop>,
    start_timeout: Option<Time>,
    stop_timeout: Option<Time>,
}

/// A duration such as "45s".
#[derive(Clone, Copy)]
struct Time(Duration);

impl Server {
    /// The spec. Variables that are not set are noted, so that all of them can be told at once.
    pub(super) fn into_spec(
        self,
        name: ServerName,
        caller: &Caller,
        unset: &mut Vec<String>,
    ) -> Result<ServerSpec, ReadError> {
        let transport = match self.transport() {
            Ok(transport) => transport,
            Err(problem) => return Err(ReadError::Server { name, problem }),
        };
        let Some(cwd) = self.cwd.or_else(|| caller.cwd.clone()) else {
            let problem = "it names no cwd, and the current directory no longer exists";
            return Err(ReadError::Server { name, problem });
        };
        let mut env = BTreeMap::new();
        for (variable, value) in self.env {
            match value {
                Value::Literal(value) => {
                    env.insert(variable, EnvVar::new(value));
                }
                Value::FromEnv(source) => match caller.var(&source).and_then(|v| v.to_str()) {
                    Some(value) => {
                        env.insert(variable, EnvVar::new(value));
                    }
                    None => unset.push(source),
                },
            }
        }
        Ok(ServerSpec {
            name,
            workload: Workload::Process(ProcessSpec {
                command: self.command,
                cwd,
                env,
                path: caller.search_path(),
            }),
            transport,
            restart: self.restart.into_policy(),
        })
    }

    fn transport(&self) -> Result<Transport, &'static str> {
        let transport = self.transport.with(self.target_port, self.path.as_deref());
        transport.map_err(|mismatch| match mismatch {
            Mismatch::NotHttp => "`target-port` and `path` need `transport = \"streamable-http\"`",
            Mismatch::NoPort => "`transport = \"streamable-http\"` needs a `target-port`",
        })
    }
}

impl Restart {
    fn into_policy(self) -> RestartPolicy {
        let default = RestartPolicy::default();
        let time = |given: Option<Time>, default| given.map_or(default, |Time(time)| time);
        RestartPolicy {
            max: self.max.unwrap_or(default.max),
            initial: time(self.initial, default.initial),
            cap: time(self.cap, default.cap),
            stable_after: time(self.stable_after, default.stable_after),
            stable_from: self.stable_from.unwrap_or(default.stable_from),
            on_stop: self.on_stop.unwrap_or(default.on_stop),
            start_timeout: time(self.start_timeout, default.start_timeout),
            stop_timeout: time(self.stop_timeout, default.stop_timeout),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text::duration(&text).map(Self).map_err(de::Error::custom)
    }
}

/// By hand, because an untagged enum could not tell what is wrong with a value.
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct Reference {
            from_env: String,
        }

        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = Value;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or `{ from-env = \"NAME\" }`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Literal(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
                let reference = Reference::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Value::FromEnv(reference.from_env))
            }
        }

        from.deserialize_any(ValueVisitor)
    }
}
