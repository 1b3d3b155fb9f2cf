//! The host's part of the page as bytes.

use ramet_abi::clone_page::{
    ABI_VERSION, DEPTH_AT, ENTROPY_AT, ENTROPY_BYTES, FAMILY_BYTES_AT, FIRST_INSTRUCTION_TSC_AT, GENERATION_AT,
    GENERATION_COUNTER_AT, MAGIC, MAGIC_AT, NUMBER_AT, PARENT_AT, VCPUS_AT, VERSION_AT, WALL_OFFSET_NS_AT,
};
use ramet_state::Identity;

/// Bytes that building writes: all up to the first word that is the guest's.
pub(crate) const HOST_BYTES: usize = FIRST_INSTRUCTION_TSC_AT;

/// Who a machine is: everything that its clone page says, final.
#[derive(Clone, PartialEq, Eq)]
pub struct MachineIdentity {
    /// Number, parent, depth, generation.
    pub identity: Identity,
    /// vCPUs.
    pub vcpus: u32,
    /// Wall clock (ns since 1970, UTC) = kvm-clock + this.
    pub wall_offset_ns: i64,
    /// Bytes of family memory; 0 without.
    pub family_bytes: u64,
    /// Random bytes that no other machine has.
    pub entropy: [u8; ENTROPY_BYTES],
}

impl std::fmt::Debug for MachineIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The entropy is the clone's secret: it stays out of logs.
        formatter
            .debug_struct("MachineIdentity")
            .field("identity", &self.identity)
            .field("vcpus", &self.vcpus)
            .field("wall_offset_ns", &self.wall_offset_ns)
            .field("family_bytes", &self.family_bytes)
            .finish_non_exhaustive()
    }
}

impl MachineIdentity {
    /// What the host writes at the start of the page.
    pub(crate) fn page(&self) -> [u8; HOST_BYTES] {
        let mut page = [0; HOST_BYTES];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(MAGIC_AT, &MAGIC.to_le_bytes());
        put(VERSION_AT, &ABI_VERSION.to_le_bytes());
        put(GENERATION_COUNTER_AT, &self.identity.generation_counter.to_le_bytes());
        put(GENERATION_AT, &self.identity.generation);
        put(NUMBER_AT, &self.identity.number.to_le_bytes());
        put(PARENT_AT, &self.identity.parent.to_le_bytes());
        put(DEPTH_AT, &self.identity.depth.to_le_bytes());
        put(VCPUS_AT, &self.vcpus.to_le_bytes());
        put(WALL_OFFSET_NS_AT, &self.wall_offset_ns.to_le_bytes());
        put(FAMILY_BYTES_AT, &self.family_bytes.to_le_bytes());
        put(ENTROPY_AT, &self.entropy);
        page
    }
}
