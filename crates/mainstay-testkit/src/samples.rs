//! Values that tests need and do not care about.

use std::collections::BTreeMap;

use mainstay_core::{
    ClientSettings, ProcessSpec, ProxySettings, RestartPolicy, RunId, ServerName, ServerSpec,
    Transport, Workload,
};
use mainstay_engine::RunKey;

/// The server `name`: a local stdio server.
pub fn spec(name: &str) -> ServerSpec {
    ServerSpec {
        name: server(name),
        workload: Workload::Process(ProcessSpec {
            command: vec!["true".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::new(),
            path: None,
            transport: Transport::Stdio,
        }),
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        clients: ClientSettings::default(),
    }
}

/// The run `run` of the server `name`.
pub fn key(name: &str, run: u64) -> RunKey {
    RunKey::new(server(name), RunId::new(run))
}

fn server(name: &str) -> ServerName {
    name.parse().unwrap()
}
