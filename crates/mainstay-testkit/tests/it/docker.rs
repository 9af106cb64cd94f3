//! Engines of the tests' own, and what is put in front of them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mainstay_testkit::docker::{Engine, Fault, FaultProxy, IMAGE, Options};

const PING: &str = "GET /_ping";
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn what_is_published_on_loopback_is_reached_from_inside() {
    for engine in [Engine::shared(), Engine::podman()] {
        engine.enter();
        let id = engine.docker(&[
            "run",
            "-d",
            "--init",
            "-p",
            "127.0.0.1::80",
            IMAGE,
            "--http",
            "0.0.0.0:80",
        ]);
        let address = engine.docker(&["port", &id, "80"]);
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        TcpStream::connect(address).unwrap();
        engine.docker(&["rm", "--force", &id]);
    }
}

#[test]
fn an_engine_is_ended_and_started_again_and_leaves_nothing() {
    let engine = Engine::own(Options { live_restore: true });
    let id = engine.docker(&["run", "-d", "-i", IMAGE]);
    let pid = engine.pid(&id);
    engine.kill();
    assert!(!engine.try_docker(&["version"]).status.success());
    engine.start();
    assert_eq!(engine.pid(&id), pid, "containers live on");
    engine.stop();
    engine.start();
    assert_eq!(engine.pid(&id), pid, "containers live on");
    let socket = engine.socket();
    drop(engine);
    assert!(!socket.parent().unwrap().exists());
    assert!(!Path::new("/proc").join(pid.to_string()).join("exe").exists());
}

#[test]
fn without_live_restore_containers_end_with_their_engine() {
    let engine = Engine::own(Options::default());
    let id = engine.docker(&["run", "-d", "-i", "--init", IMAGE]);
    engine.stop();
    engine.start();
    assert_eq!(engine.inspect(&id, "{{.State.Status}}"), "exited");
}

#[test]
fn a_proxy_without_a_fault_is_not_noticed() {
    let engine = Engine::shared();
    let proxy = FaultProxy::new(&engine);
    let through = |args: &[&str]| {
        let output =
            std::process::Command::new("docker").args(["-H", &proxy.host()]).args(args).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let said = through(&["run", "--rm", "--init", IMAGE, "--help"]);
    assert_eq!(said, engine.docker(&["run", "--rm", "--init", IMAGE, "--help"]) + "\n");
    assert!(proxy.count("POST /containers/") >= 2, "it was attached to and started");
}

#[test]
fn a_proxy_refuses_and_comes_back() {
    let proxy = FaultProxy::new(&Engine::shared());
    let mut open = connect(&proxy, "GET /events");
    assert!(head(&mut open).starts_with("HTTP/1.1 200"));
    proxy.set(&[Fault::Refuse]);
    assert_eq!(open.read(&mut [0; 1]).unwrap(), 0, "what was open is cut");
    assert!(UnixStream::connect(proxy.socket()).is_err());
    proxy.set(&[]);
    assert!(head(&mut connect(&proxy, PING)).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_proxy_keeps_events_to_itself_and_cuts_their_stream() {
    let engine = Engine::shared();
    let proxy = FaultProxy::new(&engine);
    proxy.set(&[Fault::MuteEvents]);
    let mut muted = connect(&proxy, "GET /events?filters=%7B%22type%22%3A%5B%22volume%22%5D%7D");
    assert!(head(&mut muted).starts_with("HTTP/1.1 200"));
    let volume = format!("muted-{}", std::process::id());
    engine.docker(&["volume", "create", &volume]);
    proxy.wait_for_muted(&volume);
    proxy.set(&[]);
    engine.docker(&["volume", "rm", &volume]);
    let mut told = Vec::new();
    // Others use the engine too.
    let of_ours = |told: &[u8], action: &str| {
        let told = String::from_utf8_lossy(told);
        told.lines().any(|line| line.contains(&volume) && line.contains(action))
    };
    while !of_ours(&told, "destroy") {
        let mut buffer = [0; 4096];
        let read = muted.read(&mut buffer).unwrap();
        assert_ne!(read, 0);
        told.extend_from_slice(&buffer[..read]);
    }
    assert!(!of_ours(&told, "create"), "it was told while muted");
    proxy.cut_events();
    assert_eq!(muted.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_proxy_fails_inspections_only() {
    let proxy = FaultProxy::new(&Engine::shared());
    proxy.set(&[Fault::FailInspect]);
    let answer = head(&mut connect(&proxy, "GET /v1.41/containers/none/json"));
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(head(&mut connect(&proxy, PING)).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_proxy_stalls_until_it_is_told_to_go_on() {
    let proxy = FaultProxy::new(&Engine::shared());
    proxy.set(&[Fault::Stall]);
    let mut stalled = connect(&proxy, PING);
    proxy.wait_for(PING, 1);
    stalled.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stalled.read(&mut [0; 1]).is_err(), "nothing comes");
    stalled.set_read_timeout(Some(LIMIT)).unwrap();
    proxy.set(&[]);
    assert!(head(&mut stalled).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_proxy_cuts_an_attachment_in_the_middle_of_a_frame() {
    let engine = Engine::shared();
    let proxy = FaultProxy::new(&engine);
    let id = engine.docker(&["run", "-d", "-i", IMAGE]);
    proxy.set(&[Fault::CutAttach(11)]);
    let request = format!("POST /containers/{id}/attach?stream=1&stdin=1&stdout=1");
    let mut attached = connect_with(&proxy, &request, "Connection: Upgrade\r\nUpgrade: tcp\r\n");
    assert!(head(&mut attached).starts_with("HTTP/1.1 101"));
    attached.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let mut frame = Vec::new();
    attached.read_to_end(&mut frame).unwrap();
    assert_eq!((frame.len(), frame[0]), (11, 1), "eight bytes of a header and three of a line");
    engine.docker(&["rm", "--force", &id]);
}

#[test]
fn another_engine_can_be_put_behind_a_proxy() {
    let (one, two) = (Engine::shared(), Engine::own(Options::default()));
    let proxy = FaultProxy::new(&one);
    let id = || {
        let mut answer = String::new();
        connect(&proxy, "GET /info").read_to_string(&mut answer).unwrap();
        answer.split_once("\"ID\":").unwrap().1[..40].to_owned()
    };
    let before = id();
    proxy.aim(&two);
    assert_ne!(id(), before);
}

fn connect(proxy: &FaultProxy, request: &str) -> UnixStream {
    connect_with(proxy, request, "")
}

fn connect_with(proxy: &FaultProxy, request: &str, fields: &str) -> UnixStream {
    let mut stream = UnixStream::connect(proxy.socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: engine\r\n{fields}\r\n").unwrap();
    stream
}

fn head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{head:?}");
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
