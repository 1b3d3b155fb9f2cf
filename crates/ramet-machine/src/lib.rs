//! The only assembler: makes a machine out of a plan, runs it, stops it, takes it apart into a state again.
//!
//! ```text
//!   Blank::create(class)  --build(plan, ram)-->  Paused  --resume-->  Machine
//!   KVM objects, threads,                          ^                     |
//!   no memory, no state                            +---- pause, freeze --+
//! ```
//!
//! There is one builder, [`Blank::build`], for boot and fork alike. A stopped machine is a type of its own: nothing
//! that needs stopped vCPUs can be called on a running one.
//!
//! Deliberately absent: sockets to the supervisor, processes, seccomp (ramet-vmm), and any decision about identity
//! (the plan's).
#![forbid(unsafe_code)]

mod blank;
mod build;
mod bus;
mod clock;
mod freeze;
mod machine;
mod parts;
mod resources;
mod vcpu_thread;

pub use blank::{Blank, CreateError};
pub use build::{BuildError, Stage};
pub use freeze::{Caller, FreezeError, FrozenMachine, FrozenMemory};
pub use machine::{Machine, Paused, RunError};
pub use parts::initial_parts;
pub use resources::{BlankResources, Ram, ResourceError};
pub use vcpu_thread::{GuestFailure, HoldError, VcpuEvent};
