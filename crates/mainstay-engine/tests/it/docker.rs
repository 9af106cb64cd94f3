//! The engine of containers, with a real Docker and a real Podman: what every engine must do.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use mainstay_core::{
    ClientSettings, ContainerSpec, EngineKind, ProxySettings, RestartPolicy, ServerSpec, Transport,
    Volume, Workload,
};
use mainstay_engine::{DockerConfig, DockerEngine, Engine};
use mainstay_testkit::conformance::{self, Subject};
use mainstay_testkit::docker::{self, IMAGE};
use tempfile::TempDir;

/// Where servers that speak HTTP listen, in their containers.
const PORT: u16 = 8000;

#[test]
fn docker_conforms() {
    conform(EngineKind::Docker, docker::Engine::shared());
}

#[test]
fn podman_conforms() {
    conform(EngineKind::Podman, docker::Engine::podman());
}

fn conform(kind: EngineKind, real: docker::Engine) {
    real.enter();
    let containers = Containers::new(kind, real);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(conformance::run_all(&containers));
}

/// An engine of containers in a directory of its own.
struct Containers {
    kind: EngineKind,
    real: docker::Engine,
    dir: TempDir,
}

impl Containers {
    fn new(kind: EngineKind, real: docker::Engine) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["records", "logs", "shared"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        Self { kind, real, dir }
    }

    fn instance(&self) -> String {
        format!("test-{}", self.dir.path().file_name().unwrap().display())
    }

    fn server(&self, name: &str, image: &str, args: &[&str], transport: Transport) -> ServerSpec {
        let shared = self.dir.path().join("shared").display().to_string();
        let container = ContainerSpec {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            engine: Some(self.kind),
            host: Some(self.real.host()),
            volumes: vec![Volume { source: shared.clone(), target: shared, read_only: false }],
            transport,
            ..ContainerSpec::new(image.parse().unwrap())
        };
        ServerSpec {
            name: name.parse().unwrap(),
            workload: Workload::Container(container),
            restart: RestartPolicy::default(),
            proxy: ProxySettings::default(),
            clients: ClientSettings::default(),
        }
    }
}

impl Subject for Containers {
    fn fixture(&self, name: &str, flags: &[&str]) -> ServerSpec {
        self.server(name, IMAGE, flags, Transport::Stdio)
    }

    fn http_fixture(&self, name: &str) -> ServerSpec {
        let transport = Transport::StreamableHttp { port: PORT, path: "/mcp".to_owned() };
        self.server(name, IMAGE, &["--http", &format!("0.0.0.0:{PORT}")], transport)
    }

    fn impossible(&self, name: &str) -> ServerSpec {
        self.server(name, "mainstay-no-such-image:test", &[], Transport::Stdio)
    }

    fn shared_file(&self, name: &str) -> PathBuf {
        self.dir.path().join("shared").join(name)
    }

    fn is_alive(&self, _pid: u32) -> Option<bool> {
        // A container counts its processes by itself.
        None
    }

    async fn reopen(&self) -> Arc<dyn Engine> {
        let config = DockerConfig {
            instance: self.instance(),
            wanted: BTreeSet::from(conformance::SERVERS.map(|name| name.parse().unwrap())),
            records_dir: self.dir.path().join("records"),
            logs_dir: self.dir.path().join("logs"),
            env: vec![("DOCKER_HOST".into(), self.real.host().into())],
            log_max_bytes: 64 * 1024,
            log_keep: 2,
        };
        Arc::new(DockerEngine::open(config).await.unwrap())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        self.real.sweep(&format!("mainstay.instance={}", self.instance()));
    }
}
