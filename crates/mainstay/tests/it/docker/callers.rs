//! Callers whose connection another program makes for them, and callers in containers.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use mainstay_testkit::docker::Engine;
use serde_json::json;

use super::setup::{Rest, Wire, engine_env, run, server_name};
use crate::attacks::bystander::{Bystander, with_bystander};
use crate::env::{TestEnv, fixture, free_port, until};
use crate::proxy::raw::{BOTH, JSON, Raw, parts, request};

/// A program that is ended with the test.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn start(program: &str, args: &[&str], log: &Path) -> Helper {
    let log = fs::File::create(log).unwrap();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Helper(command.spawn().unwrap())
}

/// The status of a request to open a session, sent from the network namespace of a process.
fn opens_from(pid: u32, address: &str, path: &str, more: &str) -> String {
    opens_as(address, pid, address, path, more)
}

/// The same, with another Host header.
fn opens_as(named: &str, pid: u32, address: &str, path: &str, more: &str) -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "elsewhere", "version": "1"}});
    let body = request(1, "initialize", &params).to_string();
    let (host, port) = address.rsplit_once(':').unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {named}\r\nContent-Type: {JSON}\r\nAccept: {BOTH}\r\n{more}\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let script = format!("exec 3<>/dev/tcp/{host}/{port} && cat >&3 && head -n 1 <&3");
    let mut child = Command::new("nsenter")
        .args(["--target", &pid.to_string(), "--net", "/bin/bash", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
    let answer = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    answer.strip_prefix("HTTP/1.1 ").map_or(answer.clone(), |rest| rest[..3].to_owned())
}

#[test]
fn a_container_needs_a_token_at_the_address_of_its_bridge() {
    let engine = Rc::new(Engine::shared());
    let env = engine_env(&engine, &engine.host());
    let bridge = format!("{}:{}", bridge_ip(), free_port());
    let env = env.with_var("MAINSTAY_LISTEN", &format!("127.0.0.1:0,{bridge}"));
    let name = server_name("fx");
    let server = run(&env, &name, Wire::Stdio, &[], &[]);
    let _rest = Rest::new(&engine, &name);
    let mut bystander = with_bystander(&env);
    let path = format!("/{name}/mcp");
    let pid = engine.pid(server["container_id"].as_str().unwrap());
    let mut check = |what: &str, path: &str, token: &str, expected: &str| {
        let case = format!("a container calls with {what}");
        let status = bystander.during(&case, || opens_from(pid, &bridge, path, token));
        assert_eq!(status, expected, "{case}");
    };
    check("no token", &path, "", "403");
    let created = env.json(["token", "create", "c", "--server", &name, "--json"]);
    let token = format!("Authorization: Bearer {}\r\n", created["token"].as_str().unwrap());
    check("a token", &path, &token, "200");
    check("a token of another server", "/other/mcp", &token, "403");
    env.ok(["token", "rm", "c"]);
    check("a removed token", &path, &token, "403");
}

/// The address at which containers on the default bridge reach this machine, whose namespace this is.
fn bridge_ip() -> String {
    let shown = Command::new("ip").args(["-4", "-o", "addr", "show", "docker0"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let (ip, _) = shown.split_whitespace().nth(3).unwrap().split_once('/').unwrap();
    ip.to_owned()
}

/// A Mainstay with the fixture server, and where that is.
fn mainstay() -> (TestEnv, String, String) {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let (address, path) = parts(env.server("fx")["url"].as_str().unwrap());
    (env, address, path)
}

#[test]
fn a_tunnel_of_the_same_user_needs_no_token() {
    let (env, address, path) = mainstay();
    let dir = env.root();
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)])
            .status()
            .unwrap();
        assert!(made.success());
    }
    fs::copy(dir.join("user.pub"), dir.join("authorized")).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    let port = free_port().to_string();
    let options = [
        format!("HostKey={}", file("host")),
        format!("AuthorizedKeysFile={}", file("authorized")),
        "ListenAddress=127.0.0.1".to_owned(),
        "PidFile=none".to_owned(),
        "PermitRootLogin=yes".to_owned(),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
    ];
    let options = options.iter().flat_map(|option| ["-o", option]);
    let args: Vec<&str> =
        ["-D", "-e", "-f", "/dev/null", "-p", &port].into_iter().chain(options).collect();
    let _sshd = start("/usr/sbin/sshd", &args, &dir.join("sshd.log"));
    until("sshd listens", || TcpStream::connect(format!("127.0.0.1:{port}")).ok());
    let tunnel = free_port().to_string();
    let forward = format!("127.0.0.1:{tunnel}:{address}");
    let known = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"];
    let args = [
        &known[..],
        &["-F", "none", "-o", "ExitOnForwardFailure=yes", "-N", "-i", &file("user"), "-p", &port],
        &["-L", &forward, "root@127.0.0.1"],
    ];
    let _ssh = start("/usr/bin/ssh", &args.concat(), &dir.join("ssh.log"));
    until("the tunnel is open", || TcpStream::connect(format!("127.0.0.1:{tunnel}")).ok());
    let result = Bystander::of(&env, "fx").during("a call through a tunnel", || {
        let session = Raw::open(&format!("http://127.0.0.1:{tunnel}{path}"));
        let call = json!({"name": "echo", "arguments": {"text": "through"}});
        session.ask(1, "tools/call", &call)
    });
    assert!(result.to_string().contains("through"), "{result}");
}

/// As a rootless container reaches this machine: its packets end in a process of its user.
#[test]
fn the_relay_of_a_rootless_container_counts_as_its_user() {
    let (env, address, path) = mainstay();
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let sleeper = ["--net", "--kill-child", "--fork", "sleep", "60"];
    let container = start("/usr/bin/unshare", &sleeper, &env.root().join("unshare.log"));
    let pid = until("the container is there", || child_of(container.0.id()));
    let args = ["--configure", "--mtu=65520", &pid.to_string(), "tap0"];
    let _relay = start("/usr/bin/slirp4netns", &args, &env.root().join("slirp.log"));
    let inside = format!("10.0.2.2:{port}");
    let mut bystander = Bystander::of(&env, "fx");
    // The relay maps this address to the loopback address of its own network.
    let status = bystander.during("a relay with a foreign Host", || {
        until("the relay is up", || {
            let status = opens_from(pid, &inside, &path, "");
            (!status.is_empty()).then_some(status)
        })
    });
    assert_eq!(status, "403", "the Host header must name this machine");
    bystander.during("a relay of the same user without a token", || {
        until("the relay is served", || {
            (opens_as(&address, pid, &inside, &path, "") == "200").then_some(())
        });
    });
    let created = env.json(["token", "create", "c", "--json"]);
    let token = format!("Authorization: Bearer {}\r\n", created["token"].as_str().unwrap());
    let with_token = || opens_from(pid, &inside, &path, &token);
    assert_eq!(bystander.during("a relay with a token", with_token), "200");
}

/// The only child of a process, once it has one.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
