//! The ELF note by which a unikernel tells how it wants to be started.
//!
//! Without this note a kernel is started by its PVH note if it has one, else at its ELF entry in 64-bit mode; its
//! other vCPUs then wait for INIT and SIPI as on any PC.

/// Name of the note, with its terminating zero.
pub const NAME: &[u8; 6] = b"RAMET\0";
/// Type of the note.
pub const TYPE_START: u32 = 1;
/// Descriptor: u32 flags. All vCPUs start at the ELF entry, in 64-bit mode, with their index in RDI.
pub const START_ALL_VCPUS: u32 = 1;
