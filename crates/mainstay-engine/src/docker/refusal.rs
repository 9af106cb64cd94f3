//! Classifies the errors of an engine that answers, but does not start a container.

use super::api::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The engine is out of a resource, or busy with the container. The same start may succeed later.
    Temporary,
    /// The engine still has something of the container's last run, or has lost a part of the container. A new
    /// container can be started.
    Unusable,
    /// The start fails until the spec, the image or the machine changes.
    Final,
}

/// Signs of a shortage, with any status.
const SHORTAGES: [&str; 5] = [
    "no space left on device",
    "disk quota exceeded",
    "cannot allocate memory",
    "too many open files",
    "resource temporarily unavailable",
];

/// Messages of engines about a container that they cannot start again.
const UNUSABLE: [&str; 7] = [
    // The container runtime has a task or a bundle that the engine does not know of.
    "already exists",
    "id already in use",
    "file exists",
    "container with id exists",
    // A removal failed half way.
    "marked for removal",
    // The file system of the container is gone.
    "unexpectedly nil",
    "layer does not exist",
];

/// Mistakes in the spec or the image that some engines report as internal errors.
const MISTAKES: [&str; 13] = [
    "executable file",
    "exec format error",
    "command that was not found",
    "exec: ",
    "permission denied",
    "unable to find user",
    "unable to find group",
    "no matching entries in",
    "statfs ",
    "mount source path",
    "not a directory",
    "could not select device driver",
    "unknown or invalid runtime name",
];

impl Refusal {
    /// Classifies what an engine answered to the start of a container.
    pub(super) fn of_start(failure: &Failure) -> Self {
        match failure {
            Failure::Conflict(why) | Failure::Internal(why)
                if is_any(why, &UNUSABLE) && !is_any(why, &MISTAKES) =>
            {
                Self::Unusable
            }
            failure => Self::of(failure),
        }
    }

    /// Classifies any other answer. Conflicts (409) and failures of the engine (5xx) are temporary unless they name a mistake.
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Missing(why)
            | Failure::Conflict(why)
            | Failure::Refused(why)
            | Failure::Internal(why)
                if is_any(why, &SHORTAGES) =>
            {
                Self::Temporary
            }
            Failure::Internal(why) if is_any(why, &MISTAKES) => Self::Final,
            Failure::NoAnswer(_) | Failure::Conflict(_) | Failure::Internal(_) => Self::Temporary,
            Failure::Missing(_) | Failure::Refused(_) => Self::Final,
        }
    }
}

fn is_any(why: &str, signs: &[&str]) -> bool {
    let why = why.to_lowercase();
    signs.iter().any(|sign| why.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::super::api::NoAnswer;
    use super::Refusal::{Final, Temporary, Unusable};
    use super::*;

    fn answer(status: u16, why: &str) -> Failure {
        bollard::errors::Error::DockerResponseServerError {
            status_code: status,
            message: why.to_owned(),
        }
        .into()
    }

    #[test]
    fn engine_messages_are_one_line() {
        let said = answer(500, "OCI runtime create failed: exec failed\r\n: unknown\r\n");
        assert_eq!(said.to_string(), "OCI runtime create failed: exec failed : unknown");
    }

    /// Messages of Docker 20 to 29, containerd, runc, crun and Podman.
    #[test]
    fn engine_messages_are_classified() {
        let check = |status, why: &str, expected| {
            assert_eq!(Refusal::of_start(&answer(status, why)), expected, "{status} {why}");
        };
        let task = "failed to create task for container: ";
        check(409, "task already exists", Unusable);
        check(409, "id already in use", Unusable);
        check(500, "failed to create task for container: task 3f2a: already exists", Unusable);
        check(
            500,
            &format!(
                "{task}failed to create shim task: OCI runtime create failed: runc create failed: \
                 container with given ID already exists: unknown"
            ),
            Unusable,
        );
        check(
            500,
            &format!(
                "{task}mkdir /run/containerd/io.containerd.runtime.v2.task/moby/3f2a: file exists: \
                 unknown"
            ),
            Unusable,
        );
        check(409, "container is marked for removal and cannot be started", Unusable);
        check(500, "RWLayer of container 3f2a is unexpectedly nil", Unusable);

        check(409, "Container 3f2a is restarting, wait until the container is running", Temporary);
        check(409, "removal of container 3f2a is already in progress", Temporary);
        check(
            500,
            "failed to start shim: mkdir /run/containerd/3f2a: no space left on device",
            Temporary,
        );
        check(500, "write /var/lib/docker/tmp/x: disk quota exceeded", Temporary);
        check(400, "mkdir /var/lib/docker/overlay2/x: no space left on device", Temporary);
        check(
            500,
            "connection error: desc = \"transport: error while dialing: dial unix \
                    /run/containerd/containerd.sock: connect: connection refused\": unavailable",
            Temporary,
        );
        check(500, "failed to create task for container: context deadline exceeded", Temporary);
        check(503, "the daemon is shutting down", Temporary);
        check(504, "gateway timeout", Temporary);
        check(
            500,
            "driver failed programming external connectivity on endpoint x: Bind for \
             127.0.0.1:49153 failed: port is already allocated",
            Temporary,
        );

        check(
            400,
            &format!(
                "{task}failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to start container process: exec: \"nope\": executable file not found in $PATH"
            ),
            Final,
        );
        check(
            500,
            "crun: executable file `nope` not found in $PATH: No such file or directory: OCI runtime \
             attempted to invoke a command that was not found",
            Final,
        );
        check(500, "unable to find user nobody2: no matching entries in passwd file", Final);
        check(500, "error while creating mount source path '/x': mkdir /x: file exists", Final);
        check(500, "statfs /missing: no such file or directory", Final);
        check(500, "could not select device driver \"\" with capabilities: [[gpu]]", Final);
        check(404, "network web not found", Final);
        check(
            400,
            "invalid mount config for type \"bind\": bind source path does not exist",
            Final,
        );
        let late = NoAnswer::Other("no answer in time".to_owned());
        assert_eq!(Refusal::of(&Failure::NoAnswer(late)), Temporary);
    }

    #[test]
    fn a_name_in_use_does_not_make_a_container_unusable() {
        let why = "Conflict. The container name \"/a\" is already in use by container \"3f2a\".";
        assert_eq!(Refusal::of(&answer(409, why)), Temporary);
    }
}
