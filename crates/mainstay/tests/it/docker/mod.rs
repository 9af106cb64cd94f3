//! Servers in containers of a real engine, and the sessions with them.
//!
//! Every test has its own Mainstay ([`setup`]) and real clients that keep one session. Tests that end their engine, or
//! break the connection to it, have their own engine or a proxy.

mod absence;
mod callers;
mod copies;
mod creations;
mod deaths;
mod entries;
mod exits;
mod faults;
mod manual_commands;
mod outages;
mod ownership;
mod podman;
mod removal;
mod resolver;
mod service;
mod setup;
mod silence;
