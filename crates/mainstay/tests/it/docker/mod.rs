//! Servers in containers of a real engine, and what becomes of the sessions with them.
//!
//! Every story has a Mainstay of its own ([`scene`]) and real clients that hold a session throughout.
//! Stories that end their engine, or break the way to it, have an engine or a proxy of their own.

mod absence;
mod callers;
mod copies;
mod creations;
mod deaths;
mod entries;
mod exits;
mod faults;
mod hands;
mod outages;
mod owners;
mod podman;
mod removal;
mod resolver;
mod scene;
mod service;
