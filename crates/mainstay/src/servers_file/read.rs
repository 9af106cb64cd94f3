//! What a file may hold, and how that becomes specs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use mainstay_clients::Client;
use mainstay_core::{
    ClientSettings, ContainerSpec, EngineKind, EnvVar, HeaderName, HeaderValue, ImageRef, OnStop,
    ProcessSpec, ProxySettings, RefreshMode, RemoteSpec, RemoteUrl, RestartPolicy, ServerName,
    ServerSpec, StableFrom, Transport, Volume, Workload,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use super::ReadError;
use super::limits::RawLimits;
use super::redact;
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
    command: Option<Vec<String>>,
    image: Option<ImageRef>,
    url: Option<RemoteUrl>,
    #[serde(default)]
    headers: BTreeMap<HeaderName, Value>,
    cwd: Option<PathBuf>,
    #[serde(default)]
    args: Vec<String>,
    engine: Option<EngineKind>,
    host: Option<String>,
    #[serde(default)]
    volumes: Vec<Volume>,
    network: Option<String>,
    user: Option<String>,
    #[serde(default)]
    limits: RawLimits,
    transport: Option<TransportName>,
    target_port: Option<u16>,
    path: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    #[serde(default)]
    proxy: Proxy,
    #[serde(default)]
    restart: Restart,
    clients: Option<BTreeSet<ClientId>>,
    refresh: Option<RefreshMode>,
}

/// The id of a client that we know.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClientId(&'static str);

/// The value of a variable or a header: as it is, or where to find it.
enum Value {
    Literal(String),
    FromEnv(String),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Proxy {
    hold: Option<Time>,
    isolate: Option<bool>,
    isolate_idle: Option<Time>,
    replay: Option<BTreeSet<String>>,
    port: Option<u16>,
    quiet_restart: Option<bool>,
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
    /// Collects variables that are not set, so that one error names all of them.
    pub(super) fn into_spec(
        mut self,
        name: ServerName,
        values: &mut Values<'_>,
    ) -> Result<ServerSpec, ReadError> {
        let (restart, proxy) = (self.restart.policy(), self.proxy.settings());
        let only = self.clients.take();
        let clients = ClientSettings {
            only: only.map(|ids| ids.into_iter().map(|ClientId(id)| id.to_owned()).collect()),
            refresh: self.refresh,
        };
        match self.into_workload(values) {
            Ok(workload) => Ok(ServerSpec { name, workload, restart, proxy, clients }),
            Err(problem) => Err(ReadError::Server { name, problem }),
        }
    }

    fn into_workload(mut self, values: &mut Values<'_>) -> Result<Workload, String> {
        match (self.command.take(), self.image.take(), self.url.take()) {
            (Some(command), None, None) => {
                self.into_process(command, values).map(Workload::Process)
            }
            (None, Some(image), None) => {
                self.into_container(image, values).map(Workload::Container)
            }
            (None, None, Some(url)) => self.into_remote(url, values).map(Workload::Remote),
            (Some(_), Some(_), _) => Err("it has both a `command` and an `image`".to_owned()),
            (Some(_), _, Some(_)) => Err("it has both a `command` and a `url`".to_owned()),
            (_, Some(_), Some(_)) => Err("it has both an `image` and a `url`".to_owned()),
            (None, None, None) => Err("it has no `command`, `image` or `url`".to_owned()),
        }
    }

    fn into_process(
        self,
        command: Vec<String>,
        values: &mut Values<'_>,
    ) -> Result<ProcessSpec, String> {
        self.check_no_headers()?;
        self.check_no_container()?;
        let transport = self.transport()?;
        let Some(cwd) = self.cwd.or_else(|| values.caller.cwd.clone()) else {
            return Err("`cwd` is missing, and the current directory no longer exists".to_owned());
        };
        let env = variables(self.env, values);
        let Some(Workload::Process(held)) = values.held else {
            return Ok(ProcessSpec {
                command,
                cwd,
                env,
                path: values.caller.search_path(),
                transport,
            });
        };
        let is_same = redact::arguments(&held.command) == command || held.command == command;
        let (command, path) = if is_same {
            (held.command.clone(), held.path.clone())
        } else {
            (command, values.caller.search_path())
        };
        Ok(ProcessSpec { command, cwd, env, path, transport })
    }

    fn into_container(
        self,
        image: ImageRef,
        values: &mut Values<'_>,
    ) -> Result<ContainerSpec, String> {
        self.check_no_headers()?;
        if self.cwd.is_some() {
            return Err("`cwd` needs a `command`".to_owned());
        }
        let transport = self.transport()?;
        let (mut args, mut host) = (self.args, self.host);
        if let Some(Workload::Container(held)) = values.held {
            if redact::arguments(&held.args) == args {
                args.clone_from(&held.args);
            }
            // The usual address is not written.
            host = host.or_else(|| held.host.clone().filter(|_| held.engine == self.engine));
        }
        Ok(ContainerSpec {
            image,
            args,
            engine: self.engine,
            host,
            env: variables(self.env, values),
            volumes: self.volumes,
            network: self.network,
            user: self.user,
            limits: self.limits.into_limits(),
            transport,
        })
    }

    fn into_remote(
        self,
        mut url: RemoteUrl,
        values: &mut Values<'_>,
    ) -> Result<RemoteSpec, String> {
        self.check_no_container()?;
        let local = self.cwd.is_some()
            || self.transport == Some(TransportName::Stdio)
            || self.target_port.is_some()
            || self.path.is_some()
            || !self.env.is_empty();
        if local {
            let problem = "`cwd`, `target-port`, `path`, `env` and `stdio` need a `command`";
            return Err(problem.to_owned());
        }
        let held = match values.held {
            Some(Workload::Remote(held)) => Some(held),
            Some(Workload::Process(_) | Workload::Container(_)) | None => None,
        };
        if let Some(held) = held.filter(|held| redact::url(held.url.as_str()) == url.as_str()) {
            url = held.url.clone();
        }
        let (mut headers, mut variables) = (BTreeMap::new(), BTreeMap::new());
        // Credentials of one server are not sent to another.
        let held = held.filter(|held| held.url == url);
        for (name, value) in self.headers {
            let known = held.and_then(|held| held.headers.get(&name)).map(HeaderValue::reveal);
            let variable = value.variable().map(str::to_owned);
            let Some(value) = values.find(value, known) else { continue };
            // An export makes up a name for a value that came from no variable.
            let is_made_up = known == Some(&*value)
                && held.is_some_and(|held| !held.variables.contains_key(&name));
            variables
                .extend(variable.filter(|_| !is_made_up).map(|variable| (name.clone(), variable)));
            let value = value.parse().map_err(|error| format!("`headers.{name}`: {error}"))?;
            headers.insert(name, value);
        }
        Ok(RemoteSpec { url, headers, variables })
    }

    fn check_no_headers(&self) -> Result<(), &'static str> {
        if self.headers.is_empty() { Ok(()) } else { Err("`headers` need a `url`") }
    }

    fn check_no_container(&self) -> Result<(), &'static str> {
        let contained = !self.args.is_empty()
            || self.engine.is_some()
            || self.host.is_some()
            || !self.volumes.is_empty()
            || self.network.is_some()
            || self.user.is_some()
            || self.limits != RawLimits::default();
        if contained {
            return Err(
                "`args`, `engine`, `host`, `volumes`, `network`, `user` and `limits` need an \
                        `image`",
            );
        }
        Ok(())
    }

    fn transport(&self) -> Result<Transport, &'static str> {
        let name = self.transport.unwrap_or_default();
        name.with(self.target_port, self.path.as_deref()).map_err(|mismatch| match mismatch {
            Mismatch::NotHttp => "`target-port` and `path` need `transport = \"streamable-http\"`",
            Mismatch::NoPort => "`transport = \"streamable-http\"` needs a `target-port`",
        })
    }
}

impl Value {
    fn variable(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::FromEnv(variable) => Some(variable),
        }
    }
}

/// The variables of a server; those that are not set are noted.
fn variables(env: BTreeMap<String, Value>, values: &mut Values<'_>) -> BTreeMap<String, EnvVar> {
    let held = match values.held {
        Some(Workload::Process(held)) => Some(&held.env),
        Some(Workload::Container(held)) => Some(&held.env),
        Some(Workload::Remote(_)) | None => None,
    };
    let mut found = BTreeMap::new();
    for (variable, value) in env {
        let held = held.and_then(|held| held.get(&variable)).map(EnvVar::reveal);
        found.extend(values.find(value, held).map(|value| (variable, EnvVar::new(value))));
    }
    found
}

/// Where values come from that a file only refers to.
pub(super) struct Values<'a> {
    pub(super) caller: &'a Caller,
    /// The server that is replaced.
    pub(super) held: Option<&'a Workload>,
    /// Variables that hold no value.
    pub(super) unset: &'a mut Vec<String>,
}

impl Values<'_> {
    /// The value itself, that of the variable, or the one that is held.
    fn find(&mut self, value: Value, held: Option<&str>) -> Option<String> {
        match value {
            Value::Literal(value) => Some(value),
            Value::FromEnv(variable) => {
                let set = self.caller.var(&variable).and_then(|value| value.to_str());
                let found = set.or(held).map(str::to_owned);
                if found.is_none() {
                    self.unset.push(variable);
                }
                found
            }
        }
    }
}

impl Proxy {
    fn settings(&self) -> ProxySettings {
        let default = ProxySettings::default();
        ProxySettings {
            hold: self.hold.map_or(default.hold, |Time(time)| time),
            isolate: self.isolate.unwrap_or(default.isolate),
            isolate_idle: self.isolate_idle.map_or(default.isolate_idle, |Time(time)| time),
            replay: self.replay.clone().unwrap_or(default.replay),
            port: self.port.or(default.port),
            quiet_restart: self.quiet_restart.unwrap_or(default.quiet_restart),
        }
    }
}

impl Restart {
    fn policy(&self) -> RestartPolicy {
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

impl<'de> Deserialize<'de> for ClientId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let id = String::deserialize(from)?;
        let known = Client::by_id(&id).map(|client| Self(client.id));
        known.ok_or_else(|| {
            let help = "`mainstay client ls -a` lists all of them";
            de::Error::custom(format!("there is no client `{id}`: {help}"))
        })
    }
}

/// Written by hand, because an untagged enum does not say what is wrong with a value.
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
