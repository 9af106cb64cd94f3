//! Specs as they were and are stored.

use serde::Deserialize;

use super::{ClientSettings, ProxySettings, ServerSpec, Transport, Workload};
use crate::{RestartPolicy, ServerName};

/// A spec in any form that was ever written. How a process speaks MCP stood beside the workload at
/// first; it stands in it since there are servers that run elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    name: ServerName,
    workload: Workload,
    transport: Option<Transport>,
    #[serde(default)]
    restart: RestartPolicy,
    #[serde(default)]
    proxy: ProxySettings,
    #[serde(default)]
    clients: ClientSettings,
}

/// A transport beside a workload that has none.
#[derive(Debug, thiserror::Error)]
#[error("server `{0}` is no process, so it has no `transport` beside its workload")]
pub(super) struct NoTransport(ServerName);

impl TryFrom<Stored> for ServerSpec {
    type Error = NoTransport;

    fn try_from(stored: Stored) -> Result<Self, NoTransport> {
        let Stored { name, mut workload, transport, restart, proxy, clients } = stored;
        match (&mut workload, transport) {
            (Workload::Process(process), Some(transport)) => process.transport = transport,
            (Workload::Container(_) | Workload::Remote(_), Some(_)) => {
                return Err(NoTransport(name));
            }
            (Workload::Process(_) | Workload::Container(_) | Workload::Remote(_), None) => {}
        }
        Ok(Self { name, workload, restart, proxy, clients })
    }
}
