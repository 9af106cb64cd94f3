//! Drives the built program as a user would.

#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

mod attacks;
mod bad_input;
mod client_commands;
mod clients;
mod config_file;
mod connect;
mod connect_outage;
mod daemon_life;
mod display;
mod docker;
mod env;
mod environments;
mod everyday;
mod grace;
mod help;
mod import;
mod leaks;
mod no_daemon;
mod proxy;
mod real_servers;
mod restarts;
mod service;
mod stand_in;
mod supervise;
mod target_port;
mod telling;
mod update;
mod usage;
