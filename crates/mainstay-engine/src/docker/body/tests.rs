use std::collections::BTreeSet;

use mainstay_core::{EnvVar, RunId, Workload};
use serde_json::{Value, json};

use super::*;

fn container() -> ContainerSpec {
    let image = "mcp/time:1".parse().unwrap();
    ContainerSpec { engine: Some(EngineKind::Docker), ..ContainerSpec::new(image) }
}

fn http(port: u16) -> Transport {
    Transport::StreamableHttp { port, path: "/mcp".to_owned() }
}

fn body_with(change: impl FnOnce(&mut ContainerSpec), stop_timeout: Duration) -> Value {
    let mut container = container();
    change(&mut container);
    let spec = ServerSpec {
        name: "time".parse().unwrap(),
        workload: Workload::Container(container.clone()),
        restart: mainstay_core::RestartPolicy { stop_timeout, ..Default::default() },
        proxy: mainstay_core::ProxySettings::default(),
        clients: mainstay_core::ClientSettings::default(),
    };
    let key = RunKey::new(spec.name.clone(), RunId::new(7));
    serde_json::to_value(create_body(&spec, &container, "i-1", &key, "n-1")).unwrap()
}

fn body(change: impl FnOnce(&mut ContainerSpec)) -> Value {
    body_with(change, Duration::from_secs(10))
}

/// What a change of the spec makes of these fields of the host's part.
#[track_caller]
fn check_host(change: impl FnOnce(&mut ContainerSpec), expected: &Value) {
    let host = body(change)["HostConfig"].take();
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(host.get(name).unwrap_or(&Value::Null), value, "{name}");
    }
}

#[test]
fn a_stdio_server_is_strict_and_keeps_its_input_open() {
    let expected = json!({
        "Image": "mcp/time:1",
        "AttachStdin": true,
        "AttachStdout": true,
        "AttachStderr": true,
        "OpenStdin": true,
        "StdinOnce": false,
        "Tty": false,
        "StopTimeout": 10,
        "Labels": {
            "mainstay.instance": "i-1",
            "mainstay.server": "time",
            "mainstay.run": "7",
            "mainstay.nonce": "n-1",
        },
        "HostConfig": {
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 256,
            "Memory": 536_870_912,
            "MemorySwap": 536_870_912,
            "ReadonlyRootfs": false,
            "Init": true,
            "RestartPolicy": { "Name": "no" },
            "LogConfig": {
                "Type": "json-file",
                "Config": { "max-size": "10m", "max-file": "2" },
            },
        },
    });
    assert_eq!(body(|_| {}), expected);
}

#[test]
fn an_http_server_with_everything() {
    let change = |container: &mut ContainerSpec| {
        container.engine = Some(EngineKind::Podman);
        container.args = vec!["--zone".to_owned(), "UTC".to_owned()];
        container.env = [("A", "1"), ("B", "x=y z")]
            .map(|(name, value)| (name.to_owned(), EnvVar::new(value)))
            .into();
        container.volumes =
            ["/src:/dst:ro", "data:/data"].map(|text| text.parse().unwrap()).to_vec();
        container.network = Some("mine".to_owned());
        container.user = Some("1000:1000".to_owned());
        container.limits = Limits {
            memory: None,
            pids: None,
            cap_add: BTreeSet::from(["NET_ADMIN".to_owned(), "CHOWN".to_owned()]),
            new_privileges: true,
            read_only: true,
            init: false,
        };
        container.transport = http(8080);
    };
    let mut same = container();
    change(&mut same);
    let expected = json!({
        "Image": "mcp/time:1",
        "Cmd": ["--zone", "UTC"],
        "Env": ["A=1", "B=x=y z"],
        "User": "1000:1000",
        "AttachStdin": false,
        "AttachStdout": true,
        "AttachStderr": true,
        "OpenStdin": false,
        "StdinOnce": false,
        "Tty": false,
        "ExposedPorts": { "8080/tcp": {} },
        "StopTimeout": 2,
        "Labels": {
            "mainstay.instance": "i-1",
            "mainstay.server": "time",
            "mainstay.run": "7",
            "mainstay.nonce": "n-1",
        },
        "HostConfig": {
            "CapDrop": ["ALL"],
            "CapAdd": ["CHOWN", "NET_ADMIN"],
            "PidsLimit": -1,
            "ReadonlyRootfs": true,
            "Tmpfs": { "/tmp": "" },
            "Init": false,
            "NetworkMode": "mine",
            "Mounts": [
                { "Type": "bind", "Source": "/src", "Target": "/dst", "ReadOnly": true },
                { "Type": "volume", "Source": "data", "Target": "/data", "ReadOnly": false },
            ],
            "PortBindings": { "8080/tcp": [{ "HostIp": "127.0.0.1", "HostPort": "" }] },
            "RestartPolicy": { "Name": "no" },
        },
    });
    assert_eq!(body_with(change, Duration::from_millis(1001)), expected);
}

#[test]
fn in_the_host_s_network_nothing_is_published() {
    let change = |container: &mut ContainerSpec| {
        container.network = Some("host".to_owned());
        container.transport = http(8080);
    };
    check_host(change, &json!({ "NetworkMode": "host", "PortBindings": null }));
    assert_eq!(body(change).get("ExposedPorts"), None);
}

#[test]
fn a_volume_at_tmp_replaces_the_tmpfs_of_read_only_servers() {
    for target in ["/tmp", "/tmp/"] {
        let change = |container: &mut ContainerSpec| {
            container.limits.read_only = true;
            container.volumes = vec![format!("scratch:{target}").parse().unwrap()];
        };
        check_host(change, &json!({ "ReadonlyRootfs": true, "Tmpfs": null }));
    }
}

#[test]
fn without_a_chosen_engine_docker_is_assumed() {
    let log = json!({ "Type": "json-file", "Config": { "max-size": "10m", "max-file": "2" } });
    check_host(|container| container.engine = None, &json!({ "LogConfig": log }));
}

#[test]
fn stop_timeouts_are_whole_seconds() {
    let check = |timeout, expected: i64| {
        assert_eq!(body_with(|_| {}, timeout)["StopTimeout"], expected, "{timeout:?}");
    };
    check(Duration::ZERO, 0);
    check(Duration::from_millis(1), 1);
    check(Duration::from_secs(3), 3);
    check(Duration::MAX, i64::MAX);
}

#[test]
fn digests_are_stable() {
    // Written down by containers that exist: a change here would replace every one of them.
    assert_eq!(digest(&container()), "5fa2f28026851538");
}

#[test]
fn a_digest_changes_with_every_setting_of_the_container() {
    let set = |name: &str, value: &str| [(name.to_owned(), EnvVar::new(value))].into();
    let changes: [&dyn Fn(&mut ContainerSpec); 18] = [
        &|_| {},
        &|it| it.image = "mcp/time:2".parse().unwrap(),
        &|it| it.args = vec!["ab".to_owned()],
        &|it| it.args = vec!["a".to_owned(), "b".to_owned()],
        &|it| it.env = set("A", "1"),
        &|it| it.env = set("A", "2"),
        &|it| it.env = set("A", ""),
        &|it| it.volumes = vec!["/a:/b".parse().unwrap()],
        &|it| it.volumes = vec!["/a:/b:ro".parse().unwrap()],
        &|it| it.network = Some("mine".to_owned()),
        &|it| it.user = Some("mine".to_owned()),
        &|it| it.transport = http(1),
        &|it| it.transport = http(2),
        &|it| it.limits.memory = None,
        &|it| it.limits.pids = Some(1),
        &|it| it.limits.cap_add = BTreeSet::from(["CHOWN".to_owned()]),
        &|it| (it.limits.new_privileges, it.limits.init) = (true, false),
        &|it| it.limits.read_only = true,
    ];
    let digests: BTreeSet<String> = changes.iter().map(|change| changed(change)).collect();
    assert_eq!(digests.len(), changes.len());
}

#[test]
fn a_digest_ignores_settings_outside_the_container() {
    let check = |change: &dyn Fn(&mut ContainerSpec), other: &dyn Fn(&mut ContainerSpec)| {
        assert_eq!(changed(change), changed(other));
    };
    check(&|it| it.engine = None, &|it| it.engine = Some(EngineKind::Podman));
    check(&|it| it.host = Some("unix:///a".to_owned()), &|_| {});
    let other_path = Transport::StreamableHttp { port: 1, path: "/other".to_owned() };
    check(&|it| it.transport = http(1), &|it| it.transport = other_path.clone());
}

fn changed(change: &dyn Fn(&mut ContainerSpec)) -> String {
    let mut container = container();
    change(&mut container);
    digest(&container)
}
