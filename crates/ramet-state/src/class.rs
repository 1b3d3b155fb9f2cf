//! The class of a virtual machine: all that must be decided before its state is known.
//!
//! A machine is born blank, with KVM objects that depend on nothing but its class, and receives its state later
//! (ARCHITECTURE.md, "Blank machines"). Two machines of one class are interchangeable until then.

use serde::{Deserialize, Serialize};

/// Which interrupt controllers KVM emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InterruptMode {
    /// Local APICs in the kernel, no I/O APIC: line n arrives as a message-signalled interrupt with vector
    /// [`ramet_abi::layout::VECTOR_BASE`] + n. Cheap to create and to tear down; for unikernels.
    Split,
    /// PIC, I/O APIC and local APICs in the kernel, and a PIT if `pit`.
    Full {
        /// Whether to emulate the i8254 timer.
        pit: bool,
    },
}

/// One CPUID leaf as the guest shall see it. Encoded as its seven numbers in this order: it travels with every fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "[u32; 7]", from = "[u32; 7]")]
#[expect(missing_docs, reason = "the architecture's names")]
pub struct CpuidEntry {
    pub function: u32,
    pub index: u32,
    pub flags: u32,
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

impl From<CpuidEntry> for [u32; 7] {
    fn from(leaf: CpuidEntry) -> [u32; 7] {
        [leaf.function, leaf.index, leaf.flags, leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
    }
}

impl From<[u32; 7]> for CpuidEntry {
    fn from([function, index, flags, eax, ebx, ecx, edx]: [u32; 7]) -> CpuidEntry {
        CpuidEntry { function, index, flags, eax, ebx, ecx, edx }
    }
}

/// What a blank machine is made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmClass {
    /// RAM in bytes; a multiple of the page size.
    pub memory_bytes: u64,
    /// Bytes of family memory, 0 for none; a multiple of the page size.
    pub family_bytes: u64,
    /// vCPUs.
    pub vcpus: u8,
    /// Interrupt controllers.
    pub interrupts: InterruptMode,
    /// CPUID, before the fields that differ between vCPUs.
    pub cpuid: Vec<CpuidEntry>,
    /// How many virtio-mmio transports have doorbells and lines.
    pub virtio_devices: u8,
}

/// Why a class cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmClassError {
    /// No or too little memory.
    #[error("Memory size {bytes} bytes is not a multiple of 4096 of at least {minimum}: give a size such as 128M")]
    Memory {
        /// What was asked for.
        bytes: u64,
        /// The least.
        minimum: u64,
    },
    /// More memory than a machine may have.
    #[error("Memory size {bytes} bytes exceeds {maximum}: give a smaller size")]
    MemoryTooLarge {
        /// What was asked for.
        bytes: u64,
        /// The most.
        maximum: u64,
    },
    /// Bad family memory.
    #[error("Family memory of {bytes} bytes is not a multiple of 4096 of at most {maximum}")]
    Family {
        /// What was asked for.
        bytes: u64,
        /// The most.
        maximum: u64,
    },
    /// Bad number of vCPUs.
    #[error("{vcpus} vCPUs asked for: give 1 to {maximum}")]
    Vcpus {
        /// What was asked for.
        vcpus: u8,
        /// The most.
        maximum: u8,
    },
    /// Too many virtio devices.
    #[error("{devices} virtio devices asked for: at most {maximum} fit")]
    Devices {
        /// What was asked for.
        devices: u8,
        /// The most.
        maximum: u8,
    },
}

impl VmClass {
    /// Least RAM: the embedded unikernel's image and stacks fit.
    pub const MIN_MEMORY_BYTES: u64 = 8 << 20;
    /// Most RAM, 1 TiB: what the reserved range of host addresses holds.
    pub const MAX_MEMORY_BYTES: u64 = 1 << 40;
    /// Most vCPUs.
    pub const MAX_VCPUS: u8 = 8;
    /// Most virtio devices: their lines must stay below the clone page's.
    pub const MAX_VIRTIO_DEVICES: u8 = 11;

    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`VmClassError`] names the field and its value.
    pub fn validate(&self) -> Result<(), VmClassError> {
        use ramet_abi::layout::{FAMILY_MAX_BYTES, PAGE_BYTES};
        let bytes = self.memory_bytes;
        if bytes < Self::MIN_MEMORY_BYTES || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(VmClassError::Memory { bytes, minimum: Self::MIN_MEMORY_BYTES });
        }
        if bytes > Self::MAX_MEMORY_BYTES {
            return Err(VmClassError::MemoryTooLarge { bytes, maximum: Self::MAX_MEMORY_BYTES });
        }
        if self.family_bytes > FAMILY_MAX_BYTES || !self.family_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(VmClassError::Family { bytes: self.family_bytes, maximum: FAMILY_MAX_BYTES });
        }
        if self.vcpus == 0 || self.vcpus > Self::MAX_VCPUS {
            return Err(VmClassError::Vcpus { vcpus: self.vcpus, maximum: Self::MAX_VCPUS });
        }
        if self.virtio_devices > Self::MAX_VIRTIO_DEVICES {
            return Err(VmClassError::Devices { devices: self.virtio_devices, maximum: Self::MAX_VIRTIO_DEVICES });
        }
        Ok(())
    }
}
