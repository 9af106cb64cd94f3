//! Attacks and accidents caused by servers, clients and other users. All other clients must be served
//! meanwhile.

mod answers;
pub(crate) mod bystander;
mod callers;
mod calls;
mod connections;
pub(crate) mod descriptors;
mod escapes;
mod flood;
mod followers;
mod frozen_disk;
mod http_answers;
mod isolated;
mod panics;
mod ports;
mod replaced;
mod requests;
mod secrets;
mod sessions;
mod smuggling;
mod stalls;
mod terminal;
