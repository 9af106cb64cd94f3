//! Servers in containers of a real engine, and what becomes of the sessions with them.
//!
//! Every story has a Mainstay of its own ([`setup`]) and real clients that hold a session throughout.
//! Stories that end their engine, or break the way to it, have an engine or a proxy of their own.

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
