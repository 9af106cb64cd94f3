//! The process engine: what every engine must do, and what only processes can.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::{
    EnvVar, Exit, ProcessSpec, RestartPolicy, RunId, ServerSpec, Transport, Workload,
};
use mainstay_engine::{Engine, News, ProcessConfig, ProcessEngine, RunKey, StartError};
use mainstay_testkit::conformance::{self, Subject};
use mainstay_testkit::programs::program;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(30);

/// A process engine in a directory of its own.
struct Processes {
    dir: TempDir,
}

impl Processes {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        Self { dir }
    }

    async fn open(&self) -> ProcessEngine {
        let config = ProcessConfig {
            shim: program("mainstay"),
            runs_dir: self.dir.path().join("runs"),
            logs_dir: self.dir.path().join("logs"),
            instance: format!("test-{}", self.dir.path().file_name().unwrap().display()),
            daemon: 1,
            env: vec![("HOME".into(), self.dir.path().into()), ("HIDDEN".into(), "1".into())],
            log_max_bytes: 64 * 1024,
            log_keep: 2,
        };
        ProcessEngine::open(config).await.unwrap()
    }

    fn server(&self, name: &str, command: Vec<String>) -> ServerSpec {
        ServerSpec {
            name: name.parse().unwrap(),
            workload: Workload::Process(ProcessSpec {
                command,
                cwd: self.dir.path().to_owned(),
                env: BTreeMap::from([("GIVEN".to_owned(), EnvVar::new("yes"))]),
                path: Some("/usr/bin:/bin".to_owned()),
            }),
            transport: Transport::Stdio,
            restart: RestartPolicy::default(),
        }
    }

    fn shell(&self, name: &str, script: &str) -> ServerSpec {
        self.server(name, ["sh", "-c", script].map(str::to_owned).to_vec())
    }
}

impl Subject for Processes {
    fn fixture(&self, name: &str, flags: &[&str]) -> ServerSpec {
        let program = program("fixture-mcp").display().to_string();
        let flags = flags.iter().map(|&flag| flag.to_owned());
        self.server(name, [program].into_iter().chain(flags).collect())
    }

    fn impossible(&self, name: &str) -> ServerSpec {
        self.server(name, vec!["no-such-program-anywhere".to_owned()])
    }

    async fn reopen(&self) -> Arc<dyn Engine> {
        Arc::new(self.open().await)
    }
}

/// Starts a server and waits until nothing of it is left.
async fn run_to_end(engine: &ProcessEngine, spec: &ServerSpec) -> Exit {
    let mut news = engine.watch();
    let key = RunKey::new(spec.name.clone(), RunId::new(1));
    engine.start(&key, spec).await.unwrap();
    loop {
        if let News::Gone { exit, .. } = timeout(LIMIT, news.recv()).await.unwrap().unwrap() {
            return exit;
        }
    }
}

/// Waits until a file has been written, and reads it.
async fn written(path: &Path) -> String {
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

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[tokio::test]
async fn it_conforms() {
    conformance::run_all(&Processes::new()).await;
}

#[tokio::test]
async fn a_server_sees_the_allowed_and_the_given_environment_only() {
    let processes = Processes::new();
    let engine = processes.open().await;
    let spec = processes.shell("env", "env > env.txt; pwd > pwd.txt");
    assert_eq!(run_to_end(&engine, &spec).await, Exit::code(0));
    let env = fs::read_to_string(processes.dir.path().join("env.txt")).unwrap();
    assert!(env.contains("GIVEN=yes") && env.contains("HOME="), "{env}");
    assert!(!env.contains("HIDDEN"), "{env}");
    let pwd = fs::read_to_string(processes.dir.path().join("pwd.txt")).unwrap();
    assert_eq!(Path::new(pwd.trim()), processes.dir.path().canonicalize().unwrap());
}

#[tokio::test]
async fn grandchildren_that_left_the_session_end_too() {
    let processes = Processes::new();
    let engine = processes.open().await;
    let script = "setsid sh -c 'echo $$ > child.txt; exec sleep 600' & \
                  while [ ! -s child.txt ]; do sleep 0.01; done; exit 4";
    assert_eq!(run_to_end(&engine, &processes.shell("parent", script)).await, Exit::code(4));
    let child = written(&processes.dir.path().join("child.txt")).await;
    assert!(!is_alive(&child));
}

#[tokio::test]
async fn nothing_outlives_a_killed_shim() {
    let processes = Processes::new();
    let engine = processes.open().await;
    let mut news = engine.watch();
    let script = "setsid sh -c 'echo $$ > child.txt; exec sleep 600' & exec sleep 600";
    let spec = processes.shell("orphan", script);
    let key = RunKey::new(spec.name.clone(), RunId::new(1));
    let server = engine.start(&key, &spec).await.unwrap().pid.unwrap().to_string();
    let child = written(&processes.dir.path().join("child.txt")).await;
    let run_dir = processes.dir.path().join("runs/orphan/1");
    let shim = mainstay_hold::record::shim_alive(&run_dir).unwrap().unwrap();
    let shim = rustix::process::Pid::from_raw(i32::try_from(shim).unwrap()).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    let gone = async {
        loop {
            if let News::Gone { exit, .. } = news.recv().await.unwrap() {
                return exit;
            }
        }
    };
    assert_eq!(timeout(LIMIT, gone).await.unwrap(), Exit::UNKNOWN);
    assert!(!is_alive(&child) && !is_alive(&server));
}

#[tokio::test]
async fn a_taken_port_is_told_before_the_start() {
    let processes = Processes::new();
    let engine = processes.open().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut spec = processes.shell("http", "exec sleep 600");
    spec.transport = Transport::StreamableHttp { port, path: "/mcp".to_owned() };
    let key = RunKey::new(spec.name.clone(), RunId::new(1));
    let error = engine.start(&key, &spec).await.unwrap_err();
    assert!(matches!(error, StartError::PortTaken { port: told } if told == port), "{error}");
}

#[tokio::test]
async fn a_script_without_its_interpreter_is_explained() {
    use std::os::unix::fs::PermissionsExt;
    let processes = Processes::new();
    let engine = processes.open().await;
    let script = processes.dir.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let spec = processes.server("script", vec!["./script".to_owned()]);
    let key = RunKey::new(spec.name.clone(), RunId::new(1));
    let error = engine.start(&key, &spec).await.unwrap_err().to_string();
    assert!(error.contains("interpreter"), "{error}");
}

#[tokio::test]
async fn a_flood_neither_fills_the_log_nor_stops_the_server() {
    let processes = Processes::new();
    let engine = processes.open().await;
    let script = "head -c 2000000 /dev/zero | tr '\\0' 'x' | fold -w 99 >&2; exit 6";
    assert_eq!(run_to_end(&engine, &processes.shell("flood", script)).await, Exit::code(6));
    let logs = fs::read_dir(processes.dir.path().join("logs")).unwrap();
    let sizes: Vec<u64> = logs.map(|file| file.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() <= 3 && sizes.iter().sum::<u64>() < 4 * 64 * 1024, "{sizes:?}");
}
