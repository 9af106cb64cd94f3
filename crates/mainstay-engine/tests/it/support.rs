//! What the tests of the process engine share.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{
    Cause, ClientSettings, EnvVar, Exit, ProcessSpec, ProxySettings, RestartPolicy, RunId,
    ServerSpec, Transport, Workload,
};
use mainstay_engine::{Engine, News, ProcessConfig, ProcessEngine, RunKey};
use mainstay_testkit::conformance::Subject;
use mainstay_testkit::programs::program;
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout};

/// No test waits longer for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A process engine in a directory of its own.
pub(crate) struct Processes {
    pub(crate) dir: TempDir,
    pub(crate) shim: PathBuf,
}

impl Processes {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        Self { dir, shim: program("mainstay") }
    }

    pub(crate) fn open(&self) -> ProcessEngine {
        self.open_as(1)
    }

    /// The engine of the daemon of this number.
    pub(crate) fn open_as(&self, daemon: u64) -> ProcessEngine {
        let config = ProcessConfig {
            shim: self.shim.clone(),
            runs_dir: self.dir.path().join("runs"),
            logs_dir: self.dir.path().join("logs"),
            instance: self.instance(),
            daemon,
            env: vec![("HOME".into(), self.dir.path().into()), ("HIDDEN".into(), "1".into())],
            log_max_bytes: 64 * 1024,
            log_keep: 2,
        };
        ProcessEngine::open(config).unwrap()
    }

    pub(crate) fn instance(&self) -> String {
        format!("test-{}", self.dir.path().file_name().unwrap().display())
    }

    /// A file of the servers' working directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn server(&self, name: &str, command: Vec<String>) -> ServerSpec {
        ServerSpec {
            name: name.parse().unwrap(),
            workload: Workload::Process(ProcessSpec {
                command,
                cwd: self.dir.path().to_owned(),
                env: BTreeMap::from([("GIVEN".to_owned(), EnvVar::new("yes"))]),
                path: Some("/usr/bin:/bin".to_owned()),
                transport: Transport::Stdio,
            }),
            restart: RestartPolicy::default(),
            proxy: ProxySettings::default(),
            clients: ClientSettings::default(),
        }
    }

    pub(crate) fn shell(&self, name: &str, script: &str) -> ServerSpec {
        self.server(name, ["sh", "-c", script].map(str::to_owned).to_vec())
    }
}

/// The same local server, on this port.
pub(crate) fn speaking_http(mut spec: ServerSpec, port: u16) -> ServerSpec {
    let Workload::Process(process) = &mut spec.workload else { panic!("it is no process") };
    process.transport = Transport::StreamableHttp { port, path: "/mcp".to_owned() };
    spec
}

impl Subject for Processes {
    fn fixture(&self, name: &str, flags: &[&str]) -> ServerSpec {
        let program = program("fixture-mcp").display().to_string();
        let flags = flags.iter().map(|&flag| flag.to_owned());
        self.server(name, [program].into_iter().chain(flags).collect())
    }

    fn http_fixture(&self, name: &str) -> ServerSpec {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        speaking_http(self.fixture(name, &["--http", &format!("127.0.0.1:{port}")]), port)
    }

    fn impossible(&self, name: &str) -> ServerSpec {
        self.server(name, vec!["no-such-program-anywhere".to_owned()])
    }

    fn shared_file(&self, name: &str) -> PathBuf {
        self.file(name)
    }

    fn is_alive(&self, pid: u32) -> Option<bool> {
        Some(is_alive(&pid.to_string()))
    }

    async fn reopen(&self) -> Arc<dyn Engine> {
        Arc::new(self.open())
    }
}

/// Starts a server and waits until nothing of it is left.
pub(crate) async fn run_to_end(engine: &ProcessEngine, spec: &ServerSpec) -> Exit {
    let mut news = engine.watch();
    engine.start(&first_run(spec), spec).await.unwrap();
    gone(&mut news).await
}

/// The first run of a server.
pub(crate) fn first_run(spec: &ServerSpec) -> RunKey {
    RunKey::new(spec.name.clone(), RunId::new(1))
}

/// Waits until nothing of a run is left.
pub(crate) async fn gone(news: &mut broadcast::Receiver<News>) -> Exit {
    loop {
        if let News::Gone { cause: Cause::Exited(exit), .. } =
            timeout(LIMIT, news.recv()).await.unwrap().unwrap()
        {
            return exit;
        }
    }
}

/// Waits until a file has been written, and reads it.
pub(crate) async fn written(path: &Path) -> String {
    let wait = async {
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    timeout(LIMIT, wait).await.unwrap()
}

pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}
