//! What to do about the errors that creating a machine's KVM objects can end with.

use std::io;

/// A step of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Vm,
    Slot,
    Interrupts,
    Vcpu,
    Cpuid,
    Line,
    Doorbell,
}

const UNKNOWN: &str = "the kernel gave no reason that Ramet knows; `ramet doctor` shows what this host lacks";

/// One sentence for the errno of a step.
pub(crate) fn for_error(stage: Stage, error: &io::Error) -> &'static str {
    let Some(errno) = error.raw_os_error() else { return UNKNOWN };
    match (stage, errno) {
        (_, libc::EMFILE) => "this process has too many open files: raise the limit (ulimit -n)",
        (_, libc::ENFILE) => "the host has too many open files: raise fs.file-max",
        (_, libc::ENOMEM) => {
            "the kernel is out of memory for it: stop machines, give this one less memory, or raise the cgroup's limit"
        }
        (_, libc::EPERM | libc::EACCES) => "it is forbidden here: a security module or seccomp filter denies it",
        (_, libc::EIO) => "the machine belongs to another process: create it in the process that uses it",
        (Stage::Vm, libc::EBUSY) => {
            "another hypervisor holds the processor's virtualization extension: stop it or unload its module"
        }
        (Stage::Vm, libc::ENODEV | libc::EOPNOTSUPP) => "virtualization is disabled: enable it in the firmware",
        (Stage::Slot, libc::EEXIST) => "it overlaps another slot",
        (Stage::Slot, libc::EINVAL) => "its addresses or size are not multiples of 4096, or out of range",
        (Stage::Interrupts, libc::EINVAL | libc::ENOTTY) => {
            "this KVM does not have these controllers: see the interrupt rows of `ramet doctor`"
        }
        (Stage::Vcpu, libc::EINVAL | libc::E2BIG) => "there are more vCPUs than this KVM allows: ask for fewer",
        (Stage::Cpuid, libc::EINVAL) => "this host cannot give a guest these features: take its own CPUID",
        (Stage::Cpuid, libc::E2BIG) => "there are more entries than KVM takes (256): take the host's own CPUID",
        (Stage::Line, libc::EBUSY) => "this eventfd raises another line already: give each line its own",
        (Stage::Line, libc::EINVAL) => "there is no such line, or no interrupt controller in the kernel",
        (Stage::Line | Stage::Doorbell, libc::EBADF) => "the descriptor is not an eventfd",
        (Stage::Doorbell, libc::EEXIST) => "there is a doorbell at this address already",
        (Stage::Doorbell, libc::ENOSPC) => "KVM's I/O bus is full: give the machine fewer devices",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_advice_at_every_stage() {
        for stage in [Stage::Vm, Stage::Slot, Stage::Interrupts, Stage::Vcpu, Stage::Cpuid, Stage::Line] {
            for errno in [libc::EMFILE, libc::ENOMEM] {
                assert_ne!(for_error(stage, &io::Error::from_raw_os_error(errno)), UNKNOWN);
            }
        }
        assert_eq!(for_error(Stage::Vm, &io::Error::other("no errno")), UNKNOWN);
    }
}
