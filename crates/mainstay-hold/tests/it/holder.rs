//! Real holders with daemons that do as they are told.

mod ending;
mod kept;
mod replaced;
mod support;
