//! The stored forms of specs.

use serde::Deserialize;

use super::{ClientSettings, ProxySettings, ServerSpec, Transport, Workload};
use crate::{RestartPolicy, ServerName};

/// A spec in any form that was ever stored. In the first form, the transport was beside the workload.
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
#[error("server `{0}` is not a process, so it has no `transport` beside its workload")]
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
