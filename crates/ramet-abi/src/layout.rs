//! Guest-physical addresses, interrupt lines and vectors.

/// Bytes in a guest page; every region, run and layer is a multiple of it.
pub const PAGE_BYTES: u64 = 4096;
/// First address of the hole below 4 GiB that holds devices instead of RAM.
pub const HOLE_START: u64 = 0xC000_0000;
/// First address above the hole.
pub const HOLE_END: u64 = 0x1_0000_0000;

/// First virtio-mmio transport (virtio 1.2, section 4.2); transport `n` is at `VIRTIO_MMIO_BASE + n * PAGE_BYTES`.
pub const VIRTIO_MMIO_BASE: u64 = 0xD000_0000;
/// How many virtio-mmio transports fit.
pub const VIRTIO_MMIO_COUNT: u64 = 64;
/// The clone page: one page of shared memory between the machine, its monitor and whoever supervises it.
pub const CLONE_PAGE_BASE: u64 = 0xD100_0000;
/// A 4-byte write here says that the clone page holds a new answer.
pub const ANSWER_DOORBELL: u64 = 0xD110_0000;
/// Memory that is shared by all machines of a family, where the family declares some.
pub const FAMILY_BASE: u64 = 0xD200_0000;
/// Largest family memory, in bytes.
pub const FAMILY_MAX_BYTES: u64 = 16 << 20;
/// The local APIC's page.
pub const LOCAL_APIC_BASE: u64 = 0xFEE0_0000;
/// Where KVM puts its task state segment on VMX hosts; 3 pages that the guest must not use.
pub const KVM_TSS_BASE: u64 = 0xFFFB_D000;

/// First I/O port of the 8250 serial device (COM1).
pub const SERIAL_PORT: u16 = 0x3F8;
/// Ports of the 8250.
pub const SERIAL_PORTS: u16 = 8;

/// Interrupt line of the 8250.
pub const SERIAL_GSI: u32 = 4;
/// Interrupt line of virtio-mmio transport 0; transport `n` has `VIRTIO_GSI + n`.
pub const VIRTIO_GSI: u32 = 5;
/// Interrupt line of the clone page: a new request, or a new generation.
pub const CLONE_PAGE_GSI: u32 = 16;
/// How many interrupt lines there are.
pub const GSI_COUNT: u32 = 24;
/// In a machine with a split interrupt controller, line `n` arrives as vector `VECTOR_BASE + n` at the first vCPU.
pub const VECTOR_BASE: u8 = 0x30;

/// Splits `memory_bytes` of RAM into its part below the hole and its part above 4 GiB.
pub const fn split_ram(memory_bytes: u64) -> (u64, u64) {
    if memory_bytes <= HOLE_START { (memory_bytes, 0) } else { (HOLE_START, memory_bytes - HOLE_START) }
}
