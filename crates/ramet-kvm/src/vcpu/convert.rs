//! Between KVM's structures and those of a machine's state.

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs, kvm_sregs2, kvm_xcrs};
use ramet_state::{DescriptorTable, Registers, Segment, SpecialRegisters, VcpuState, Xcr};

/// Copies fields of the same name from one structure into a new one of another type.
macro_rules! same_names {
    ($from:expr, $to:ident { $($field:ident),* } $($rest:tt)*) => { $to { $($field: $from.$field,)* $($rest)* } };
}

pub(super) fn registers_from_kvm(regs: &kvm_regs) -> Registers {
    same_names!(
        regs,
        Registers { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
    )
}

pub(super) fn registers_to_kvm(registers: &Registers) -> kvm_regs {
    same_names!(
        registers,
        kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
    )
}

fn segment_from_kvm(segment: &kvm_segment) -> Segment {
    same_names!(segment, Segment { base, limit, selector, present, dpl, db, s, l, g, avl, unusable }
        kind: segment.type_)
}

fn segment_to_kvm(segment: &Segment) -> kvm_segment {
    same_names!(segment, kvm_segment { base, limit, selector, present, dpl, db, s, l, g, avl, unusable }
        type_: segment.kind, padding: 0)
}

fn table_from_kvm(table: &kvm_dtable) -> DescriptorTable {
    DescriptorTable { base: table.base, limit: table.limit }
}

fn table_to_kvm(table: &DescriptorTable) -> kvm_dtable {
    kvm_dtable { base: table.base, limit: table.limit, padding: [0; 3] }
}

pub(super) fn special_from_kvm(sregs: &kvm_sregs, pdptrs: Option<[u64; 4]>) -> SpecialRegisters {
    let segment = segment_from_kvm;
    same_names!(sregs, SpecialRegisters { cr0, cr2, cr3, cr4, cr8, efer, apic_base, interrupt_bitmap }
        cs: segment(&sregs.cs), ds: segment(&sregs.ds), es: segment(&sregs.es), fs: segment(&sregs.fs),
        gs: segment(&sregs.gs), ss: segment(&sregs.ss), tr: segment(&sregs.tr), ldt: segment(&sregs.ldt),
        gdt: table_from_kvm(&sregs.gdt), idt: table_from_kvm(&sregs.idt), pdptrs)
}

pub(super) fn special_to_kvm(special: &SpecialRegisters) -> kvm_sregs {
    let segment = segment_to_kvm;
    same_names!(special, kvm_sregs { cr0, cr2, cr3, cr4, cr8, efer, apic_base, interrupt_bitmap }
        cs: segment(&special.cs), ds: segment(&special.ds), es: segment(&special.es), fs: segment(&special.fs),
        gs: segment(&special.gs), ss: segment(&special.ss), tr: segment(&special.tr), ldt: segment(&special.ldt),
        gdt: table_to_kvm(&special.gdt), idt: table_to_kvm(&special.idt))
}

pub(super) fn special_to_kvm2(special: &SpecialRegisters, pdptrs: [u64; 4]) -> kvm_sregs2 {
    let segment = segment_to_kvm;
    same_names!(special, kvm_sregs2 { cr0, cr2, cr3, cr4, cr8, efer, apic_base }
        cs: segment(&special.cs), ds: segment(&special.ds), es: segment(&special.es), fs: segment(&special.fs),
        gs: segment(&special.gs), ss: segment(&special.ss), tr: segment(&special.tr), ldt: segment(&special.ldt),
        gdt: table_to_kvm(&special.gdt), idt: table_to_kvm(&special.idt),
        flags: u64::from(kvm_bindings::KVM_SREGS2_FLAGS_PDPTRS_VALID), pdptrs)
}

/// Whether the page-directory pointers are part of the state: paging with PAE outside of long mode (SDM volume 3,
/// section 4.4).
pub(super) fn uses_pdptrs(cr0: u64, cr4: u64, efer: u64) -> bool {
    const CR0_PG: u64 = 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LMA: u64 = 1 << 10;
    cr0 & CR0_PG != 0 && cr4 & CR4_PAE != 0 && efer & EFER_LMA == 0
}

pub(super) fn xcrs_from_kvm(xcrs: &kvm_xcrs) -> Vec<Xcr> {
    let count = usize::try_from(xcrs.nr_xcrs).unwrap_or(usize::MAX).min(xcrs.xcrs.len());
    xcrs.xcrs[..count].iter().map(|xcr| Xcr { index: xcr.xcr, value: xcr.value }).collect()
}

/// `None` if there are more than fit.
pub(super) fn xcrs_to_kvm(xcrs: &[Xcr]) -> Option<kvm_xcrs> {
    let mut result = kvm_xcrs { nr_xcrs: u32::try_from(xcrs.len()).ok()?, ..Default::default() };
    for (to, from) in result.xcrs.get_mut(..xcrs.len())?.iter_mut().zip(xcrs) {
        (to.xcr, to.value) = (from.index, from.value);
    }
    Some(result)
}

/// Moves a saved TSC on by the time that passed since it was saved, so that absolute TSC deadlines keep their
/// meaning. Has no effect where a machine's TSC is the host's (see [`crate::HostModel::tsc_is_virtual`]): restoring
/// leaves it alone there.
pub fn advance_tsc(state: &mut VcpuState, elapsed_ns: u64, tsc_khz: u32) {
    let ticks = u128::from(elapsed_ns) * u128::from(tsc_khz) / 1_000_000;
    for msr in state.msrs.iter_mut().filter(|msr| msr.index == super::msrs::IA32_TSC) {
        msr.data = msr.data.wrapping_add(ticks as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_state::Msr;

    #[test]
    fn special_registers_survive_the_way_through_kvms_form() {
        let code = Segment {
            base: 1,
            limit: 2,
            selector: 3,
            kind: 11,
            present: 1,
            dpl: 3,
            db: 1,
            s: 1,
            l: 1,
            g: 1,
            avl: 1,
            unusable: 1,
        };
        let special = SpecialRegisters {
            cs: code,
            tr: Segment { selector: 0x28, ..code },
            gdt: DescriptorTable { base: 0x1000, limit: 0x7F },
            cr0: 1,
            cr2: 2,
            cr3: 3,
            cr4: 4,
            cr8: 5,
            efer: 6,
            apic_base: 7,
            interrupt_bitmap: [1, 2, 3, 4],
            ..Default::default()
        };
        assert_eq!(special_from_kvm(&special_to_kvm(&special), None), special);
    }

    #[test]
    fn too_many_xcrs_are_refused() {
        let xcr = Xcr { index: 0, value: 7 };
        assert_eq!(xcrs_from_kvm(&xcrs_to_kvm(&[xcr]).unwrap()), [xcr]);
        assert!(xcrs_to_kvm(&[xcr; 17]).is_none());
    }

    #[test]
    fn the_tsc_moves_on_by_elapsed_time() {
        let mut state =
            VcpuState { msrs: vec![Msr { index: 0x10, data: 5 }, Msr { index: 0x6E0, data: 9 }], ..Default::default() };
        advance_tsc(&mut state, 1_000_000, 2_600_000);
        assert_eq!((state.msrs[0].data, state.msrs[1].data), (2_600_005, 9));
    }
}
