//! Real holders with daemons that do as they are told.

mod ending;
mod kept;
mod leaked;
mod replaced;
mod stored;
mod support;
