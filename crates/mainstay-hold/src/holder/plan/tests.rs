//! Stories and properties of the plan.
