//! How the tables of the file become specs.

use std::collections::BTreeMap;

use mainstay_core::{
    ClientSettings, ContainerSpec, EnvVar, HeaderValue, ImageRef, ProcessSpec, RemoteSpec,
    RemoteUrl, ServerName, ServerSpec, Transport, Workload,
};

use super::ReadError;
use super::redact;
use super::schema::{Server, Value};
use crate::context::Caller;
use crate::transport::{Mismatch, TransportName};

impl Server {
    /// Collects variables that are not set, so that one error names all of them.
    pub(super) fn into_spec(
        mut self,
        name: ServerName,
        values: &mut Values<'_>,
    ) -> Result<ServerSpec, ReadError> {
        let clients = ClientSettings { only: self.clients.take(), refresh: self.refresh };
        let (restart, proxy) = (self.restart.clone(), self.proxy.clone());
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
        let (command, path) = match values.held {
            Some(Workload::Process(held))
                if redact::arguments(&held.command) == command || held.command == command =>
            {
                (held.command.clone(), held.path.clone())
            }
            _ => (command, values.caller.search_path()),
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
            limits: self.limits.unwrap_or_default().0,
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
        let mut held = match values.held {
            Some(Workload::Remote(held)) => Some(held),
            Some(Workload::Process(_) | Workload::Container(_)) | None => None,
        };
        if let Some(held) = held.filter(|held| redact::url(held.url.as_str()) == url.as_str()) {
            url = held.url.clone();
        }
        // Credentials of one server are not sent to another.
        held = held.filter(|held| held.url == url);
        let (mut headers, mut variables) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in self.headers {
            let known = held.and_then(|held| held.headers.get(&name)).map(HeaderValue::reveal);
            let variable = match &value {
                Value::Literal(_) => None,
                Value::Reference(reference) => Some(reference.from_env.clone()),
            };
            let Some(value) = values.find(value, known) else { continue };
            // An export makes up a name for a value that came from no variable.
            let is_made_up = known == Some(&*value)
                && held.is_some_and(|held| !held.variables.contains_key(&name));
            variables.extend(variable.filter(|_| !is_made_up).map(|it| (name.clone(), it)));
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
            || self.limits.is_some();
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
    /// Variables that are not set.
    pub(super) unset: &'a mut Vec<String>,
}

impl Values<'_> {
    /// The value itself, that of the variable, or the one that is held.
    fn find(&mut self, value: Value, held: Option<&str>) -> Option<String> {
        let variable = match value {
            Value::Literal(value) => return Some(value),
            Value::Reference(reference) => reference.from_env,
        };
        let set = self.caller.var(&variable).and_then(|value| value.to_str());
        let found = set.or(held).map(str::to_owned);
        if found.is_none() {
            self.unset.push(variable);
        }
        found
    }
}
