//! Every part passes the conformance suite, and has tests of what is special about it. `testkit` says how a new part
//! joins.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod clone_page;
mod event_loop;
mod guest_port;
mod ring_abuse;
mod serial;
mod transport;
mod virtio_console;
mod virtio_rng;
