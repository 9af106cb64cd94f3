//! Decides what an install or an uninstall does. Pure.

use super::{Activity, ServiceState, UnitState};

/// Steps are executed in order; the first that fails ends the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rename the installed unit.
    KeepOld,
    Write,
    Remove,
    /// Make systemd read its units again.
    Reload,
    Enable,
    Disable,
    /// Stop the daemon that runs on demand, but not its servers: the service supervises them next.
    StopDaemon,
    /// Start the service, and wait until it is ready.
    Start,
    /// Stop the service, but not its servers.
    Stop,
    /// Start a daemon on demand, for the servers of the stopped service.
    StartDaemon,
}

/// A decision of the user that an install or uninstall must not override.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the service is masked")]
    Masked,
    #[error("the installed unit was changed by hand")]
    Edited,
    #[error("the installed service belongs to another instance of Mainstay")]
    OtherInstance,
}

/// An installed service keeps the state in which the user left it: only its unit is updated. A failed one is started.
pub(crate) fn install(
    unit: UnitState,
    state: &ServiceState,
    force: bool,
) -> Result<Vec<Step>, Refusal> {
    use UnitState as S;
    if state.masked {
        return Err(Refusal::Masked);
    }
    let mut steps = match (unit, force) {
        (S::Absent, _) => {
            return Ok(vec![
                Step::Write,
                Step::Reload,
                Step::Enable,
                Step::StopDaemon,
                Step::Start,
            ]);
        }
        (S::Edited, false) => return Err(Refusal::Edited),
        (S::OtherInstance, false) => return Err(Refusal::OtherInstance),
        (S::Edited | S::OtherInstance, true) => vec![Step::KeepOld, Step::Write, Step::Reload],
        (S::Outdated, _) => vec![Step::Write, Step::Reload],
        (S::Current, _) if state.stale => vec![Step::Reload],
        (S::Current, _) => vec![],
    };
    match state.activity {
        Activity::Failed => steps.extend([Step::StopDaemon, Step::Start]),
        Activity::Inactive | Activity::Starting | Activity::Active | Activity::Stopping => {}
    }
    Ok(steps)
}

/// Servers are never stopped: if the service was running, a daemon on demand supervises them next.
pub(crate) fn uninstall(unit: UnitState, state: &ServiceState) -> Result<Vec<Step>, Refusal> {
    use UnitState as S;
    // A masked service has no unit.
    let installed = match unit {
        S::Absent => false,
        S::OtherInstance => return Err(Refusal::OtherInstance),
        S::Current | S::Outdated | S::Edited => !state.masked,
    };
    let runs = match state.activity {
        Activity::Starting | Activity::Active | Activity::Stopping => true,
        Activity::Inactive | Activity::Failed => false,
    };
    let mut steps = Vec::new();
    steps.extend(runs.then_some(Step::Stop));
    if installed {
        let away = if unit == S::Edited { Step::KeepOld } else { Step::Remove };
        steps.extend([Step::Disable, away]);
    }
    if !steps.is_empty() {
        steps.push(Step::Reload);
    }
    steps.extend(runs.then_some(Step::StartDaemon));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [UnitState; 5] = [
        UnitState::Absent,
        UnitState::Current,
        UnitState::Outdated,
        UnitState::Edited,
        UnitState::OtherInstance,
    ];

    const ACTIVITIES: [Activity; 5] = [
        Activity::Inactive,
        Activity::Starting,
        Activity::Active,
        Activity::Stopping,
        Activity::Failed,
    ];

    fn state(activity: Activity) -> ServiceState {
        ServiceState { activity, ..ServiceState::default() }
    }

    fn check(unit: UnitState, activity: Activity, force: bool, expected: &[Step]) {
        assert_eq!(install(unit, &state(activity), force).as_deref(), Ok(expected));
    }

    #[test]
    fn a_first_install_does_everything() {
        let all = [Step::Write, Step::Reload, Step::Enable, Step::StopDaemon, Step::Start];
        check(UnitState::Absent, Activity::Inactive, false, &all);
    }

    #[test]
    fn a_service_keeps_the_state_in_which_its_user_left_it() {
        for activity in [Activity::Inactive, Activity::Active, Activity::Starting] {
            check(UnitState::Current, activity, false, &[]);
            check(UnitState::Outdated, activity, false, &[Step::Write, Step::Reload]);
        }
        let again = [Step::StopDaemon, Step::Start];
        check(UnitState::Current, Activity::Failed, false, &again);
        let stale = ServiceState { stale: true, ..ServiceState::default() };
        assert_eq!(install(UnitState::Current, &stale, false), Ok(vec![Step::Reload]));
    }

    #[test]
    fn decisions_of_the_user_are_kept() {
        let none = state(Activity::Inactive);
        assert_eq!(install(UnitState::Edited, &none, false), Err(Refusal::Edited));
        assert_eq!(install(UnitState::OtherInstance, &none, false), Err(Refusal::OtherInstance));
        assert_eq!(uninstall(UnitState::OtherInstance, &none), Err(Refusal::OtherInstance));
        let forced = [Step::KeepOld, Step::Write, Step::Reload];
        check(UnitState::Edited, Activity::Inactive, true, &forced);
        let masked = ServiceState { masked: true, ..ServiceState::default() };
        for unit in ALL {
            assert_eq!(install(unit, &masked, true), Err(Refusal::Masked));
        }
        assert_eq!(uninstall(UnitState::Edited, &masked), Ok(vec![]), "the mask stays");
    }

    #[test]
    fn an_uninstall_leaves_the_servers_to_a_daemon_on_demand() {
        let steps = [Step::Stop, Step::Disable, Step::Remove, Step::Reload, Step::StartDaemon];
        let gone = uninstall(UnitState::Current, &state(Activity::Active));
        assert_eq!(gone.as_deref(), Ok(steps.as_slice()));
        let gone = uninstall(UnitState::Edited, &state(Activity::Inactive));
        assert_eq!(gone, Ok(vec![Step::Disable, Step::KeepOld, Step::Reload]));
        assert_eq!(uninstall(UnitState::Absent, &state(Activity::Inactive)), Ok(vec![]));
        let deleted = uninstall(UnitState::Absent, &state(Activity::Active));
        assert_eq!(deleted, Ok(vec![Step::Stop, Step::Reload, Step::StartDaemon]));
    }

    #[test]
    fn no_plan_overwrites_an_edited_unit_or_starts_before_the_daemon_is_stopped() {
        for (unit, activity, force) in ALL.into_iter().flat_map(|unit| {
            ACTIVITIES.into_iter().flat_map(move |a| [(unit, a, false), (unit, a, true)])
        }) {
            let at = |steps: &[Step], step| steps.iter().position(|found| *found == step);
            for steps in [
                install(unit, &state(activity), force).unwrap_or_default(),
                uninstall(unit, &state(activity)).unwrap_or_default(),
            ] {
                if unit == UnitState::Edited {
                    assert!(at(&steps, Step::Remove).is_none());
                    let write = at(&steps, Step::Write);
                    assert!(write.is_none() || at(&steps, Step::KeepOld) < write, "{steps:?}");
                }
                let start = at(&steps, Step::Start);
                assert!(start.is_none() || at(&steps, Step::StopDaemon) < start, "{steps:?}");
            }
        }
    }
}
