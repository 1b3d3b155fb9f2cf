//! Supervises a family of machines: registry, lifecycle, quotas, layers, fork.
//!
//! ```text
//!   Family::boot --> member 0                           operations (boot, fork) wait for reports;
//!   Family::fork --> operation: bear + freeze --> plan --> build        one event loop serves them all
//!   guest fork() --> operation: bear, permit  --> plan --> build
//! ```
//!
//! A [`Family`] is a value without threads: whoever owns it calls [`Family::step`], or a method that waits and steps
//! meanwhile. All machines of a family belong to one tenant. What machines' processes say is treated as hostile.
//!
//! Deliberately absent: pools of blank machines, a daemon, anything that survives the supervisor.
#![forbid(unsafe_code)]

mod adopt;
mod birth;
mod boot;
mod cgroup;
mod end;
mod family;
mod fork;
mod hold;
mod lifecycle;
mod member;
mod operation;
mod quota;
mod reports;
mod request;

pub use boot::{BootError, BootSpec};
pub use family::Family;
pub use family::{Config, FamilyEvent, MemberInfo, StartError, Terminal};
pub use fork::{ChildOutcome, ForkError, ForkOutcome};
pub use hold::HoldError;
pub use lifecycle::{Event, Phase, Refused};
pub use quota::{GuestForks, Limits, Quota, QuotaError};
pub use ramet_boot::MAX_KERNEL_BYTES;
pub use ramet_process::Exit;
pub use ramet_vmm::protocol::BuildStamps;
pub use request::RequestError;

/// The argument with which the command starts itself as the zygote.
pub const ZYGOTE_ARGUMENT: &str = "zygote";

/// What the command does when it is started as the zygote.
pub fn zygote_main() -> std::process::ExitCode {
    ramet_vmm::zygote_main()
}

/// An error with all of its causes, on one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
