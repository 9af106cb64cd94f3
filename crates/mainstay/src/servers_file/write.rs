//! How a server is written: only what differs from the default, and no values of variables or
//! headers, nor what else may be a secret ([`redact`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mainstay_core::{EnvVar, HeaderName, ServerName, ServerSpec, Transport, Workload};

use super::redact;
use super::schema::{ContainerLimits, Reference, Server, Value};
use crate::transport::{DEFAULT_PATH, TransportName};

/// Docker's usual address. It may be elsewhere on another machine, so this one is not written.
const USUAL_HOST: &str = "unix:///var/run/docker.sock";

/// Appends the table of a server.
pub(super) fn write_server(text: &mut String, spec: &ServerSpec) {
    let table =
        |server| toml::Table::try_from(server).expect("specs are made of valid TOML values");
    let limits = Some(ContainerLimits::default());
    let default = table(Server { limits, ..Server::default() });
    let _infallible = writeln!(text, "\n[servers.{}]", spec.name);
    for (name, value) in table(Server::from(spec)) {
        let default = default.get(&name);
        let toml::Value::Table(members) = value else {
            if default != Some(&value) {
                let _infallible = writeln!(text, "{name} = {value}");
            }
            continue;
        };
        for (member, value) in members {
            if default.and_then(|default| default.get(&member)) != Some(&value) {
                let _infallible = writeln!(text, "{name}.{} = {value}", key(&member));
            }
        }
    }
}

impl From<&ServerSpec> for Server {
    fn from(spec: &ServerSpec) -> Self {
        let ServerSpec { name, workload, restart, proxy, clients } = spec.clone();
        let mut server = Self {
            clients: clients.only,
            refresh: clients.refresh,
            proxy,
            restart,
            ..Self::default()
        };
        match workload {
            Workload::Process(process) => {
                server.command = Some(redact::arguments(&process.command));
                server.cwd = Some(process.cwd);
                server.env = variables(&process.env);
                server.set_transport(process.transport);
            }
            Workload::Container(container) => {
                server.image = Some(container.image);
                server.args = redact::arguments(&container.args);
                server.engine = container.engine;
                server.host = container.host.filter(|host| host != USUAL_HOST);
                server.volumes = container.volumes;
                server.network = container.network;
                server.user = container.user;
                server.env = variables(&container.env);
                server.limits = Some(ContainerLimits(container.limits));
                server.set_transport(container.transport);
            }
            Workload::Remote(mut remote) => {
                let url = redact::url(remote.url.as_str()).parse();
                server.url = Some(url.expect("a URL with other query values is valid"));
                server.headers = remote
                    .headers
                    .into_keys()
                    .map(|header| {
                        let variable = remote.variables.remove(&header);
                        let variable = variable.unwrap_or_else(|| header_variable(&name, &header));
                        (header, Value::from_env(variable))
                    })
                    .collect();
            }
        }
        server
    }
}

impl Server {
    fn set_transport(&mut self, transport: Transport) {
        if let Transport::StreamableHttp { port, path } = transport {
            self.transport = Some(TransportName::StreamableHttp);
            self.target_port = Some(port);
            self.path = Some(path).filter(|path| path != DEFAULT_PATH);
        }
    }
}

impl Value {
    fn from_env(variable: String) -> Self {
        Self::Reference(Reference { from_env: variable })
    }
}

fn variables(env: &BTreeMap<String, EnvVar>) -> BTreeMap<String, Value> {
    env.keys().map(|variable| (variable.clone(), Value::from_env(variable.clone()))).collect()
}

/// The variable from which an import takes the value of a header that came from none. It is different for each
/// server, so that the credentials of one are never sent to another.
pub(super) fn header_variable(server: &ServerName, header: &HeaderName) -> String {
    let name = format!("{server}_{header}").to_ascii_uppercase();
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// A key of TOML, quoted if necessary.
fn key(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(bare) {
        text.to_owned()
    } else {
        toml::Value::String(text.to_owned()).to_string()
    }
}
