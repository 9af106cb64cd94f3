//! Shims that do not do what they should.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use mainstay_engine::{Engine, EngineError, FoundState, RunKey};
use mainstay_hold::launch::Report;
use mainstay_hold::socket;
use mainstay_hold::wire::{Decoder, Frame as _, FromShim, ToShim, VERSION};
use mainstay_testkit::samples::key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{Processes, first_run, is_alive, written};

/// A run whose shim is played by the test.
fn plant(processes: &Processes, key: &RunKey) -> StdListener {
    let dir = processes.file(&format!("runs/{}/{}", key.server, key.run));
    fs::create_dir_all(&dir).unwrap();
    socket::bind(&dir, socket::SHIM).unwrap()
}

fn hello() -> FromShim {
    FromShim::Hello {
        version: VERSION,
        shim_pid: 1,
        server_pid: 7,
        started_unix_ms: 0,
        out_start: 0,
        out_end: 0,
        written: 0,
        exited: false,
        newest_daemon: 0,
    }
}

async fn send(stream: &mut UnixStream, message: &FromShim) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

/// Greets one daemon after a while, and answers it.
async fn play_slow(listener: StdListener) {
    listener.set_nonblocking(true).unwrap();
    let (mut stream, _) = UnixListener::from_std(listener).unwrap().accept().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    send(&mut stream, &hello()).await;
    let (mut decoder, mut buffer) = (Decoder::<ToShim>::default(), Vec::new());
    while stream.read_buf(&mut buffer).await.unwrap() > 0 {
        decoder.push(&std::mem::take(&mut buffer));
        while let Some(frame) = decoder.next().unwrap() {
            if frame == ToShim::Tail {
                send(&mut stream, &FromShim::Tail { stderr: Vec::new() }).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_and_silent_shims_delay_only_themselves() {
    let processes = Processes::new();
    let engine = processes.open();
    let mut shims = JoinSet::new();
    for run in 1..=40 {
        shims.spawn(play_slow(plant(&processes, &key("slow", run))));
    }
    let _mute = plant(&processes, &key("mute", 1));
    let begun = Instant::now();
    let found = engine.list().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(found.len(), 41);
    assert!(found.iter().all(|found| matches!(found.state, FoundState::Alive { .. })));
    assert_eq!(found[0].key, key("mute", 1), "in order");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_run_is_distinguished_from_a_gone_one() {
    let processes = Processes::new();
    let engine = processes.open();
    let absent = engine.attach(&key("absent", 1)).await.unwrap_err();
    assert!(matches!(&absent, EngineError::NoSuchRun(_)) && !absent.is_temporary());

    let mute = key("mute", 1);
    let _listener = plant(&processes, &mute);
    let error = engine.attach(&mute).await.unwrap_err();
    assert!(matches!(&error, EngineError::NoAnswer) && error.is_temporary());

    // Nobody accepts, so its queue is full at some point.
    let dir = processes.file("runs/mute/1");
    let mut queue = Vec::new();
    while let Ok(waiting) = socket::connect(&dir, socket::SHIM) {
        queue.push(waiting);
    }
    let error = engine.attach(&mute).await.unwrap_err();
    assert!(matches!(&error, EngineError::NoAnswer) && error.is_temporary());
}

#[tokio::test]
async fn a_shim_with_too_many_connections_refuses_temporarily() {
    let processes = Processes::new();
    let engine = processes.open();
    let crowded = key("crowded", 1);
    let listener = plant(&processes, &crowded);
    listener.set_nonblocking(true).unwrap();
    let refuse = async move {
        let listener = UnixListener::from_std(listener).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        send(&mut stream, &hello()).await;
        send(&mut stream, &FromShim::Refused { why: "there are too many connections".into() })
            .await;
        // Until the engine has read it.
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    };
    let (attached, ()) = tokio::join!(engine.attach(&crowded), refuse);
    let error = attached.unwrap_err();
    assert!(matches!(&error, EngineError::Refused(_)) && error.is_temporary(), "{error}");
}

/// A program that is called as a shim, leaves a marked process, prints this and continues.
async fn check_failed_start(says: &[u8], passing: bool) {
    let mut processes = Processes::new();
    fs::write(processes.file("says"), says).unwrap();
    let dir = processes.dir.path().display();
    let mark = format!("MAINSTAY_RUN={}/broken/1", processes.instance());
    let script = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin; cat > {dir}/launch\n\
         env {mark} setsid sh -c 'echo $$ > {dir}/child.txt; exec sleep 600' > {dir}/null &\n\
         while [ ! -s {dir}/child.txt ]; do sleep 0.01; done; echo $$ > {dir}/shim.txt\n\
         cat {dir}/says; exec sleep 600 > {dir}/null\n"
    );
    processes.shim = processes.file("broken-shim");
    fs::write(&processes.shim, script).unwrap();
    fs::set_permissions(&processes.shim, fs::Permissions::from_mode(0o755)).unwrap();

    let engine = processes.open();
    let spec = processes.shell("broken", "exec sleep 600");
    let error = engine.start(&first_run(&spec), &spec).await.unwrap_err();
    assert_eq!(error.is_temporary(), passing, "{error:?}");
    for file in ["shim.txt", "child.txt"] {
        let pid = written(&processes.file(file)).await;
        assert!(!is_alive(&pid), "{file} names a process that outlived a failed start");
    }
    assert_eq!(engine.list().await.unwrap(), []);
    assert!(!processes.file("runs/broken/1").exists());
}

#[tokio::test]
async fn a_start_whose_shim_does_not_listen_leaves_nothing() {
    check_failed_start(&Report::Started { server_pid: 1 }.encode(), true).await;
}

#[tokio::test]
async fn a_start_whose_shim_reports_garbage_leaves_nothing() {
    check_failed_start(b"nonsense", false).await;
}

#[tokio::test]
async fn a_start_whose_shim_reports_nothing_leaves_nothing() {
    check_failed_start(b"", true).await;
}
