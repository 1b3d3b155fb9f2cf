//! Guests for tests: memory, page tables, descriptor tables, and a machine around them.
#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub, clippy::unwrap_used, clippy::new_without_default)]

pub mod programs;

use programs::Program;
use ramet_kvm::{BlankVm, Exit, HostModel, Kvm, Vcpu, Vm, host_cpuid, supported_xcr0};
use ramet_state::{
    CloneRule, DescriptorTable, InterruptMode, MemoryRegion, RegionPurpose, Registers, Segment, SpecialRegisters,
    VcpuState, VmClass, Xcr,
};
use std::sync::OnceLock;

pub const MEMORY_BYTES: usize = 8 << 20;
const PML4: u64 = 0x10000;
const PAGE_DIRECTORY_POINTERS: u64 = 0x11000;
const PAGE_DIRECTORY: u64 = 0x12000;
const GDT: u64 = 0x18000;
const IDT: u64 = 0x19000;
const TSS: u64 = 0x1A000;
const TSS_BYTES: u64 = 0x2069;
const RING0_STACK: u64 = 0x1F000;
pub const CODE: u64 = 0x20000;
const STACK: u64 = 0x80000;
/// Where programs put their results, and 36 KiB that they use.
pub const RESULTS: u64 = 0x10_0000;
/// Bytes from there to compare.
pub const RESULT_BYTES: usize = 0xA000;
/// 2 MiB that the page tables map and the slot leaves out.
pub const NO_MEMORY: std::ops::Range<u64> = 0x60_0000..0x80_0000;

pub fn kvm() -> Kvm {
    Kvm::open().unwrap_or_else(|error| panic!("these tests need KVM, and it is not to be had: {error}"))
}

pub fn model() -> &'static HostModel {
    static MODEL: OnceLock<HostModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let kvm = kvm();
        HostModel::learn(&kvm, &host_cpuid(&kvm).unwrap()).unwrap()
    })
}

pub fn class(vcpus: u8, interrupts: InterruptMode) -> VmClass {
    VmClass {
        memory_bytes: MEMORY_BYTES as u64,
        family_bytes: 0,
        vcpus,
        interrupts,
        cpuid: host_cpuid(&kvm()).unwrap(),
        virtio_devices: 2,
    }
}

/// Guest memory: an anonymous private mapping.
pub struct Memory(*mut u8);

// SAFETY: the mapping belongs to the value; tests access it only while no vCPU runs.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new() -> Self {
        // SAFETY: a new anonymous mapping touches no other memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MEMORY_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Self(address.cast())
    }

    /// A machine's memory that ends where [`NO_MEMORY`] begins.
    pub fn slot(&self) -> (MemoryRegion, u64) {
        let region = MemoryRegion {
            start: 0,
            bytes: NO_MEMORY.start,
            ram_offset: 0,
            purpose: RegionPurpose::Ram,
            rule: CloneRule::Copy,
        };
        (region, self.0 as u64)
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        assert!(at + bytes.len() <= MEMORY_BYTES);
        // SAFETY: the range lies in the mapping; no vCPU runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) }
    }

    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let at = usize::try_from(at).unwrap();
        assert!(at + bytes <= MEMORY_BYTES);
        // SAFETY: the range lies in the mapping; no vCPU runs.
        unsafe { std::slice::from_raw_parts(self.0.add(at), bytes) }.to_vec()
    }

    pub fn read_u64(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    /// What programs touch: tables, code, stack and results.
    pub fn copy(&self) -> Self {
        let mut copy = Self::new();
        copy.write(0, &self.read(0, 0x20_0000));
        copy
    }

    pub fn poison(&mut self) {
        self.write(0, &vec![0xEE; 0x20_0000]);
    }

    /// Tables for 64-bit mode with rings 0 and 3, and the program.
    pub fn load(&mut self, program: &Program) {
        self.write(PML4, &(PAGE_DIRECTORY_POINTERS | 7).to_le_bytes());
        self.write(PAGE_DIRECTORY_POINTERS, &(PAGE_DIRECTORY | 7).to_le_bytes());
        for page in 0..MEMORY_BYTES as u64 >> 21 {
            self.write(PAGE_DIRECTORY + page * 8, &(page << 21 | 0x87).to_le_bytes());
        }
        // The layout that Linux uses too: 0x10 and 0x18 for ring 0, 0x2B and 0x33 for ring 3, task state at 0x40.
        let task = (TSS_BYTES - 1) | (TSS & 0xFF_FFFF) << 16 | 0x89 << 40;
        let descriptors: [u64; 10] = [
            0,
            0,
            0x00AF_9B00_0000_FFFF,
            0x00CF_9300_0000_FFFF,
            0,
            0x00CF_F300_0000_FFFF,
            0x00AF_FB00_0000_FFFF,
            0,
            task,
            0,
        ];
        for (at, descriptor) in (GDT..).step_by(8).zip(descriptors) {
            self.write(at, &descriptor.to_le_bytes());
        }
        // RSP0, and an I/O bitmap that allows every port.
        self.write(TSS + 4, &RING0_STACK.to_le_bytes());
        self.write(TSS + 0x66, &0x68u16.to_le_bytes());
        self.write(TSS + TSS_BYTES - 1, &[0xFF]);
        if let Some((vector, offset)) = program.handler {
            let (address, at) = (CODE + offset, IDT + u64::from(vector) * 16);
            let gate = (address & 0xFFFF) | 0x10 << 16 | 0x8E00 << 32 | (address >> 16 & 0xFFFF) << 48;
            self.write(at, &gate.to_le_bytes());
            self.write(at + 8, &(address >> 32).to_le_bytes());
        }
        self.write(CODE, program.code);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`; nothing refers to it.
        assert_eq!(unsafe { libc::munmap(self.0.cast(), MEMORY_BYTES) }, 0);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    Zero,
    Three,
}

pub fn special_registers(ring: Ring) -> SpecialRegisters {
    let dpl = if ring == Ring::Zero { 0 } else { 3 };
    let (code, data) = if ring == Ring::Zero { (0x10, 0x18) } else { (0x33, 0x2B) };
    let data =
        Segment { limit: u32::MAX, selector: data, kind: 3, present: 1, dpl, db: 1, s: 1, g: 1, ..Default::default() };
    SpecialRegisters {
        cs: Segment { selector: code, kind: 11, db: 0, l: 1, ..data },
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: Segment {
            base: TSS,
            limit: u32::try_from(TSS_BYTES - 1).unwrap(),
            selector: 0x40,
            kind: 11,
            present: 1,
            ..Default::default()
        },
        ldt: Segment { unusable: 1, ..Default::default() },
        gdt: DescriptorTable { base: GDT, limit: 0x4F },
        idt: DescriptorTable { base: IDT, limit: 0xFFF },
        cr0: 0x8005_0033,
        cr3: PML4,
        // OSFXSR, OSXMMEXCPT, PAE, and OSXSAVE.
        cr4: 0x620 | 1 << 18,
        efer: 0xD01,
        apic_base: 0xFEE0_0900,
        ..Default::default()
    }
}

/// The state in which a program starts.
pub fn start(ring: Ring, iterations: u64) -> VcpuState {
    VcpuState {
        registers: Registers {
            rip: CODE,
            rsp: STACK,
            rdi: RESULTS,
            rsi: iterations,
            rflags: if ring == Ring::Zero { 2 } else { 0x3002 },
            ..Default::default()
        },
        special_registers: special_registers(ring),
        xcrs: vec![Xcr { index: 0, value: supported_xcr0(&host_cpuid(&kvm()).unwrap()) }],
        ..Default::default()
    }
}

pub struct Guest {
    // Dropped first: no vCPU may outlive the memory.
    pub vcpus: Vec<Vcpu>,
    pub vm: Vm,
    pub memory: Memory,
}

impl Guest {
    pub fn new(memory: Memory, vcpus: u8, interrupts: InterruptMode) -> Self {
        let blank = BlankVm::create(&kvm(), model(), &class(vcpus, interrupts), &[memory.slot()]).unwrap();
        let (vm, vcpus) = blank.into_parts();
        Self { vcpus, vm, memory }
    }

    pub fn of(program: &Program, ring: Ring, iterations: u64) -> Self {
        let mut memory = Memory::new();
        memory.load(program);
        let mut guest = Self::new(memory, 1, InterruptMode::Split);
        guest.vcpus[0].restore(&start(ring, iterations)).unwrap();
        guest
    }

    /// Runs the first vCPU to the program's end.
    pub fn finish(&mut self) {
        loop {
            match self.vcpus[0].run().unwrap() {
                Exit::Interrupted => {}
                Exit::PortWrite { port: 0x10, .. } => return,
                other => panic!("{other:x?}"),
            }
        }
    }
}

/// What the host can.
pub mod host {
    use super::{host_cpuid, kvm, supported_xcr0};
    use ramet_state::CpuidEntry;

    pub fn cpuid() -> Vec<CpuidEntry> {
        host_cpuid(&kvm()).unwrap()
    }

    pub fn has_xcr0(mask: u64) -> bool {
        supported_xcr0(&cpuid()) & mask == mask
    }
}
