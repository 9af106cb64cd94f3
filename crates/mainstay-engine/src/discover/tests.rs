use super::*;

fn env(variables: &[(&str, &str)]) -> Env {
    Env::new(variables.iter().map(|(name, value)| (name.into(), value.into())).collect())
}

/// The files of a machine on which engines are looked for.
#[derive(Default)]
struct Files(Vec<(PathBuf, String)>);

impl Files {
    fn with(mut self, path: &str, text: &str) -> Self {
        self.0.push((path.into(), text.to_owned()));
        self
    }

    fn context(self, dir: &str, name: &str, host: &str) -> Self {
        let meta = serde_json::json!({
            "Name": name,
            "Metadata": {},
            "Endpoints": { "docker": { "Host": host, "SkipTLSVerify": false } },
        });
        self.with(&format!("{dir}/meta.json"), &meta.to_string())
    }

    fn candidates(&self, kind: Option<EngineKind>, env: &Env) -> Vec<Candidate> {
        candidates(kind, env, self)
    }

    fn unusable(&self, kind: Option<EngineKind>, env: &Env) -> Vec<String> {
        unusable(kind, env, self).iter().map(ToString::to_string).collect()
    }
}

/// A file without text cannot be read.
impl super::Files for Files {
    fn read(&self, file: &Path) -> io::Result<String> {
        let found =
            self.0.iter().find(|(known, _)| known == file).ok_or(io::ErrorKind::NotFound)?;
        let text = Some(found.1.clone()).filter(|text| !text.is_empty());
        Ok(text.ok_or(io::ErrorKind::PermissionDenied)?)
    }

    fn list(&self, dir: &Path) -> Vec<PathBuf> {
        let child = |path: &PathBuf| Some(dir.join(path.strip_prefix(dir).ok()?.iter().next()?));
        self.0.iter().filter_map(|(path, _)| child(path)).collect()
    }
}

fn shown(candidates: &[Candidate]) -> Vec<String> {
    let show = |candidate: &Candidate| format!("{}: {}", candidate.from, candidate.address);
    candidates.iter().map(show).collect()
}

const META: &str = "/home/u/.docker/contexts/meta";
const HOME: (&str, &str) = ("HOME", "/home/u");

#[test]
fn default_addresses_are_in_order() {
    let env = env(&[HOME, ("XDG_RUNTIME_DIR", "/run/user/7")]);
    let docker = [
        "Docker: unix:///var/run/docker.sock",
        "rootless Docker: unix:///run/user/7/docker.sock",
        "Docker Desktop: unix:///home/u/.docker/run/docker.sock",
        "Docker Desktop: unix:///home/u/.docker/desktop/docker.sock",
        "OrbStack: unix:///home/u/.orbstack/run/docker.sock",
        "Colima: unix:///home/u/.colima/default/docker.sock",
        "Colima: unix:///home/u/.colima/docker.sock",
        "Colima: unix:///home/u/.config/colima/default/docker.sock",
        "Rancher Desktop: unix:///home/u/.rd/docker.sock",
    ];
    let podman = [
        "rootless Podman: unix:///run/user/7/podman/podman.sock",
        "Podman: unix:///run/podman/podman.sock",
        "the Podman machine: unix:///home/u/.local/share/containers/podman/machine/podman.sock",
    ];
    let files = Files::default();
    let check = |kind, expected: &[&str]| {
        assert_eq!(shown(&files.candidates(kind, &env)), expected, "{kind:?}");
    };
    check(None, &[&docker[..], &podman].concat());
    check(Some(EngineKind::Docker), &docker);
    check(Some(EngineKind::Podman), &podman);
}

#[test]
fn without_a_home_only_system_addresses_are_tried() {
    for env in [env(&[]), env(&[("HOME", ""), ("XDG_RUNTIME_DIR", "relative")])] {
        let found = shown(&Files::default().candidates(None, &env));
        let expected =
            ["Docker: unix:///var/run/docker.sock", "Podman: unix:///run/podman/podman.sock"];
        assert_eq!(found, expected);
    }
}

#[test]
fn settings_of_the_user_come_first() {
    let files = Files::default()
        .with("/home/u/.docker/config.json", r#"{"currentContext": "far"}"#)
        .context(&format!("{META}/aa"), "near", "unix:///near.sock")
        .context(&format!("{META}/bb"), "far", "unix:///far.sock");
    let given = [
        HOME,
        ("DOCKER_HOST", "tcp://10.0.0.1:2375"),
        ("CONTAINER_HOST", "unix:///pod.sock"),
        ("DOCKER_CONTEXT", "near"),
    ];
    let check = |kind, given: &[(&str, &str)], expected: &[&str]| {
        let found = shown(&files.candidates(kind, &env(given)));
        assert_eq!(found[..expected.len()], *expected, "{kind:?} {given:?}");
    };
    let all = [
        "DOCKER_HOST: tcp://10.0.0.1:2375",
        "the Docker context `near`: unix:///near.sock",
        "Docker: unix:///var/run/docker.sock",
    ];
    check(None, &given, &all);
    check(Some(EngineKind::Docker), &given, &all);
    let podman = ["CONTAINER_HOST: unix:///pod.sock", "Podman: unix:///run/podman/podman.sock"];
    check(Some(EngineKind::Podman), &given, &[podman[0], all[0], podman[1]]);
    check(None, &[HOME], &["the Docker context `far`: unix:///far.sock", all[2]]);
    let found = shown(&files.candidates(None, &env(&given)));
    let last_of_docker = found.iter().position(|shown| shown.starts_with("Rancher")).unwrap();
    assert_eq!(found[last_of_docker + 1..][..2], podman);
}

#[test]
fn each_address_is_tried_once() {
    let files = Files::default().with("/cfg/config.json", r#"{"currentContext": "c"}"#).context(
        "/cfg/contexts/meta/aa",
        "c",
        "unix:///var/run/docker.sock",
    );
    let env = env(&[("DOCKER_CONFIG", "/cfg"), ("DOCKER_HOST", "unix:///run/docker.sock")]);
    let found = shown(&files.candidates(Some(EngineKind::Docker), &env));
    assert_eq!(found, ["DOCKER_HOST: unix:///run/docker.sock"]);
}

#[test]
fn a_missing_context_gives_no_address() {
    let usual = "Docker: unix:///var/run/docker.sock";
    let check = |files: Files, context: &str| {
        let env = env(&[HOME, ("DOCKER_CONTEXT", context)]);
        assert_eq!(shown(&files.candidates(None, &env))[0], usual, "{context}");
    };
    let meta = format!("{META}/aa/meta.json");
    check(Files::default(), "default");
    check(Files::default().context(&format!("{META}/aa"), "other", "unix:///o.sock"), "mine");
    check(Files::default().with(&meta, "{"), "mine");
    check(Files::default().with(&meta, r#"{"Name": "mine", "Endpoints": {}}"#), "mine");
    check(Files::default().with("/home/u/.docker/config.json", "[]"), "");
}

#[test]
fn a_context_has_its_own_certificates() {
    let files = Files::default()
        .context(&format!("{META}/aa"), "tls", "tcp://far:2376")
        .context(&format!("{META}/bb"), "plain", "tcp://near:2375")
        .with("/home/u/.docker/contexts/tls/aa/docker/ca.pem", "proof");
    let tls_of = |context: &str| {
        let env = env(&[HOME, ("DOCKER_CONTEXT", context), ("DOCKER_CERT_PATH", "/certs")]);
        match files.candidates(None, &env).swap_remove(0).address {
            Address::Tcp { tls, .. } => tls,
            Address::Unix(path) => panic!("{}", path.display()),
        }
    };
    let own = Path::new("/home/u/.docker/contexts/tls/aa/docker");
    assert_eq!(tls_of("tls"), Some(TlsFiles::in_dir(own).unwrap()));
    assert_eq!(tls_of("plain"), None);
}

#[test]
fn settings_that_cannot_be_used_are_reported() {
    let files = Files::default().context(&format!("{META}/aa"), "far", "ssh://u@far");
    let given = env(&[
        HOME,
        ("DOCKER_HOST", "npipe:////./pipe/docker_engine"),
        ("DOCKER_CONTEXT", "far"),
        ("CONTAINER_HOST", "podman"),
    ]);
    let docker_host = format!("DOCKER_HOST: {}", AddressError::NamedPipe);
    let context = format!("the Docker context `far`: {}", AddressError::Ssh);
    let scheme = AddressError::Scheme("podman".to_owned());
    let container_host = format!("CONTAINER_HOST: {scheme}");
    let docker = Some(EngineKind::Docker);
    assert_eq!(files.unusable(docker, &given), [docker_host.clone(), context]);
    let podman = Some(EngineKind::Podman);
    assert_eq!(files.unusable(podman, &given), [container_host, docker_host]);
    assert_eq!(shown(&files.candidates(None, &given))[0], "Docker: unix:///var/run/docker.sock");
    assert_eq!(files.unusable(None, &env(&[HOME])), [""; 0]);
}

#[test]
fn addresses_are_written_as_they_are_read() {
    let check = |text: &str, expected: &str| {
        let address: Address = text.parse().unwrap();
        assert_eq!(address.to_string(), expected);
        assert_eq!(expected.parse(), Ok(address), "{text}");
    };
    check("unix:///var/run/docker.sock", "unix:///var/run/docker.sock");
    check("unix:///odd?certs=/x", "unix:///odd?certs=/x");
    check("/a b/docker.sock", "unix:///a b/docker.sock");
    check("tcp://127.0.0.1:2375", "tcp://127.0.0.1:2375");
    check("tcp://engine", "tcp://engine:2375");
    check("tcp://[::1]:99/", "tcp://[::1]:99");
    check("tcp://[::1]", "tcp://[::1]:2375");
    check("http://engine:80", "tcp://engine:80");
    check("tcp://engine:1?certs=/home/u/.docker", "tcp://engine:1?certs=/home/u/.docker");
    check("tcp://engine?certs=/a b?c", "tcp://engine:2376?certs=/a b?c");
}

#[test]
fn certificates_from_the_environment_are_written_too() {
    let given = env(&[HOME, ("DOCKER_CERT_PATH", "/certs"), ("DOCKER_TLS_VERIFY", "1")]);
    let check = |text: &str, expected: &str| {
        let address = Address::given(text, &given).unwrap();
        assert_eq!(address.to_string(), expected);
        assert_eq!(expected.parse(), Ok(address), "{text}");
    };
    check("tcp://far", "tcp://far:2376?certs=/certs");
    check("tcp://far:1?certs=/own", "tcp://far:1?certs=/own");
    check("http://far:80", "tcp://far:80");
    check("unix:///d.sock", "unix:///d.sock");
}

#[test]
fn the_engine_in_the_settings_is_chosen() {
    let files = Files::default()
        .with("/home/u/.docker/config.json", r#"{"auths": {}, "currentContext": "far"}"#)
        .context(&format!("{META}/aa"), "far", "tcp://far:2376")
        .with("/home/u/.docker/contexts/tls/aa/docker/ca.pem", "proof")
        .with(&format!("{META}/bb/meta.json"), r#"{"Name": "empty", "Endpoints": {}}"#);
    let check = |kind, given: &[(&str, &str)], expected: Result<Option<&str>, &str>| {
        let found = named(kind, &env(&[&[HOME], given].concat()), &files);
        let found = found.map(|found| found.map(|found| found.address.to_string()));
        let found = found.map_err(|error| error.to_string());
        assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expected);
    };
    let context = "tcp://far:2376?certs=/home/u/.docker/contexts/tls/aa/docker";
    let docker = ("DOCKER_HOST", "unix:///d");
    let container = ("CONTAINER_HOST", "unix:///p");
    for kind in [None, Some(EngineKind::Docker)] {
        check(kind, &[], Ok(Some(context)));
        check(kind, &[container], Ok(Some(context)));
        check(kind, &[docker, container, ("DOCKER_CONTEXT", "none")], Ok(Some("unix:///d")));
        check(kind, &[("DOCKER_CONTEXT", "default")], Ok(None));
        check(kind, &[("DOCKER_CONFIG", "/elsewhere")], Ok(None));
        let none =
            "DOCKER_CONTEXT: there is no Docker context `none` in `/home/u/.docker/contexts/meta`";
        check(kind, &[("DOCKER_CONTEXT", "none")], Err(none));
        let empty = "the Docker context `empty`: it has no address of an engine";
        check(kind, &[("DOCKER_CONTEXT", "empty")], Err(empty));
        let scheme = "DOCKER_HOST: `engine` is not the address of an engine: write it as `unix:///PATH` or \
                      `tcp://HOST:PORT`";
        check(kind, &[("DOCKER_HOST", "engine")], Err(scheme));
        let relative =
            "DOCKER_HOST: the directory of the certificates must be an absolute path, not `certs`";
        let certs = ("DOCKER_CERT_PATH", "certs");
        check(kind, &[("DOCKER_HOST", "tcp://far"), certs], Err(relative));
        check(kind, &[docker, certs], Ok(Some("unix:///d")));
    }
    let podman = Some(EngineKind::Podman);
    check(podman, &[docker, container], Ok(Some("unix:///p")));
    check(podman, &[docker], Ok(Some("unix:///d")));
    check(podman, &[], Ok(None));
}

#[test]
fn an_unparsable_file_is_reported() {
    let check = |text: &str, expected: &str| {
        let files = Files::default().with("/home/u/.docker/config.json", text);
        let error = named(None, &env(&[HOME]), &files).unwrap_err().to_string();
        assert_eq!(error, format!("`/home/u/.docker/config.json`: {expected}"));
    };
    check("", "it cannot be read: permission denied");
    check("{", "it is not valid JSON: EOF while parsing an object at line 1 column 1");
    let gone = "there is no Docker context `x` in `/home/u/.docker/contexts/meta`";
    check(r#"{"currentContext": "x"}"#, gone);
    let none = named(None, &env(&[HOME]), &Files::default());
    assert!(none.unwrap().is_none(), "a missing file chooses no engine");
}

#[test]
fn bad_addresses_are_rejected_with_advice() {
    let check = |text: &str, expected: AddressError| {
        assert_eq!(text.parse::<Address>(), Err(expected), "{text}");
    };
    let own = str::to_owned;
    check("ssh://user@host", AddressError::Ssh);
    check("npipe:////./pipe/docker_engine", AddressError::NamedPipe);
    check("fd://", AddressError::Descriptor);
    for text in ["unix://", "unix:///", "unix://relative"] {
        check(text, AddressError::Socket(own(text)));
    }
    for text in ["tcp://", "tcp://:1", "tcp://h:0", "tcp://h:x", "tcp://h:70000", "tcp://h/p"] {
        check(text, AddressError::Host(own(text)));
    }
    for text in ["tcp://h?x=/d", "tcp://?certs=/d", "tcp://::1:5", "tcp://u@h:1", "tcp://a b"] {
        check(text, AddressError::Host(own(text)));
    }
    check("tcp://h?certs=d", AddressError::Certificates(own("d")));
    for text in ["", "engine", "https://h", "ftp://h"] {
        check(text, AddressError::Scheme(own(text)));
    }
    let advice = AddressError::Ssh.to_string();
    assert!(advice.contains("unix:///tmp/engine.sock"), "{advice}");
}

#[test]
fn tcp_uses_tls_if_the_environment_enables_it() {
    let check = |text: &str, given: &[(&str, &str)], port: &str, dir: Option<&str>| {
        let expected = Address::Tcp {
            host_port: format!("h:{port}"),
            tls: dir.map(|dir| TlsFiles::in_dir(Path::new(dir)).unwrap()),
        };
        assert_eq!(Address::given(text, &env(given)), Ok(expected), "{text} {given:?}");
    };
    let (verify, certs) = (("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/certs"));
    check("tcp://h", &[HOME], "2375", None);
    check("tcp://h", &[HOME, ("DOCKER_TLS_VERIFY", "")], "2375", None);
    check("tcp://h", &[HOME, verify], "2376", Some("/home/u/.docker"));
    check("tcp://h", &[HOME, verify, certs], "2376", Some("/certs"));
    check("tcp://h:1", &[certs], "1", Some("/certs"));
    check("http://h", &[verify, certs], "2375", None);
    let unix = Address::given("unix:///s", &env(&[verify, certs]));
    assert_eq!(unix, Ok(Address::Unix("/s".into())));
}

#[test]
fn the_last_of_two_variables_wins() {
    let env = env(&[("A", "1"), ("A", "2"), ("B", "")]);
    assert_eq!((env.get("A"), env.get("B"), env.get("C")), (Some("2"), None, None));
}
