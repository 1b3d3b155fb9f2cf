//! Why KVM_RUN returned.

/// Why KVM_RUN returned (struct kvm_run, Documentation/virt/kvm/api.rst section 5).
#[derive(Debug, PartialEq, Eq)]
pub enum Exit<'a> {
    /// An IN: fill `data`, which is as many accesses of `size` bytes as fit (several for a string instruction).
    PortRead {
        /// I/O port.
        port: u16,
        /// Bytes per access: 1, 2 or 4.
        size: u8,
        /// What the guest shall read.
        data: &'a mut [u8],
    },
    /// An OUT: `data` is as many accesses of `size` bytes as fit (several for a string instruction).
    PortWrite {
        /// I/O port.
        port: u16,
        /// Bytes per access: 1, 2 or 4.
        size: u8,
        /// What the guest wrote.
        data: &'a [u8],
    },
    /// A load from an address without memory: fill `data`.
    MmioRead {
        /// Guest-physical address.
        address: u64,
        /// What the guest shall read, 1 to 8 bytes.
        data: &'a mut [u8],
    },
    /// A store to an address without memory.
    MmioWrite {
        /// Guest-physical address.
        address: u64,
        /// What the guest wrote, 1 to 8 bytes.
        data: &'a [u8],
    },
    /// HLT, where no local APIC in the kernel waits for the next interrupt.
    Halted,
    /// A triple fault, or another request for shutdown.
    Shutdown,
    /// KVM cannot go on: `suberror` 1 is an instruction that it cannot emulate, whose bytes are in `data`.
    InternalError {
        /// KVM_INTERNAL_ERROR_*.
        suberror: u32,
        /// Depends on `suberror`.
        data: &'a [u64],
    },
    /// The processor refused the guest's state.
    FailEntry {
        /// The hardware's reason.
        reason: u64,
        /// The host's CPU.
        cpu: u32,
    },
    /// KVM_SYSTEM_EVENT_*: shutdown (1), reset (2), crash (3) by a paravirtual interface.
    SystemEvent {
        /// KVM_SYSTEM_EVENT_*.
        kind: u32,
    },
    /// The guest touched memory of a slot whose host address has nothing mapped, or which cannot be read.
    MemoryFault {
        /// Guest-physical address, if KVM tells it.
        address: Option<u64>,
    },
    /// No exit: a kick, another signal, or a vCPU that waits for its start. See what is asked for and run again.
    Interrupted,
    /// An exit that Ramet never asks KVM for.
    Other(u32),
}
