//! The rules as stories and as properties.

mod corrections;
mod engine;
mod exits;
mod notes;
mod outages;
mod past;
mod properties;
mod requests;
mod runs;
mod schedule;
mod world;
