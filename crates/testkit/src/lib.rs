//! What tests of several crates share: the conformance suite that every part must pass, a rig to put a part on, and
//! the driver's side of a virtqueue.
//!
//! # How a new part joins the suite
//!
//! 1. Write a [`Subject`](conformance::Subject) for it beside the others, in
//!    `crates/ramet-devices/tests/conformance/`: its power-on state, how a driver brings it up
//!    ([`attach`](conformance::Subject::attach)), one round of real use that panics unless the part did its job
//!    ([`exercise`](conformance::Subject::exercise)), and work that is handed over but not yet seen by the part
//!    ([`begin`](conformance::Subject::begin)) with a check that it was done
//!    ([`complete`](conformance::Subject::complete)).
//! 2. Say `testkit::conformance!(the_subject);` there: each check becomes a test of its own.
//! 3. If it needs a resource with a new role, give it one in [`rig::Rig`].
//!
//! The suite then forks it, tampers with its state, feeds it garbage and watches that nothing of it reaches a
//! sibling. What is special about a part (back-pressure, limits, the meaning of registers) belongs into tests of its
//! own, which use the same rig.
//!
//! Deliberately absent: KVM, processes, clocks. A rig is a part with its resources, and time does not pass in it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "testkit is only ever part of tests, and a panic is how a test fails")]

pub mod conformance;
pub mod garbage;
pub mod rig;
pub mod ring;
pub mod virtio;
