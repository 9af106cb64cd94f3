//! The processes that outlive the daemon.
//!
//! A *shim* is one small process per local MCP server. It owns the server's pipes and its whole
//! process tree, so the daemon can die, be replaced or be upgraded while the server continues and loses
//! no byte. The daemon starts a shim ([`launch`]), talks to it through a private socket ([`socket`],
//! [`wire`]) and, when the shim is gone, reads what it left behind ([`record`]).
//!
//! The *holder* is one small process per instance. It owns the listening sockets, the lock and the
//! daemon, which it starts, starts again and replaces ([`holder`]). How long they wait for each other is in [`limits`].
//!
//! This crate uses little more than std and rustix and starts no async runtime: there are as many shims
//! as servers, so each must cost next to no memory and, while idle, no CPU at all.

mod clock;
mod codec;
mod poll;
mod procfs;
mod sock_diag;

pub mod activity;
pub mod cgroup;
pub mod container;
pub mod descriptors;
pub mod heap;
pub mod holder;
pub mod launch;
pub mod limits;
pub mod listeners;
pub mod log;
pub mod process_record;
pub mod record;
pub mod shim;
pub mod shim_search;
pub mod socket;
pub mod socket_owners;
pub mod tcp;
pub mod tree;
pub mod unread;
pub mod wire;
