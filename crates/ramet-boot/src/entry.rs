//! The registers and tables that a kernel finds when it is entered.
//!
//! ```text
//! 0x0500  GDT
//! 0x6000  PVH start info (hvm_start_info), memory map behind it
//! 0x9000  PML4, 0xA000 PDPT, 0xB000 on: page directories, one per GiB, 2 MiB pages
//! ```

use crate::Write;
use crate::image::{Image, Start};
use ramet_abi::layout::{HOLE_END, split_ram};
use ramet_state::{DescriptorTable, Registers, Segment, SpecialRegisters, VcpuState, VmClass, Xcr};

const GDT: u64 = 0x500;
const PVH_START_INFO: u64 = 0x6000;
const PVH_MEMORY_MAP: u64 = 0x6040;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xA000;
const FIRST_PD: u64 = 0xB000;
/// What fits between [`FIRST_PD`] and 640 KiB, rounded down.
const MAX_MAPPED_GIB: u64 = 128;

const CR0_PE: u64 = 1;
const CR0_MP: u64 = 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const CR4_OSXSAVE: u64 = 1 << 18;
const EFER_SCE: u64 = 1;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const APIC_BASE: u64 = 0xFEE0_0000;
const APIC_ENABLED: u64 = 1 << 11;
const APIC_BOOTSTRAP: u64 = 1 << 8;

/// Present, writable, user, accessed, dirty: the processor never has to write to these tables.
const TABLE_ENTRY: u64 = 0x27;
const PAGE_ENTRY: u64 = 0xE7;

const MP_STATE_RUNNABLE: u32 = 0;
const MP_STATE_UNINITIALIZED: u32 = 1;

/// XEN_HVM_START_MAGIC_VALUE, "xEn3" with the high bit of 'E' set.
const PVH_MAGIC: u32 = 0x336e_c578;

fn quadwords(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// An identity map with 2 MiB pages of the first 4 GiB, or of all RAM.
fn page_tables(memory_bytes: u64) -> Vec<Write> {
    let (_, high) = split_ram(memory_bytes);
    let gib = (HOLE_END + high).div_ceil(1 << 30).clamp(4, MAX_MAPPED_GIB);
    let directories = (0..gib * 512).map(|page| (page << 21) | PAGE_ENTRY);
    vec![
        Write { address: PML4, bytes: quadwords([PDPT | TABLE_ENTRY]) },
        Write { address: PDPT, bytes: quadwords((0..gib).map(|n| (FIRST_PD + (n << 12)) | TABLE_ENTRY)) },
        Write { address: FIRST_PD, bytes: quadwords(directories) },
    ]
}

fn code_segment(long: bool) -> Segment {
    let (l, db) = if long { (1, 0) } else { (0, 1) };
    let (limit, selector) = (0xFFFF_FFFF, 0x10);
    Segment { limit, selector, kind: 11, present: 1, db, s: 1, l, g: 1, ..Segment::default() }
}

fn data_segment() -> Segment {
    Segment { limit: 0xFFFF_FFFF, selector: 0x18, kind: 3, present: 1, db: 1, s: 1, g: 1, ..Segment::default() }
}

fn task_segment() -> Segment {
    Segment { limit: 0x67, kind: 11, present: 1, ..Segment::default() }
}

/// The flat descriptors that [`code_segment`] and [`data_segment`] were loaded from.
fn descriptors(long: bool) -> Write {
    let code = if long { 0x00AF_9B00_0000_FFFF } else { 0x00CF_9B00_0000_FFFF };
    Write { address: GDT, bytes: quadwords([0, 0, code, 0x00CF_9300_0000_FFFF]) }
}

fn special_registers(long: bool, bootstrap: bool) -> SpecialRegisters {
    let data = data_segment();
    let apic_base = APIC_BASE | APIC_ENABLED | if bootstrap { APIC_BOOTSTRAP } else { 0 };
    let mut special = SpecialRegisters {
        cs: code_segment(long),
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: task_segment(),
        gdt: DescriptorTable { base: GDT, limit: 4 * 8 - 1 },
        cr0: CR0_PE | CR0_MP | CR0_ET | CR0_NE,
        apic_base,
        ..SpecialRegisters::default()
    };
    special.ldt.unusable = 1;
    if long {
        special.cr0 |= CR0_WP | CR0_PG;
        special.cr3 = PML4;
        special.cr4 = CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_OSXSAVE;
        special.efer = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE;
    }
    special
}

fn long_mode_vcpu(index: u8, class: &VmClass, entry: u64, xcr0: u64) -> VcpuState {
    let registers = Registers {
        rip: entry,
        rflags: 2,
        rdi: u64::from(index),
        rsi: class.memory_bytes,
        rdx: u64::from(class.vcpus),
        ..Registers::default()
    };
    VcpuState {
        registers,
        special_registers: special_registers(true, index == 0),
        xcrs: vec![Xcr { index: 0, value: xcr0 | 1 }],
        mp_state: Some(MP_STATE_RUNNABLE),
        ..VcpuState::default()
    }
}

/// A processor that waits for INIT and SIPI, as KVM creates it.
fn waiting_vcpu(special_registers: SpecialRegisters) -> VcpuState {
    VcpuState {
        registers: Registers { rip: 0xFFF0, rflags: 2, ..Registers::default() },
        special_registers,
        mp_state: Some(MP_STATE_UNINITIALIZED),
        ..VcpuState::default()
    }
}

/// Real mode at the reset vector: what INIT leaves.
fn reset_special_registers() -> SpecialRegisters {
    let flat = |kind| Segment { limit: 0xFFFF, kind, present: 1, s: 1, ..Segment::default() };
    let system = |kind| Segment { limit: 0xFFFF, kind, present: 1, ..Segment::default() };
    SpecialRegisters {
        cs: Segment { base: 0xFFFF_0000, selector: 0xF000, ..flat(11) },
        ds: flat(3),
        es: flat(3),
        fs: flat(3),
        gs: flat(3),
        ss: flat(3),
        tr: system(11),
        ldt: system(2),
        gdt: DescriptorTable { base: 0, limit: 0xFFFF },
        idt: DescriptorTable { base: 0, limit: 0xFFFF },
        cr0: 0x6000_0010,
        apic_base: APIC_BASE | APIC_ENABLED,
        ..SpecialRegisters::default()
    }
}

/// hvm_start_info (version 1) and its memory map.
fn pvh_tables(memory_bytes: u64) -> Vec<Write> {
    let (low, high) = split_ram(memory_bytes);
    let mut ranges = vec![(0, low)];
    if high > 0 {
        ranges.push((HOLE_END, high));
    }
    const RAM: u64 = 1;
    let map = quadwords(ranges.iter().flat_map(|(start, bytes)| [*start, *bytes, RAM]));
    let mut info = Vec::new();
    for word in [PVH_MAGIC, 1, 0, 0] {
        info.extend_from_slice(&word.to_le_bytes());
    }
    info.extend(quadwords([0, 0, 0, PVH_MEMORY_MAP, ranges.len() as u64]));
    vec![Write { address: PVH_START_INFO, bytes: info }, Write { address: PVH_MEMORY_MAP, bytes: map }]
}

/// The vCPUs as they start, and the tables that they need.
pub(crate) fn prepare(image: &Image, class: &VmClass, xcr0: u64) -> (Vec<VcpuState>, Vec<Write>) {
    let others = 1..class.vcpus;
    match image.start {
        Start::Long { entry, all_vcpus } => {
            let mut vcpus = vec![long_mode_vcpu(0, class, entry, xcr0)];
            vcpus.extend(others.map(|index| match all_vcpus {
                true => long_mode_vcpu(index, class, entry, xcr0),
                false => waiting_vcpu(reset_special_registers()),
            }));
            let mut writes = page_tables(class.memory_bytes);
            writes.push(descriptors(true));
            (vcpus, writes)
        }
        Start::Pvh { entry } => {
            let registers = Registers { rip: u64::from(entry), rflags: 2, rbx: PVH_START_INFO, ..Registers::default() };
            let first = VcpuState {
                registers,
                special_registers: special_registers(false, true),
                mp_state: Some(MP_STATE_RUNNABLE),
                ..VcpuState::default()
            };
            let mut vcpus = vec![first];
            vcpus.extend(others.map(|_| waiting_vcpu(reset_special_registers())));
            let mut writes = pvh_tables(class.memory_bytes);
            writes.push(descriptors(false));
            (vcpus, writes)
        }
    }
}
