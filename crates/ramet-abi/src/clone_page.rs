//! The clone page: identity, generation and a one-slot mailbox.
//!
//! One page of memory, at [`crate::layout::CLONE_PAGE_BASE`], that belongs to exactly one machine: it is made anew
//! for every machine, also in a fork, and is therefore the one place in which a parent and its child differ before
//! either executes an instruction. It has the semantics of VMGENID (a 128-bit generation that changes whenever the
//! machine's memory may have been duplicated or turned back) and adds what a clone needs to become itself.
//!
//! The host writes the first 256 bytes and the request; the guest writes the first-instruction word and the answer.
//! The host treats everything that the guest can write as hostile.
//!
//! A request is pending while `request_sequence != answer_sequence`. Both words live in the page, so a child, whose
//! page is new, never answers a request that was put to its parent.

/// "RAMETPG1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"RAMETPG1");
/// Version of this layout.
pub const ABI_VERSION: u32 = 1;

/// u64: [`MAGIC`].
pub const MAGIC_AT: usize = 0x000;
/// u32: [`ABI_VERSION`].
pub const VERSION_AT: usize = 0x008;
/// u32: changes (never to the same value in one lineage) whenever the generation does; cheap to poll.
pub const GENERATION_COUNTER_AT: usize = 0x00C;
/// 16 bytes: the generation, as VMGENID defines it.
pub const GENERATION_AT: usize = 0x010;
/// u64: this machine's number in its family; 0 is the founder.
pub const NUMBER_AT: usize = 0x020;
/// u64: the number of the machine that this one was forked from; its own number for a founder.
pub const PARENT_AT: usize = 0x028;
/// u32: how many forks lie between the founder and this machine.
pub const DEPTH_AT: usize = 0x030;
/// u32: vCPUs.
pub const VCPUS_AT: usize = 0x034;
/// i64, nanoseconds: wall clock (since 1970, UTC) = kvm-clock + this.
pub const WALL_OFFSET_NS_AT: usize = 0x038;
/// u64: bytes of family memory at [`crate::layout::FAMILY_BASE`], 0 without.
pub const FAMILY_BYTES_AT: usize = 0x040;
/// 64 bytes of entropy that no other machine has; the guest mixes them into its generator and zeroes them.
pub const ENTROPY_AT: usize = 0x080;
/// Length of the entropy.
pub const ENTROPY_BYTES: usize = 64;

/// u64, written by the guest: rdtsc at the first instruction that it executed with this page; 0 until then.
pub const FIRST_INSTRUCTION_TSC_AT: usize = 0x100;

/// u32, host: sequence number of the newest request (0: none yet).
pub const REQUEST_SEQUENCE_AT: usize = 0x200;
/// u32, host: length of the request in bytes.
pub const REQUEST_LENGTH_AT: usize = 0x204;
/// The request.
pub const REQUEST_AT: usize = 0x208;
/// Longest request in bytes.
pub const REQUEST_MAX_BYTES: usize = 0x800 - REQUEST_AT;

/// u32, guest: sequence number of the request that was answered last.
pub const ANSWER_SEQUENCE_AT: usize = 0x800;
/// u32, guest: length of the answer in bytes.
pub const ANSWER_LENGTH_AT: usize = 0x804;
/// The answer.
pub const ANSWER_AT: usize = 0x808;
/// Longest answer in bytes.
pub const ANSWER_MAX_BYTES: usize = 0x1000 - ANSWER_AT;
