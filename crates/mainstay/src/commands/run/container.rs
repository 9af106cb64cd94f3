//! From arguments to a server in a container.

use std::path::{Component, Path, PathBuf};

use mainstay_core::{
    ContainerSpec, ImageError, ImageRef, Limits, Volume, VolumeError, human_bytes,
};

use super::args::{Args, ContainerArgs};
use super::describe::{env_from, no_headers, transport_from};
use crate::context::Caller;
use crate::error::CliError;
use crate::limits::memory_text;

/// The container that the arguments describe. Settings that they leave out come from `old`, or are the defaults.
pub(super) fn container_from(
    args: &Args,
    image: &ImageRef,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&ContainerSpec>,
) -> Result<ContainerSpec, CliError> {
    if args.cwd.is_some() {
        return Err(CliError::misuse(
            "--cwd is for servers that run as a process",
            "leave it out: the image sets the directory; mount files with --volume",
        ));
    }
    no_headers(args)?;
    let given = &args.container;
    let old = old.cloned().unwrap_or_else(|| ContainerSpec::new(image.clone()));
    let volumes = given.volume.iter().map(|flag| volume_from(flag, caller));
    let volumes: Vec<Volume> = volumes.collect::<Result<_, _>>()?;
    Ok(ContainerSpec {
        image: image.clone(),
        env: env_from(args, caller, env_files, Some(&old.env))?,
        transport: transport_from(args, Some(&old.transport))?,
        limits: limits_from(given, &old.limits),
        args: if args.command.is_empty() { old.args } else { args.command.clone() },
        // An engine of another kind has another address.
        host: old.host.filter(|_| given.engine.is_none() || given.engine == old.engine),
        engine: given.engine.or(old.engine),
        volumes: if volumes.is_empty() { old.volumes } else { volumes },
        network: given.network.clone().or(old.network),
        user: given.user.clone().or(old.user),
    })
}

/// Warnings about mounts that give a container control over the machine.
pub(super) fn mount_warnings(container: &ContainerSpec, home: Option<&Path>) -> Vec<String> {
    let warning = |volume: &Volume| {
        let source = Path::new(&volume.source);
        let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_engine =
            matches!(name, "docker.sock" | "podman.sock" | "containerd.sock" | "crio.sock")
                || ["/run", "/var/run", "/run/docker", "/run/podman"]
                    .iter()
                    .any(|dir| source == Path::new(dir));
        let shown = source.display();
        if is_engine {
            return Some(format!(
                "{shown} gives the container control over its engine, and so over this machine"
            ));
        }
        let is_wide = ["/", "/etc", "/root", "/home", "/usr", "/var", "/proc", "/sys", "/dev"]
            .iter()
            .any(|dir| source == Path::new(dir))
            || home.is_some_and(|home| source == home);
        is_wide.then(|| {
            format!("the container can read all of {shown}: mount only the directory that it needs")
        })
    };
    container.volumes.iter().filter_map(warning).collect()
}

/// Reads `--image IMAGE`.
pub(super) fn image(text: &str) -> Result<ImageRef, String> {
    if text.contains(char::is_whitespace) {
        return Err(
            "an image name has no blanks; give arguments of its entry point after `--`".to_owned()
        );
    }
    text.parse().map_err(|error: ImageError| error.to_string())
}

/// The error for too little memory, usually because the unit is missing.
pub(super) fn too_little_memory(limit: u64) -> CliError {
    let given = memory_text(Some(limit));
    let size = if limit == 1 { "1 byte".to_owned() } else { human_bytes(limit) };
    CliError::usage(format!("--memory {given} is {size}: write it like 512m or 2g; at least 6m"))
}

/// Refuses options that are for containers only.
pub(super) fn no_container(args: &ContainerArgs) -> Result<(), CliError> {
    let flags = [
        ("--engine", args.engine.is_some()),
        ("--volume", !args.volume.is_empty()),
        ("--network", args.network.is_some()),
        ("--user", args.user.is_some()),
        ("--memory", args.memory.is_some()),
        ("--pids-limit", args.pids_limit.is_some()),
        ("--cap-add", !args.cap_add.is_empty()),
        ("--allow-new-privileges", args.allow_new_privileges.is_some()),
        ("--read-only", args.read_only.is_some()),
        ("--no-init", args.no_init.is_some()),
    ];
    match flags.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(CliError::misuse(
            format!("{flag} is for servers in containers"),
            "give an --image, or leave out this option",
        )),
        None => Ok(()),
    }
}

fn limits_from(args: &ContainerArgs, old: &Limits) -> Limits {
    Limits {
        memory: args.memory.unwrap_or(old.memory),
        pids: args.pids_limit.unwrap_or(old.pids),
        cap_add: match &args.cap_add[..] {
            [] => old.cap_add.clone(),
            given => given.iter().cloned().collect(),
        },
        new_privileges: args.allow_new_privileges.unwrap_or(old.new_privileges),
        read_only: args.read_only.unwrap_or(old.read_only),
        init: args.no_init.map_or(old.init, |without| !without),
    }
}

/// Parses `-v SOURCE:TARGET[:ro]`. A source that begins with a dot or a tilde is a path; a bare name is a volume.
fn volume_from(flag: &str, caller: &Caller) -> Result<Volume, CliError> {
    let wrong = |problem: String| CliError::usage(format!("--volume {flag}: {problem}"));
    let (source, rest) = flag.split_once(':').unwrap_or((flag, ""));
    let path = if source == "~" || source.starts_with("~/") {
        let home = caller.var("HOME").filter(|home| !home.is_empty());
        let home = home.ok_or_else(|| wrong("HOME is not set".to_owned()))?;
        Some(Path::new(home).join(source[1..].trim_start_matches('/')))
    } else if matches!(source, "." | "..") || source.starts_with("./") || source.starts_with("../")
    {
        Some(caller.absolute(Path::new(source))?)
    } else {
        None
    };
    let text = match path.map(|path| without_dots(&path)) {
        Some(path) => {
            let path =
                path.to_str().ok_or_else(|| wrong("its path is not valid UTF-8".to_owned()))?;
            format!("{path}:{rest}")
        }
        None => flag.to_owned(),
    };
    text.parse().map_err(|error| match error {
        VolumeError::Source if !source.starts_with('~') => CliError::misuse(
            format!("--volume {flag}: {error}"),
            format!("write `./{source}` for a path in the current directory"),
        ),
        VolumeError::Source | VolumeError::Shape | VolumeError::Target | VolumeError::Mode => {
            wrong(error.to_string())
        }
    })
}

/// The same path without `.` and `..`, which engines refuse.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use mainstay_core::{EngineKind, ServerSpec, Transport, Workload};

    use super::super::describe::tests::spec;
    use super::*;

    fn container(line: &str) -> ContainerSpec {
        let spec: ServerSpec = spec(line).unwrap();
        match spec.workload {
            Workload::Container(container) => container,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bare_image_gets_strict_limits() {
        let container = container("time --image mcp/time -- --utc");
        assert_eq!(container.image.as_str(), "mcp/time:latest");
        assert_eq!(container.args, ["--utc"]);
        assert_eq!(container.limits, Limits::default());
        assert_eq!(container.transport, Transport::Stdio);
        assert_eq!((container.engine, container.host), (None, None));
        assert_eq!((container.network, container.user), (None, None));
    }

    #[test]
    fn every_option_is_stored() {
        let container = container(
            "web --image web:1 --engine podman -v data:/data -v /etc/x:/x:ro --network host \
             --user 1000:1000 --memory 2g --pids-limit none --cap-add cap_net_admin --cap-add CHOWN \
             --allow-new-privileges --read-only --no-init --transport streamable-http \
             --target-port 8000 -e A=flag -e TOKEN",
        );
        assert_eq!(container.engine, Some(EngineKind::Podman));
        let volumes: Vec<String> = container.volumes.iter().map(ToString::to_string).collect();
        assert_eq!(volumes, ["data:/data", "/etc/x:/x:ro"]);
        assert_eq!(container.network.as_deref(), Some("host"));
        assert_eq!(container.user.as_deref(), Some("1000:1000"));
        let expected = Limits {
            memory: Some(2 << 30),
            pids: None,
            cap_add: ["CHOWN", "NET_ADMIN"].map(str::to_owned).into(),
            new_privileges: true,
            read_only: true,
            init: false,
        };
        assert_eq!(container.limits, expected);
        let http = Transport::StreamableHttp { port: 8_000, path: "/mcp".to_owned() };
        assert_eq!(container.transport, http);
        let env: Vec<_> =
            container.env.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
        assert_eq!(env, [("A", "flag"), ("B", "file"), ("TOKEN", "hush")]);
    }

    #[test]
    fn a_volume_is_relative_to_the_callers_directory() {
        let check = |flag: &str, expected: &str| {
            let container = container(&format!("a --image b -v {flag}"));
            assert_eq!(container.volumes[0].to_string(), expected, "{flag}");
        };
        check(".:/w", "/project:/w");
        check("./sub/.:/w:ro", "/project/sub:/w:ro");
        check("../other:/w", "/other:/w");
        check("~:/w", "/home/me:/w");
        check("~/notes:/w", "/home/me/notes:/w");
        check("/a/../b:/w", "/a/../b:/w");
        check("word:/w", "word:/w");
    }

    #[test]
    fn too_little_memory_is_reported_as_given() {
        let check = |given: &str, expected: &str| {
            let error = spec(&format!("a --image b --memory {given}")).unwrap_err();
            assert_eq!(error, expected);
        };
        check("1", "--memory 1 is 1 byte: write it like 512m or 2g; at least 6m");
        check("512", "--memory 512 is 512 B: write it like 512m or 2g; at least 6m");
        check("5m", "--memory 5m is 5 MiB: write it like 512m or 2g; at least 6m");
        assert_eq!(container("a --image b --memory 6m").limits.memory, Some(6 << 20));
    }

    #[test]
    fn conflicting_options_are_refused() {
        let check = |line: &str, expected: &str| {
            let error = spec(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("a --image b --url http://h/", "either an --image or a --url");
        check("a --image b --cwd /", "--cwd is for servers that run as a process");
        check("a --image b --header A=1", "for remote servers");
        for flag in [
            "--engine docker",
            "--volume a:/b",
            "--network none",
            "--user me",
            "--memory 1g",
            "--pids-limit 9",
            "--cap-add CHOWN",
            "--allow-new-privileges",
            "--read-only",
            "--no-init",
        ] {
            let name = flag.split(' ').next().unwrap();
            let expected = format!("{name} is for servers in containers");
            check(&format!("a {flag} -- x"), &expected);
            check(&format!("a {flag} --url http://h/"), &expected);
        }
        check("a --image A", "in lower case");
        check("a --image Bad\tImage", "has no blanks");
        check("a --image b -v x", "--volume x: write it as SOURCE:TARGET");
        check("a --image b -v a/b:/c", "an absolute path or the name of a volume");
        check("a --image b -v ~you/b:/c", "an absolute path or the name of a volume");
        check("a --image b --memory lots", "write a size as `512m` or `2g`");
        check("a --image b --pids-limit 0", "`limits.pids` of server `a` is too low");
        check("a --image b --cap-add x-y", "write a capability like NET_ADMIN");
        check(
            "a --image b --transport streamable-http --target-port 80 --network none",
            "cannot be without a network",
        );
        check("a --image b --target-port 80", "are for HTTP servers");
        let http = "a --image b --transport streamable-http --target-port 80";
        check(&format!("{http} --isolate"), "--isolate is for stdio servers");
    }

    #[test]
    fn mounts_that_give_control_over_the_machine_cause_warnings() {
        let warned = |source: &str| {
            let volumes = vec![Volume {
                source: source.to_owned(),
                target: "/x".to_owned(),
                read_only: true,
            }];
            let container = ContainerSpec { volumes, ..container("x --image i") };
            !mount_warnings(&container, Some(Path::new("/home/me"))).is_empty()
        };
        for source in [
            "/var/run/docker.sock",
            "/run/user/1000/podman/podman.sock",
            "/run",
            "/",
            "/etc",
            "/home/me",
            "/etc/",
        ] {
            assert!(warned(source), "{source}");
        }
        for source in ["/home/me/notes", "data", "/etc/ssl/certs", "/srv"] {
            assert!(!warned(source), "{source}");
        }
    }
}
