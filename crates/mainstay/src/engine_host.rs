//! Where the caller's container engine is reached.
//!
//! The daemon finds an engine by itself, but does not know the caller's environment. An engine that the caller's
//! tools use (`DOCKER_HOST`, `CONTAINER_HOST` or a Docker context) is used here too, and stored with the server.

use mainstay_core::{ServerSpec, Workload};
use mainstay_daemon::discover::{self, Env, Files, Unusable};

use crate::context::Caller;
use crate::error::CliError;

/// Help for an engine that cannot be used.
pub(crate) const HELP: &str =
    "fix it (`docker context ls` lists all contexts), or set DOCKER_HOST to the engine's address";

impl From<Unusable> for CliError {
    fn from(error: Unusable) -> Self {
        Self::failed(error.to_string(), HELP)
    }
}

/// Stores the caller's engine in the spec of a container that has none, or with `replace` in any container.
pub(crate) fn set_engine(
    spec: &mut ServerSpec,
    replace: bool,
    caller: &Caller,
    files: &dyn Files,
) -> Result<(), Unusable> {
    if let Workload::Container(container) = &mut spec.workload
        && (replace || container.host.is_none())
        && let Some(engine) = discover::named(container.engine, &env(caller), files)?
    {
        container.host = Some(engine.address.to_string());
    }
    Ok(())
}

/// Where the caller's engines are looked for.
pub(crate) fn env(caller: &Caller) -> Env {
    Env::new(caller.env.clone())
}

#[cfg(test)]
mod tests {
    use mainstay_daemon::discover::Disk;

    use super::*;

    #[test]
    fn only_a_container_without_an_engine_gets_one() {
        let env = [("DOCKER_HOST", "tcp://d:1"), ("DOCKER_CERT_PATH", "/certs")];
        let env = env.map(|(key, value)| (key.into(), value.into())).into();
        let caller = Caller { env, cwd: None };
        let settled = |workload: serde_json::Value| {
            let spec = serde_json::json!({ "name": "time", "workload": workload });
            let mut spec: ServerSpec = serde_json::from_value(spec).unwrap();
            set_engine(&mut spec, false, &caller, &Disk).unwrap();
            spec.workload
        };
        let host = |workload| match workload {
            Workload::Container(container) => container.host,
            other => panic!("{other:?}"),
        };
        let image = |host: Option<&str>| serde_json::json!({ "image": "time", "host": host });
        let container = settled(serde_json::json!({ "container": image(None) }));
        assert_eq!(host(container).as_deref(), Some("tcp://d:1?certs=/certs"));
        let container = settled(serde_json::json!({ "container": image(Some("unix:///x")) }));
        assert_eq!(host(container).as_deref(), Some("unix:///x"));

        let moved = |caller: &Caller| {
            let workload = serde_json::json!({ "container": image(Some("unix:///x")) });
            let spec = serde_json::json!({ "name": "time", "workload": workload });
            let mut spec: ServerSpec = serde_json::from_value(spec).unwrap();
            set_engine(&mut spec, true, caller, &Disk).unwrap();
            host(spec.workload)
        };
        assert_eq!(moved(&caller).as_deref(), Some("tcp://d:1?certs=/certs"));
        let no_variables = Caller::default();
        assert_eq!(moved(&no_variables).as_deref(), Some("unix:///x"));
    }
}
