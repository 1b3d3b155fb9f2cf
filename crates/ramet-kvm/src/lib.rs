//! Everything that talks to /dev/kvm: ordered creation of machines, vCPU state classes, probes of the host.
//!
//! ```text
//!   Kvm --host_cpuid--> VmClass --+
//!    |                            +--> BlankVm::create --wire--> into_parts --> Vm, [Vcpu]
//!    +--HostModel::learn----------+                                            save, restore, run, kick
//! ```
//! One code path for VMX, SVM and software KVM: what differs is found by probing ([`HostModel`], [`probe`]), never by
//! asking which it is.
//!
//! Deliberately absent: guest memory (only host addresses of slots), devices, threads, and any way to change memory
//! slots or event descriptors after creation, which costs milliseconds on some hosts.

mod advice;
mod blank;
mod cpuid;
mod ioctls;
mod model;
pub mod probe;
mod raw;
mod scratch;
mod system;
mod vcpu;
mod vm;

pub use blank::{BlankVm, CreateError, Doorbell, DoorbellLength, Line, WireError};
pub use cpuid::{CpuidError, host_cpuid, supported_xcr0};
pub use ioctls::{RUNTIME_IOCTLS, read_tsc};
pub use model::{HostModel, ModelError};
pub use system::{API_VERSION, Flavour, Kvm, OpenError};
pub use vcpu::{
    BaselineError, Exit, FreshVcpu, InstallError, KickError, Kicker, RestoreError, RunError, SaveError, Vcpu,
    advance_tsc, install_kick_signal, kick_signal,
};
pub use vm::{ClockError, RestoreControllerError, SaveControllerError, Vm};
