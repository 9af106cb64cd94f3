//! The process engine: what every engine must do, and what only processes can.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use mainstay_core::watchdog::ReadPosition;
use mainstay_core::{Exit, RemoteSpec, Workload};
use mainstay_engine::{Engine, EngineError, FoundState, LogRange, StartError};
use mainstay_testkit::conformance;
use tokio::time::timeout;

use crate::support::{
    LIMIT, Processes, first_run, gone, is_alive, run_to_end, speaking_http, written,
};

#[tokio::test]
async fn it_conforms() {
    conformance::run_all(&Processes::new()).await;
}

#[tokio::test]
async fn a_server_sees_the_allowed_and_the_given_environment_only() {
    let processes = Processes::new();
    let engine = processes.open();
    let spec = processes.shell("env", "env > env.txt; pwd > pwd.txt");
    assert_eq!(run_to_end(&engine, &spec).await, Exit::code(0));
    let env = fs::read_to_string(processes.file("env.txt")).unwrap();
    assert!(env.contains("GIVEN=yes") && env.contains("HOME="), "{env}");
    assert!(!env.contains("HIDDEN"), "{env}");
    let pwd = fs::read_to_string(processes.file("pwd.txt")).unwrap();
    assert_eq!(Path::new(pwd.trim()), processes.dir.path().canonicalize().unwrap());
}

#[tokio::test]
async fn it_is_known_what_a_server_has_not_read_and_whether_it_runs() {
    let processes = Processes::new();
    let engine = processes.open();
    let mut news = engine.watch();
    let spec = processes.shell("deaf", "read one; echo read; exec sleep 600");
    let key = first_run(&spec);
    engine.start(&key, &spec).await.unwrap();
    let mut stdio = engine.attach(&key).await.unwrap();
    for line in ["1", "2", "3"] {
        stdio.to_server.send(line.into()).await.unwrap();
    }
    assert_eq!(timeout(LIMIT, stdio.from_server.recv()).await.unwrap().unwrap(), "read");
    let waiting = stdio.written.wait_for(|written| *written == 3);
    timeout(LIMIT, waiting).await.unwrap().unwrap();
    // The shell becomes `sleep`, and then nothing of the run is scheduled.
    let quiet = async {
        let mut last = engine.observe(&key).await.unwrap();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = engine.observe(&key).await.unwrap();
            if last == now && now.processes.is_some_and(|processes| !processes.is_active) {
                return now;
            }
            last = now;
        }
    };
    let quiet = timeout(LIMIT, quiet).await.unwrap();
    assert_eq!(quiet.input, Some(ReadPosition { line: 1, unread: 4 }));
    engine.log_stacks(&key).await.unwrap();
    let mut logged = engine.logs(&key.server, LogRange::default()).await.unwrap();
    let mut stacks = Vec::new();
    while let Some(line) = timeout(LIMIT, logged.recv()).await.unwrap() {
        stacks.push(line.text);
    }
    assert!(stacks.iter().any(|line| line.contains("(sleep)")), "{stacks:?}");
    engine.kill(&key).await.unwrap();
    gone(&mut news).await;
    assert_eq!(timeout(LIMIT, stdio.from_server.recv()).await.unwrap(), None);
    assert_eq!(*stdio.written.borrow(), 1, "two lines have not reached the server");
}

#[tokio::test]
async fn grandchildren_that_left_the_session_end_too() {
    let processes = Processes::new();
    let engine = processes.open();
    let script = "setsid sh -c 'echo $$ > child.txt; exec sleep 600' & \
                  while [ ! -s child.txt ]; do sleep 0.01; done; exit 4";
    assert_eq!(run_to_end(&engine, &processes.shell("parent", script)).await, Exit::code(4));
    let child = written(&processes.file("child.txt")).await;
    assert!(!is_alive(&child));
}

#[tokio::test]
async fn nothing_outlives_a_killed_shim() {
    let processes = Processes::new();
    let engine = processes.open();
    let mut news = engine.watch();
    let script = "setsid sh -c 'echo $$ > child.txt; exec sleep 600' & exec sleep 600";
    let spec = processes.shell("orphan", script);
    let key = first_run(&spec);
    let server = engine.start(&key, &spec).await.unwrap().pid.unwrap().to_string();
    let child = written(&processes.file("child.txt")).await;
    let run_dir = processes.file("runs/orphan/1");
    mainstay_hold::record::shim_alive(&run_dir).unwrap().unwrap().kill().unwrap();
    assert_eq!(gone(&mut news).await, Exit::UNKNOWN);
    assert!(!is_alive(&child) && !is_alive(&server));
}

#[tokio::test]
async fn a_remote_server_is_refused_by_this_engine() {
    let processes = Processes::new();
    let engine = processes.open();
    let url = "https://example.com/mcp".parse().unwrap();
    let mut spec = processes.shell("far", "");
    spec.workload =
        Workload::Remote(RemoteSpec { url, headers: BTreeMap::new(), variables: BTreeMap::new() });
    let refused = StartError::OtherEngine { engine: "remote" }.to_string();
    assert_eq!(engine.prepare(&spec).await.unwrap_err().to_string(), refused);
    let error = engine.start(&first_run(&spec), &spec).await.unwrap_err();
    assert_eq!(error.to_string(), refused);
    assert!(!error.is_temporary());
}

#[tokio::test]
async fn a_taken_port_is_reported_before_the_start() {
    let processes = Processes::new();
    let engine = processes.open();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        // Not every machine has IPv6.
        let Ok(taken) = TcpListener::bind(address) else { continue };
        let port = taken.local_addr().unwrap().port();
        let spec = speaking_http(processes.shell("http", "exec sleep 600"), port);
        let error = engine.start(&first_run(&spec), &spec).await.unwrap_err();
        assert!(
            matches!(error, StartError::PortTaken { port: told, .. } if told == port),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_script_without_its_interpreter_is_explained() {
    use std::os::unix::fs::PermissionsExt;
    let processes = Processes::new();
    let engine = processes.open();
    let script = processes.file("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let spec = processes.server("script", vec!["./script".to_owned()]);
    let key = first_run(&spec);
    let error = engine.start(&key, &spec).await.unwrap_err().to_string();
    assert!(error.contains("interpreter"), "{error}");
}

#[tokio::test]
async fn a_flood_neither_fills_the_log_nor_stops_the_server() {
    let processes = Processes::new();
    let engine = processes.open();
    let script = "head -c 2000000 /dev/zero | tr '\\0' 'x' | fold -w 99 >&2; exit 6";
    assert_eq!(run_to_end(&engine, &processes.shell("flood", script)).await, Exit::code(6));
    let logs = fs::read_dir(processes.file("logs")).unwrap();
    let sizes: Vec<u64> = logs.map(|file| file.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() <= 3 && sizes.iter().sum::<u64>() < 4 * 64 * 1024, "{sizes:?}");
}

#[tokio::test]
async fn requests_of_a_replaced_daemon_are_refused() {
    let processes = Processes::new();
    let old = processes.open_as(1);
    let spec = processes.shell("handed-over", "exec sleep 600");
    let key = first_run(&spec);
    old.start(&key, &spec).await.unwrap();
    let new = processes.open_as(2);
    let mut news = new.watch();
    new.list().await.unwrap();
    for refused in [old.stop(&key, Duration::ZERO).await, old.kill(&key).await] {
        assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    }
    assert!(matches!(old.attach(&key).await, Err(EngineError::Refused(_))));
    let found = new.list().await.unwrap();
    assert!(matches!(found[0].state, FoundState::Alive { .. }), "{found:?}");
    new.kill(&key).await.unwrap();
    gone(&mut news).await;
}

#[tokio::test]
async fn processed_output_is_not_repeated_and_the_rest_is() {
    let processes = Processes::new();
    let engine = processes.open();
    let spec = processes.shell("numbers", "printf '1\\n\\n2\\n3\\n4'; exec sleep 600");
    let key = first_run(&spec);
    engine.start(&key, &spec).await.unwrap();
    let mut stdio = engine.attach(&key).await.unwrap();
    for line in ["1", "2", "3"] {
        assert_eq!(timeout(LIMIT, stdio.from_server.recv()).await.unwrap().unwrap(), line);
    }
    stdio.consumed.send_replace(2);
    // The shim does not confirm it.
    let confirmed = async {
        loop {
            let next = processes.open_as(2);
            let mut stdio = next.attach(&key).await.unwrap();
            let line = stdio.from_server.recv().await.unwrap();
            if line != "1" {
                return line;
            }
        }
    };
    assert_eq!(timeout(LIMIT, confirmed).await.unwrap(), "3");
    let next = processes.open_as(2);
    let mut news = next.watch();
    next.list().await.unwrap();
    next.kill(&key).await.unwrap();
    gone(&mut news).await;
}

#[tokio::test]
async fn a_server_waits_for_a_slow_reader() {
    let processes = Processes::new();
    let engine = processes.open();
    let script = "i=0; while [ $i -lt 3000 ]; do printf '%01023d\\n' $i; i=$((i+1)); done; \
                  echo done > done.txt; exec sleep 600";
    let spec = processes.shell("patient", script);
    let key = first_run(&spec);
    let mut news = engine.watch();
    engine.start(&key, &spec).await.unwrap();
    let mut stdio = engine.attach(&key).await.unwrap();
    for number in 0..3000_u64 {
        let line = timeout(LIMIT, stdio.from_server.recv()).await.unwrap().unwrap();
        assert_eq!(line, format!("{number:01023}"), "no line is lost");
        if number == 1000 {
            assert!(!processes.file("done.txt").exists(), "the shim keeps no more than a MiB");
        }
        stdio.consumed.send_replace(number + 1);
    }
    written(&processes.file("done.txt")).await;
    engine.kill(&key).await.unwrap();
    gone(&mut news).await;
}

#[tokio::test]
async fn a_start_is_completed_when_its_caller_is_dropped() {
    let processes = Processes::new();
    let engine = processes.open();
    let mut news = engine.watch();
    let spec = processes.shell("abandoned", "exec sleep 600");
    let key = first_run(&spec);
    let start = timeout(Duration::ZERO, engine.start(&key, &spec)).await;
    assert!(start.is_err(), "a start takes its time");
    let listed = async {
        loop {
            let found = engine.list().await.unwrap();
            if let Some(FoundState::Alive { pid: Some(_), .. }) = found.first().map(|f| &f.state) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, listed).await.unwrap();
    engine.kill(&key).await.unwrap();
    assert_eq!(gone(&mut news).await, Exit::signal(9));
}

#[tokio::test]
async fn a_run_that_is_still_ending_does_not_delay_the_list() {
    let processes = Processes::new();
    let first = processes.open();
    let mut news = first.watch();
    let script = "sh -c 'trap \"\" TERM; echo $$ > child.txt; exec sleep 600' & exec sleep 600";
    let spec = processes.shell("ending", script);
    let key = first_run(&spec);
    first.start(&key, &spec).await.unwrap();
    let child = written(&processes.file("child.txt")).await;
    first.stop(&key, Duration::from_secs(600)).await.unwrap();
    let exited = timeout(LIMIT, news.recv()).await.unwrap().unwrap();
    assert!(matches!(exited, mainstay_engine::News::Exited { .. }), "{exited:?}");

    let next = processes.open();
    let mut news = next.watch();
    let found = timeout(LIMIT, next.list()).await.unwrap().unwrap();
    assert!(matches!(found[0].state, FoundState::Alive { .. }), "{found:?}");
    assert!(is_alive(&child));
    next.kill(&key).await.unwrap();
    assert_eq!(gone(&mut news).await, Exit::signal(15));
    assert!(!is_alive(&child));
}
