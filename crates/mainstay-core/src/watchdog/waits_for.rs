//! What a process waits for, by the place in the kernel where its thread sleeps.

use std::fmt;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitsFor {
    /// A lock on a file that another process has.
    Lock,
    /// Another thread, or a lock between threads.
    Thread,
    Child,
    Pipe,
    Network,
    /// Any of several inputs, as event loops do.
    Events,
    Disk,
    Timer,
}

impl WaitsFor {
    /// From the name of a kernel function, as in `/proc/PID/wchan`. None if nothing is known about it.
    pub fn from_channel(channel: &str) -> Option<Self> {
        // Such as `futex_wait_queue.isra.0`.
        let function = channel.trim().split('.').next().unwrap_or_default();
        let starts = |prefixes: &[&str]| prefixes.iter().any(|it| function.starts_with(it));
        Some(if starts(&["locks_lock", "flock", "fcntl_setlk", "posix_lock"]) {
            Self::Lock
        } else if starts(&["futex"]) {
            Self::Thread
        } else if starts(&["do_wait", "kernel_wait", "wait4", "waitid"]) {
            Self::Child
        } else if starts(&["pipe_", "anon_pipe", "fifo_open", "wait_for_partner"]) {
            Self::Pipe
        } else if starts(&["sk_", "inet_", "tcp_", "unix_", "wait_woken", "__skb_wait"]) {
            Self::Network
        } else if starts(&[
            "ep_poll",
            "do_epoll",
            "do_poll",
            "poll_schedule",
            "do_sys_poll",
            "do_select",
        ]) {
            Self::Events
        } else if starts(&["io_schedule", "folio_wait", "jbd2_", "rq_qos", "blkdev", "bit_wait_io"])
        {
            Self::Disk
        } else if starts(&["hrtimer_nanosleep", "do_nanosleep", "common_nsleep"]) {
            Self::Timer
        } else {
            return None;
        })
    }

    /// As one word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Thread => "thread",
            Self::Child => "child",
            Self::Pipe => "pipe",
            Self::Network => "network",
            Self::Events => "events",
            Self::Disk => "disk",
            Self::Timer => "timer",
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "a file lock",
            Self::Thread => "another thread",
            Self::Child => "a child process",
            Self::Pipe => "a pipe",
            Self::Network => "the network",
            Self::Events => "events",
            Self::Disk => "a disk",
            Self::Timer => "a timer",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kernel_functions_are_classified() {
        for (channel, expected) in [
            ("locks_lock_inode_wait", Some(WaitsFor::Lock)),
            ("futex_wait_queue.isra.0\n", Some(WaitsFor::Thread)),
            ("do_wait", Some(WaitsFor::Child)),
            ("anon_pipe_read", Some(WaitsFor::Pipe)),
            ("pipe_write", Some(WaitsFor::Pipe)),
            ("wait_for_partner", Some(WaitsFor::Pipe)),
            ("wait_woken", Some(WaitsFor::Network)),
            ("ep_poll", Some(WaitsFor::Events)),
            ("io_schedule", Some(WaitsFor::Disk)),
            ("hrtimer_nanosleep", Some(WaitsFor::Timer)),
            ("0", None),
            ("", None),
            ("do_signal_stop", None),
        ] {
            assert_eq!(WaitsFor::from_channel(channel), expected, "{channel}");
        }
    }
}
