//! Starting the server.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::Failed;
use crate::descriptors;
use crate::launch::{Failure, Launch};

/// A running server and our ends of its pipes, which never block.
pub(super) struct Spawned {
    pub(super) pid: Pid,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts the server in a process group of its own, with three pipes as its only descriptors. It dies with
/// this thread, which must therefore be the one that lives as long as the shim. It enters the cgroup to which
/// `cgroup_entry` leads.
pub(super) fn spawn(launch: &Launch, cgroup_entry: Option<OwnedFd>) -> Result<Spawned, Failed> {
    check_cwd(&launch.cwd)?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).env_clear().envs(launch.env.iter().map(|(k, v)| (k, v)));
    command.current_dir(&launch.cwd).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    descriptors::pass_only_stdio(&mut command);
    die_with_us(&mut command);
    if let Some(entry) = cgroup_entry {
        enter_cgroup(&mut command, entry);
    }
    let mut child = command.spawn().map_err(|error| explain(&launch.program, &error))?;

    let pid = Pid::from_child(&child);
    let ends = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = ends else {
        unreachable!("all three were asked for");
    };
    let spawned =
        Spawned { pid, stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
    for end in [&spawned.stdin, &spawned.stdout, &spawned.stderr] {
        rustix::io::ioctl_fionbio(end, true).map_err(|errno| {
            Failed::new(Failure::Setup, "cannot set up the pipes", &errno.into())
        })?;
    }
    Ok(spawned)
}

/// The kernel kills the server when the shim dies.
#[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
fn die_with_us(command: &mut Command) {
    let shim = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The signal is sent at the death of the parent, so it never comes if that happened before.
        if getppid() == Some(shim) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Moves the server into a cgroup before its program runs. If that is refused, it stays in the shim's.
#[expect(unsafe_code, reason = "pre_exec is the only way to run code between fork and exec")]
fn enter_cgroup(command: &mut Command, entry: OwnedFd) {
    let before_exec = move || {
        let _refused = rustix::io::write(&entry, b"0");
        Ok(())
    };
    // SAFETY: the closure makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// A missing working directory would otherwise look like a missing program.
fn check_cwd(cwd: &Path) -> Result<(), Failed> {
    let failed = |error: &io::Error| {
        Failed::new(Failure::Cwd, &format!("cannot use the directory `{}`", cwd.display()), error)
    };
    let entered = rustix::fs::access(cwd, rustix::fs::Access::EXEC_OK).map_err(io::Error::from);
    match entered.and_then(|()| fs::metadata(cwd)) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(failed(&Errno::NOTDIR.into())),
        Err(error) => Err(failed(&error)),
    }
}

fn explain(program: &Path, error: &io::Error) -> Failed {
    let shown = program.display();
    let (what, message) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) if program.is_absolute() && program.exists() => {
            (Failure::NotExecutable, format!("the interpreter that `{shown}` names is missing"))
        }
        Some(Errno::NOENT | Errno::NOTDIR) => {
            (Failure::ProgramNotFound, format!("there is no program `{shown}`"))
        }
        Some(Errno::ACCESS | Errno::NOEXEC | Errno::PERM | Errno::ISDIR | Errno::LIBBAD) => {
            (Failure::NotExecutable, format!("`{shown}` cannot be executed"))
        }
        _ => (Failure::Spawn, format!("`{shown}` cannot be started")),
    };
    Failed::new(what, &message, error)
}
