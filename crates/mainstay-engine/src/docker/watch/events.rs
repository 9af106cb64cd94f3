//! Parsing of engines' events and exit codes.

use std::collections::HashMap;

use mainstay_core::Exit;

/// A container event that [`Watch`](super::Watch) handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerEvent {
    /// The container's process has ended; the code is negative if it is not known.
    Die {
        code: i64,
    },
    Oom,
    Stop,
    Restart,
    Start,
    Pause,
    Unpause,
    Unhealthy,
    Healthy,
    Destroy,
}

/// Parses the action and the attributes of an engine's event about a container. None if the event does not matter.
pub(crate) fn parse_event(
    action: &str,
    attributes: &HashMap<String, String>,
) -> Option<ContainerEvent> {
    let attribute = |names: &[&str]| names.iter().find_map(|&name| attributes.get(name));
    // Docker puts the status into the action.
    let (action, detail) = match action.split_once(':') {
        Some((action, detail)) => (action, Some(detail.trim())),
        None => (action, None),
    };
    Some(match action {
        "die" | "died" => {
            let code = attribute(&["exitCode", "containerExitCode"]);
            ContainerEvent::Die { code: code.and_then(|code| code.parse().ok()).unwrap_or(-1) }
        }
        "oom" => ContainerEvent::Oom,
        "stop" => ContainerEvent::Stop,
        "restart" => ContainerEvent::Restart,
        "start" => ContainerEvent::Start,
        "pause" => ContainerEvent::Pause,
        "unpause" => ContainerEvent::Unpause,
        "destroy" | "remove" => ContainerEvent::Destroy,
        "health_status" => {
            let status = detail.or_else(|| {
                attribute(&["health_status", "healthStatus", "HealthStatus"]).map(String::as_str)
            });
            match status? {
                "unhealthy" => ContainerEvent::Unhealthy,
                "healthy" => ContainerEvent::Healthy,
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Decodes an exit code: 128+n also means signal n.
pub(crate) fn exit(code: i64, oom: bool) -> Exit {
    let code = i32::try_from(code).ok().filter(|code| *code >= 0);
    let signal = code.map(|code| code - 128).filter(|signal| (1..=31).contains(signal));
    Exit { code, signal, oom }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(action: &str, attributes: &[(&str, &str)], expected: Option<ContainerEvent>) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        assert_eq!(
            parse_event(action, &attributes.iter().map(own).collect()),
            expected,
            "{action}"
        );
    }

    #[test]
    fn docker_events_are_parsed() {
        check(
            "die",
            &[("exitCode", "137"), ("image", "x")],
            Some(ContainerEvent::Die { code: 137 }),
        );
        check("oom", &[], Some(ContainerEvent::Oom));
        check("stop", &[], Some(ContainerEvent::Stop));
        check("restart", &[], Some(ContainerEvent::Restart));
        check("start", &[], Some(ContainerEvent::Start));
        check("pause", &[], Some(ContainerEvent::Pause));
        check("unpause", &[], Some(ContainerEvent::Unpause));
        check("destroy", &[], Some(ContainerEvent::Destroy));
        check("health_status: unhealthy", &[], Some(ContainerEvent::Unhealthy));
        check("health_status: healthy", &[], Some(ContainerEvent::Healthy));
    }

    #[test]
    fn podman_events_are_parsed() {
        check("remove", &[], Some(ContainerEvent::Destroy));
        check("die", &[("containerExitCode", "1")], Some(ContainerEvent::Die { code: 1 }));
        check("died", &[("containerExitCode", "1")], Some(ContainerEvent::Die { code: 1 }));
        check("health_status", &[("health_status", "unhealthy")], Some(ContainerEvent::Unhealthy));
        check("health_status", &[("HealthStatus", "healthy")], Some(ContainerEvent::Healthy));
    }

    #[test]
    fn missing_attributes_are_unknown() {
        check("die", &[], Some(ContainerEvent::Die { code: -1 }));
        check("die", &[("exitCode", "?")], Some(ContainerEvent::Die { code: -1 }));
        check("health_status", &[], None);
        check("health_status: starting", &[], None);
    }

    #[test]
    fn irrelevant_events_are_ignored() {
        let idle = [
            "create",
            "kill",
            "attach",
            "detach",
            "resize",
            "rename",
            "update",
            "cleanup",
            "init",
            "exec_die",
            "exec_create: sh -c stop",
            "exec_start: die",
            "top",
            "commit",
            "mount",
            "unmount",
            "",
        ];
        for action in idle {
            check(action, &[], None);
        }
    }

    #[test]
    fn a_code_may_stand_for_a_signal() {
        let check = |code, expected: (Option<i32>, Option<i32>)| {
            let exit = exit(code, false);
            assert_eq!((exit.code, exit.signal), expected, "{code}");
        };
        check(0, (Some(0), None));
        check(1, (Some(1), None));
        check(128, (Some(128), None));
        check(129, (Some(129), Some(1)));
        check(137, (Some(137), Some(9)));
        check(159, (Some(159), Some(31)));
        check(160, (Some(160), None));
        check(255, (Some(255), None));
        check(-1, (None, None));
        check(i64::MAX, (None, None));
        assert!(exit(137, true).oom);
    }
}
