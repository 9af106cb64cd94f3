//! What an install or an uninstall does, decided from what is there. Pure.

use super::{Activity, Known, Standing};

/// One thing to do. Steps are carried out in order; the first that fails ends the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Put the unit that is there aside.
    Keep,
    /// Write the unit.
    Write,
    /// Remove the unit.
    Remove,
    /// Have systemd read units again.
    Reload,
    /// Have it started at login.
    Enable,
    /// Have it no longer started at login.
    Disable,
    /// End the daemon that runs on demand, but not its servers: the service takes them over.
    MakeWay,
    /// Start the service, and wait until it is ready.
    Start,
    /// Stop the service, but not its servers.
    Stop,
    /// Start a daemon on demand, for the servers that the service left behind.
    Adopt,
}

/// Why nothing is done: a person has decided otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the service is masked: its user does not want it to be started")]
    Barred,
    #[error("the installed unit was changed by hand")]
    Edited,
    #[error("the installed service belongs to another instance of Mainstay")]
    OtherInstance,
}

/// What an install does. A service that is there keeps the state its user left it in: only its unit is
/// brought up to date. One that failed is nobody's wish and is started again.
pub(crate) fn install(
    standing: Standing,
    known: &Known,
    force: bool,
) -> Result<Vec<Step>, Refusal> {
    use Standing as S;
    if known.barred {
        return Err(Refusal::Barred);
    }
    let mut steps = match (standing, force) {
        (S::Absent, _) => {
            return Ok(vec![Step::Write, Step::Reload, Step::Enable, Step::MakeWay, Step::Start]);
        }
        (S::Edited, false) => return Err(Refusal::Edited),
        (S::OtherInstance, false) => return Err(Refusal::OtherInstance),
        (S::Edited | S::OtherInstance, true) => vec![Step::Keep, Step::Write, Step::Reload],
        (S::Outdated, _) => vec![Step::Write, Step::Reload],
        (S::Current, _) if known.stale => vec![Step::Reload],
        (S::Current, _) => vec![],
    };
    match known.activity {
        Activity::Failed => steps.extend([Step::MakeWay, Step::Start]),
        Activity::Inactive | Activity::Starting | Activity::Active | Activity::Stopping => {}
    }
    Ok(steps)
}

/// What an uninstall does. Servers are never ended: if the service ran, a daemon on demand takes them
/// over.
pub(crate) fn uninstall(standing: Standing, known: &Known) -> Result<Vec<Step>, Refusal> {
    use Standing as S;
    // What is masked has no unit; the mask is its user's.
    let ours = match standing {
        S::Absent => false,
        S::OtherInstance => return Err(Refusal::OtherInstance),
        S::Current | S::Outdated | S::Edited => !known.barred,
    };
    let runs = match known.activity {
        Activity::Starting | Activity::Active | Activity::Stopping => true,
        Activity::Inactive | Activity::Failed => false,
    };
    let mut steps = Vec::new();
    steps.extend(runs.then_some(Step::Stop));
    if ours {
        let away = if standing == S::Edited { Step::Keep } else { Step::Remove };
        steps.extend([Step::Disable, away]);
    }
    if !steps.is_empty() {
        steps.push(Step::Reload);
    }
    steps.extend(runs.then_some(Step::Adopt));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Standing; 5] = [
        Standing::Absent,
        Standing::Current,
        Standing::Outdated,
        Standing::Edited,
        Standing::OtherInstance,
    ];

    const ACTIVITIES: [Activity; 5] = [
        Activity::Inactive,
        Activity::Starting,
        Activity::Active,
        Activity::Stopping,
        Activity::Failed,
    ];

    fn known(activity: Activity) -> Known {
        Known { activity, ..Known::default() }
    }

    fn check(standing: Standing, activity: Activity, force: bool, expected: &[Step]) {
        assert_eq!(install(standing, &known(activity), force).as_deref(), Ok(expected));
    }

    #[test]
    fn a_first_install_does_everything() {
        let all = [Step::Write, Step::Reload, Step::Enable, Step::MakeWay, Step::Start];
        check(Standing::Absent, Activity::Inactive, false, &all);
    }

    #[test]
    fn a_service_keeps_the_state_its_user_left_it_in() {
        for activity in [Activity::Inactive, Activity::Active, Activity::Starting] {
            check(Standing::Current, activity, false, &[]);
            check(Standing::Outdated, activity, false, &[Step::Write, Step::Reload]);
        }
        let again = [Step::MakeWay, Step::Start];
        check(Standing::Current, Activity::Failed, false, &again);
        let stale = Known { stale: true, ..Known::default() };
        assert_eq!(install(Standing::Current, &stale, false), Ok(vec![Step::Reload]));
    }

    #[test]
    fn what_a_person_decided_stands() {
        let none = known(Activity::Inactive);
        assert_eq!(install(Standing::Edited, &none, false), Err(Refusal::Edited));
        assert_eq!(install(Standing::OtherInstance, &none, false), Err(Refusal::OtherInstance));
        assert_eq!(uninstall(Standing::OtherInstance, &none), Err(Refusal::OtherInstance));
        let forced = [Step::Keep, Step::Write, Step::Reload];
        check(Standing::Edited, Activity::Inactive, true, &forced);
        let masked = Known { barred: true, ..Known::default() };
        for standing in ALL {
            assert_eq!(install(standing, &masked, true), Err(Refusal::Barred));
        }
        assert_eq!(uninstall(Standing::Edited, &masked), Ok(vec![]), "the mask stays");
    }

    #[test]
    fn an_uninstall_leaves_the_servers_to_a_daemon_on_demand() {
        let steps = [Step::Stop, Step::Disable, Step::Remove, Step::Reload, Step::Adopt];
        let gone = uninstall(Standing::Current, &known(Activity::Active));
        assert_eq!(gone.as_deref(), Ok(steps.as_slice()));
        let gone = uninstall(Standing::Edited, &known(Activity::Inactive));
        assert_eq!(gone, Ok(vec![Step::Disable, Step::Keep, Step::Reload]));
        assert_eq!(uninstall(Standing::Absent, &known(Activity::Inactive)), Ok(vec![]));
        let deleted = uninstall(Standing::Absent, &known(Activity::Active));
        assert_eq!(deleted, Ok(vec![Step::Stop, Step::Reload, Step::Adopt]));
    }

    #[test]
    fn no_plan_overwrites_what_a_person_wrote_or_starts_before_way_is_made() {
        for (standing, activity, force) in ALL.into_iter().flat_map(|standing| {
            ACTIVITIES.into_iter().flat_map(move |a| [(standing, a, false), (standing, a, true)])
        }) {
            let at = |steps: &[Step], step| steps.iter().position(|found| *found == step);
            for steps in [
                install(standing, &known(activity), force).unwrap_or_default(),
                uninstall(standing, &known(activity)).unwrap_or_default(),
            ] {
                if standing == Standing::Edited {
                    assert!(at(&steps, Step::Remove).is_none());
                    let write = at(&steps, Step::Write);
                    assert!(write.is_none() || at(&steps, Step::Keep) < write, "{steps:?}");
                }
                let start = at(&steps, Step::Start);
                assert!(start.is_none() || at(&steps, Step::MakeWay) < start, "{steps:?}");
            }
        }
    }
}
