//! Machine states as data.
//!
//! Fork, snapshot, restore, live replacement and migration are *save -> plan -> build* and differ only in the plan.
//! This crate is the middle: what a saved machine is ([`MachineState`]), what may be wanted of it ([`Intent`]), and
//! the pure function between them ([`plan`]). It knows neither KVM nor files nor processes.
//!
//! ```text
//!   boot loader --+
//!   running VM  --+--> MachineState --plan(Intent)--> BuildPlan --> the one builder (ramet-machine)
//!   state file  --+
//! ```
//!
//! Deliberately absent: any I/O, any host resource (only their *roles* and clone rules), any knowledge of devices
//! (a device's registers are bytes with a kind and a version).
#![forbid(unsafe_code)]

mod class;
mod codec;
mod machine;
mod memory;
mod part;
mod plan;
mod vcpu;

pub use class::{CpuidEntry, InterruptMode, VmClass, VmClassError};
pub use codec::{DecodeError, EncodeError, HEADER_BYTES, Header, MAX_BODY_BYTES, decode, encode, read_header};
pub use machine::{ClockState, Identity, InterruptControllerState, MachineState};
pub use memory::{MemoryRegion, RegionPurpose, memory_regions};
pub use part::{CloneRule, Handle, PartState};
pub use plan::{
    BuildPlan, ClockPlan, HandleAction, HandlePlan, Intent, NewIdentity, PlanError, RegionAction, plan, validate,
};
pub use vcpu::{DescriptorTable, Msr, Registers, Segment, SpecialRegisters, VcpuState, Xcr};
