//! Real holders with daemons that execute commands.

mod ending;
mod kept;
mod leaked;
mod replaced;
mod stored;
mod support;
