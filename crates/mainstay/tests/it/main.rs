//! Drives the built program as a user would.

#![expect(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod attacks;
mod bad_input;
mod call_timeout;
mod client_commands;
mod clients;
mod commands;
mod config_file;
mod connect;
mod connect_outage;
mod daemon_lifecycle;
mod display;
mod docker;
mod env;
mod environments;
mod failures;
mod fake_daemon;
mod full_disk;
mod help;
mod import;
mod leaks;
mod no_daemon;
mod proxy;
mod real_servers;
mod restart_grace;
mod restarts;
mod service;
mod silence;
mod supervise;
mod target_port;
mod update;
mod usage;
