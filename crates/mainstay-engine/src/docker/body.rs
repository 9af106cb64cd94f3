//! The request that creates a server's container.
//!
//! A container is created once and started many times. It is strict unless its spec relaxes that: no
//! capabilities, no new privileges, bounded memory and processes, reachable from this machine only.
//! The engine never restarts it, because the supervisor decides that.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding,
    RestartPolicy, RestartPolicyNameEnum,
};
use mainstay_core::{ContainerSpec, EngineKind, Limits, ServerSpec, Transport, Volume};

use crate::RunKey;

// Labels are for users and for lists. They do not prove that Mainstay created a container, because anyone can
// set them, and `docker commit` copies them: see `ownership`.

/// Which instance of Mainstay a container belongs to.
pub(crate) const INSTANCE: &str = "mainstay.instance";
/// Which server it is.
pub(crate) const SERVER: &str = "mainstay.server";
/// For which run it was created.
pub(crate) const RUN: &str = "mainstay.run";
/// The nonce of its [`Creation`](super::creations::Creation).
pub(crate) const NONCE: &str = "mainstay.nonce";

pub(crate) fn create_body(
    spec: &ServerSpec,
    container: &ContainerSpec,
    instance: &str,
    key: &RunKey,
    nonce: &str,
) -> ContainerCreateBody {
    let labels = [
        (INSTANCE, instance.to_owned()),
        (SERVER, key.server.to_string()),
        (RUN, key.run.to_string()),
        (NONCE, nonce.to_owned()),
    ];
    let stdio = container.transport == Transport::Stdio;
    let env = container.env.iter().map(|(name, value)| format!("{name}={}", value.reveal()));
    ContainerCreateBody {
        image: Some(container.image.as_str().to_owned()),
        cmd: filled(container.args.clone()),
        env: filled(env.collect()),
        user: container.user.clone(),
        attach_stdin: Some(stdio),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(stdio),
        // A server outlives each connection to it.
        stdin_once: Some(false),
        tty: Some(false),
        exposed_ports: published_port(container).map(|port| vec![port]),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
        stop_timeout: Some(whole_seconds(spec.restart.stop_timeout)),
        host_config: Some(host_config(container)),
        ..ContainerCreateBody::default()
    }
}

/// Hashes the parts of the spec that determine the container: a changed digest means that a new container is
/// needed. The digest is stable across versions of Mainstay. It depends on secrets,
/// so it is kept in our records and not sent to the engine.
pub(crate) fn digest(container: &ContainerSpec) -> String {
    let mut hash = Fnv::new();
    hash.field("image", [container.image.as_str()]);
    hash.field("args", container.args.iter().map(String::as_str));
    let env = container.env.iter().flat_map(|(name, value)| [name.as_str(), value.reveal()]);
    hash.field("env", env);
    let volumes: Vec<String> = container.volumes.iter().map(Volume::to_string).collect();
    hash.field("volumes", volumes.iter().map(String::as_str));
    hash.field("network", container.network.as_deref());
    hash.field("user", container.user.as_deref());
    match &container.transport {
        Transport::Stdio => hash.flag("stdio", true),
        Transport::StreamableHttp { port, path: _ } => {
            hash.field("http", [port.to_string().as_str()]);
        }
    }
    let Limits { memory, pids, cap_add, new_privileges, read_only, init } = &container.limits;
    hash.field("memory", memory.map(|bytes| bytes.to_string()).as_deref());
    hash.field("pids", pids.map(|count| count.to_string()).as_deref());
    hash.field("cap_add", cap_add.iter().map(String::as_str));
    hash.flag("new_privileges", *new_privileges);
    hash.flag("read_only", *read_only);
    hash.flag("init", *init);
    hash.finish()
}

fn host_config(container: &ContainerSpec) -> HostConfig {
    let limits = &container.limits;
    let memory = limits.memory.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let no_new_privileges = (!limits.new_privileges).then(|| "no-new-privileges".to_owned());
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: filled(limits.cap_add.iter().cloned().collect()),
        security_opt: filled(Vec::from_iter(no_new_privileges)),
        // Left out, it would be the engine's own limit.
        pids_limit: Some(limits.pids.map_or(-1, i64::from)),
        memory,
        // The limit is of memory and swap together: equal means no swap.
        memory_swap: memory,
        readonly_rootfs: Some(limits.read_only),
        tmpfs: tmpfs(container),
        init: Some(limits.init),
        mounts: filled(container.volumes.iter().map(mount).collect()),
        network_mode: container.network.clone(),
        port_bindings: published_port(container)
            .map(|port| HashMap::from([(port, Some(vec![loopback()]))])),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: log_config(container.engine),
        ..HostConfig::default()
    }
}

/// The port that is published, in the notation of the API. None in the host's network.
fn published_port(container: &ContainerSpec) -> Option<String> {
    match container.transport {
        Transport::Stdio => None,
        Transport::StreamableHttp { .. } if container.network.as_deref() == Some("host") => None,
        Transport::StreamableHttp { port, .. } => Some(format!("{port}/tcp")),
    }
}

/// A free port of the loopback address, which the engine chooses at each start.
fn loopback() -> PortBinding {
    PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port: Some(String::new()) }
}

/// A writable `/tmp` for a read-only container, unless a volume is mounted there.
fn tmpfs(container: &ContainerSpec) -> Option<HashMap<String, String>> {
    let taken = |volume: &Volume| volume.target.trim_end_matches('/') == "/tmp";
    let wanted = container.limits.read_only && !container.volumes.iter().any(taken);
    wanted.then(|| HashMap::from([("/tmp".to_owned(), String::new())]))
}

/// A mount instead of a bind string: for the latter an engine creates a missing source, as root.
fn mount(volume: &Volume) -> Mount {
    let typ = if volume.source.starts_with('/') { MountType::BIND } else { MountType::VOLUME };
    Mount {
        typ: Some(typ),
        source: Some(volume.source.clone()),
        target: Some(volume.target.clone()),
        read_only: Some(volume.read_only),
        ..Mount::default()
    }
}

/// A log that can be read back and does not fill the disk. Podman's default is like that, and it has no
/// such settings.
fn log_config(engine: Option<EngineKind>) -> Option<HostConfigLogConfig> {
    match engine {
        Some(EngineKind::Podman) => None,
        Some(EngineKind::Docker) | None => Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "10m".to_owned()),
                ("max-file".to_owned(), "2".to_owned()),
            ])),
        }),
    }
}

/// Rounds up, because 0 means to kill at once.
fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// None for an empty list, so that the image decides.
fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// FNV-1a with 64 bits, over named fields whose values are delimited by their lengths.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a field. Without a value it counts as absent.
    fn field<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a str>) {
        for value in values {
            self.text(name);
            self.text(value);
        }
    }

    fn flag(&mut self, name: &str, on: bool) {
        self.field(name, on.then_some("on"));
    }

    fn text(&mut self, text: &str) {
        let length = text.len().to_string();
        for byte in length.bytes().chain([b':']).chain(text.bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests;
