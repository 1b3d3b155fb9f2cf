//! virtio-rng (device 4; virtio 1.2, section 5.4): entropy of the host.
//!
//! ```text
//!   requestq: buffer --getrandom(2)--> buffer, at most 4 KiB of it
//! ```
//!
//! A clone that draws from here gets bytes that nobody else got: there is no pool and nothing to inherit.
//!
//! Deliberately absent: rate limits (a request costs the guest more than the host), any state.

mod state;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use state::{KIND, VERSION};

/// An entropy source.
#[derive(Debug)]
pub(crate) struct Rng {}
