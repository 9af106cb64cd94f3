//! The rules as stories and as properties.

mod engine;
mod exits;
mod hindsight;
mod notes;
mod outages;
mod past;
mod properties;
mod requests;
mod runs;
mod schedule;
mod world;
