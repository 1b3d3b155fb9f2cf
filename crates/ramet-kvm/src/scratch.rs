//! A tiny guest in ring 3 that shows what a guest's user mode really sees of its TSC and CPUID.
#![allow(unsafe_code)]

use crate::model::ModelError;
use crate::vcpu::{Exit, Vcpu};
use ramet_state::{
    CloneRule, CpuidEntry, DescriptorTable, MemoryRegion, Msr, RegionPurpose, Registers, Segment, SpecialRegisters,
    VcpuState,
};
use std::io;
use std::ptr::NonNull;

/// Bytes of the guest's memory: three page tables and a page of code.
const BYTES: usize = 0x4000;
const PML4: usize = 0;
const PAGE_DIRECTORY_POINTERS: usize = 0x1000;
const PAGE_DIRECTORY: usize = 0x2000;
const CODE: usize = 0x3000;
/// Mapped by the page tables, but no memory: a store here is an exit.
const DOORBELL: u64 = 0x20_0000;

/// A TSC that no host has: 2^60, seven years after its start at 5 GHz.
const PROBE_TSC: u64 = 1 << 60;

/// rdtsc; mov r8, rax; mov r9, rdx; mov eax, 0x400000FE; xor ecx, ecx; cpuid; mov [0x200000], eax; jmp $
const PROGRAM: [u8; 27] = [
    0x0F, 0x31, 0x49, 0x89, 0xC0, 0x49, 0x89, 0xD1, 0xB8, 0xFE, 0x00, 0x00, 0x40, 0x31, 0xC9, 0x0F, 0xA2, 0x89, 0x04,
    0x25, 0x00, 0x00, 0x20, 0x00, 0xEB, 0xFE, 0x90,
];

/// What the guest saw.
pub(crate) struct Seen {
    /// Whether its TSC began where it was set to.
    pub(crate) tsc_is_virtual: bool,
    /// Whether CPUID returned [`PROBE_LEAF`].
    pub(crate) cpuid_is_honoured: bool,
}

/// A leaf in the hypervisors' range of CPUID that means nothing to anyone, and its EAX.
pub(crate) const PROBE_LEAF: CpuidEntry =
    CpuidEntry { function: 0x4000_00FE, index: 0, flags: 0, eax: 0x7261_6D65, ebx: 0, ecx: 0, edx: 0 };

/// The guest's memory.
pub(crate) struct Memory(NonNull<u8>);

impl Memory {
    /// Maps it and writes the page tables and the program.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Self(NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?);
        // Present, writable, user; 0x80 for a page of 2 MiB (SDM volume 3, section 4.5).
        memory.write(PML4, &(PAGE_DIRECTORY_POINTERS as u64 | 7).to_le_bytes());
        memory.write(PAGE_DIRECTORY_POINTERS, &(PAGE_DIRECTORY as u64 | 7).to_le_bytes());
        memory.write(PAGE_DIRECTORY, &0x87u64.to_le_bytes());
        memory.write(PAGE_DIRECTORY + 8, &(DOORBELL | 0x87).to_le_bytes());
        memory.write(CODE, &PROGRAM);
        Ok(memory)
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BYTES, "the layout above fits the mapping");
        // SAFETY: the range lies in the mapping (asserted), to which there are no references; no guest runs yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_ptr().add(offset), bytes.len()) }
    }

    /// Its region and host address.
    pub(crate) fn slot(&self) -> (MemoryRegion, u64) {
        let region = MemoryRegion {
            start: 0,
            bytes: BYTES as u64,
            ram_offset: 0,
            purpose: RegionPurpose::Ram,
            rule: CloneRule::Recreate,
        };
        (region, self.0.as_ptr() as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and there are no references to it. A guest that still had it as its
        // memory would get KVM_EXIT_MEMORY_FAULT: the kernel follows the unmapping.
        let result = unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
        debug_assert_eq!(result, 0);
    }
}

/// Runs the program on a newborn vCPU whose memory is `memory`.
pub(crate) fn observe(vcpu: &mut Vcpu, _memory: &Memory) -> Result<Seen, ModelError> {
    let state = VcpuState {
        registers: Registers { rip: CODE as u64, rflags: 2, rsp: CODE as u64 + 0x800, ..Default::default() },
        special_registers: ring3(),
        msrs: vec![Msr { index: 0x10, data: PROBE_TSC }],
        ..Default::default()
    };
    vcpu.restore(&state).map_err(|error| ModelError::Exit { exit: error.to_string() })?;
    loop {
        match vcpu.run()? {
            Exit::Interrupted => {}
            Exit::MmioWrite { address: DOORBELL, .. } => break,
            other => return Err(ModelError::Exit { exit: format!("{other:x?}") }),
        }
    }
    let mut registers = Registers::default();
    vcpu.edit_registers(|now| registers = *now)?;
    let tsc = registers.r9 << 32 | registers.r8 & 0xFFFF_FFFF;
    Ok(Seen { tsc_is_virtual: tsc >= PROBE_TSC, cpuid_is_honoured: registers.rax == u64::from(PROBE_LEAF.eax) })
}

/// 64-bit user mode on the page tables of [`Memory`], without tables for interrupts.
fn ring3() -> SpecialRegisters {
    let data = Segment {
        base: 0,
        limit: u32::MAX,
        selector: 0x2B,
        kind: 3,
        present: 1,
        dpl: 3,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    };
    let code = Segment { selector: 0x33, kind: 11, db: 0, l: 1, ..data };
    let task = Segment { limit: 0x67, selector: 0x40, kind: 11, present: 1, ..Default::default() };
    SpecialRegisters {
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: task,
        ldt: Segment { unusable: 1, ..Default::default() },
        gdt: DescriptorTable::default(),
        idt: DescriptorTable::default(),
        cr0: 0x8005_0033,
        cr3: PML4 as u64,
        cr4: 0x620,
        efer: 0xD01,
        apic_base: 0xFEE0_0900,
        ..Default::default()
    }
}
