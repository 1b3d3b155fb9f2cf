//! Loaders: from a kernel file to a machine that has not run yet.
//!
//! Booting is just another producer of a [`MachineState`]: a loader is a pure function from the kernel's bytes and
//! the machine's class to a state and the bytes that its memory begins with ([`Loaded`]). Nothing here touches KVM,
//! files or mappings, so that a hostile kernel file can reach nothing but this function.
//!
//! ```text
//!   kernel bytes --parse--> segments, notes --choose entry--> 64-bit | PVH
//!                                              |                 |
//!                              page tables, GDT, registers   start info, memory map, registers
//!                                              +--------+--------+
//!                                        MachineState + writes
//! ```
//!
//! Deliberately absent, until Linux guests: bzImage, initramfs, zero page, ACPI and MP tables.
#![forbid(unsafe_code)]

mod entry;
mod image;

pub use image::{LoadError, MAX_KERNEL_BYTES};

use ramet_state::{ClockState, Identity, InterruptControllerState, MachineState, PartState, VmClass, memory_regions};

/// Bytes that guest memory begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Guest-physical address; always in RAM.
    pub address: u64,
    /// What goes there.
    pub bytes: Vec<u8>,
}

/// A machine that has not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Its state; the identity is not filled in.
    pub state: MachineState,
    /// What its RAM holds; everything else is zero.
    pub writes: Vec<Write>,
}

/// What a loader needs besides the kernel.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The machine's class.
    pub class: &'a VmClass,
    /// Extended state components that the guest may use (XCR0): x87 is always on.
    pub xcr0: u64,
    /// The machine's devices in their initial state.
    pub parts: Vec<PartState>,
}

/// Loads an ELF kernel.
///
/// It starts as its RAMET note asks ([`ramet_abi::note`]); without one by its PVH note
/// (<https://xenbits.xen.org/docs/unstable/misc/pvh.html>) in 32-bit mode; without either at its ELF entry in 64-bit
/// mode with an identity map of the first 4 GiB or of all RAM, at most 128 GiB.
///
/// # Errors
/// [`LoadError`] says what is wrong with the file, or with the file for this machine.
pub fn load_elf(kernel: &[u8], options: Options<'_>) -> Result<Loaded, LoadError> {
    let image = image::parse(kernel, options.class.memory_bytes)?;
    let (vcpus, mut writes) = entry::prepare(&image, options.class, options.xcr0);
    writes.extend(image.segments);
    let state = MachineState {
        memory: memory_regions(options.class),
        class: options.class.clone(),
        identity: Identity { number: 0, parent: 0, depth: 0, generation: [0; 16], generation_counter: 0 },
        vcpus,
        interrupt_controller: InterruptControllerState::default(),
        clock: ClockState::default(),
        parts: options.parts,
        caller: None,
    };
    Ok(Loaded { state, writes })
}

#[cfg(test)]
mod tests;
