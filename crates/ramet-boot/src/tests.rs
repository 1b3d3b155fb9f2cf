//! Images and entry states, well-formed and not. Whether a guest then runs is for the end-to-end tests.

use super::*;
use proptest::prelude::*;
use ramet_state::{Intent, InterruptMode, NewIdentity, plan};

const MIB: u64 = 1 << 20;

fn class(memory_bytes: u64, vcpus: u8) -> VmClass {
    VmClass { memory_bytes, family_bytes: 0, vcpus, interrupts: InterruptMode::Split, cpuid: vec![], virtio_devices: 2 }
}

/// (type, offset, physical address, bytes in the file, bytes in memory)
type Header = (u32, u64, u64, u64, u64);

fn elf(entry: u64, headers: &[Header], body: &[u8]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, u16::try_from(headers.len()).unwrap(), 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    for (kind, offset, address, in_file, in_memory) in headers {
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&7u32.to_le_bytes());
        for word in [*offset, *address, *address, *in_file, *in_memory, if *kind == 4 { 4 } else { 4096 }] {
            file.extend_from_slice(&word.to_le_bytes());
        }
    }
    file.resize(4096, 0);
    file.extend_from_slice(body);
    file
}

fn note(name: &[u8], kind: u32, descriptor: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [u32::try_from(name.len()).unwrap(), u32::try_from(descriptor.len()).unwrap(), kind] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    note.extend_from_slice(name);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend_from_slice(descriptor);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

fn load(kernel: &[u8], class: &VmClass) -> Result<Loaded, LoadError> {
    load_elf(kernel, Options { class, xcr0: 7, parts: vec![] })
}

#[test]
fn a_plain_kernel_starts_in_64_bit_mode_and_the_others_wait() {
    let kernel = elf(0x20_0010, &[(1, 4096, 0x20_0000, 64, 8192)], &[0x90; 64]);
    let class = class(128 * MIB, 2);
    let loaded = load(&kernel, &class).unwrap();
    assert_eq!(loaded.state.vcpus[0].registers.rip, 0x20_0010);
    assert_eq!(loaded.state.vcpus[0].special_registers.efer & 0x500, 0x500);
    assert_eq!(loaded.state.vcpus[1].mp_state, Some(1));
    assert!(loaded.writes.iter().any(|write| write.address == 0x20_0000 && write.bytes == [0x90; 64]));
    plan(&loaded.state, &Intent::Boot(NewIdentity { number: 0, generation: [1; 16] })).unwrap();
}

#[test]
fn the_ramet_note_starts_all_vcpus() {
    let body = [vec![0x90; 64], note(b"RAMET\0", 1, &1u32.to_le_bytes())].concat();
    let headers = [(1, 4096, 0x20_0000, 64, 64), (4, 4160, 0, body.len() as u64 - 64, body.len() as u64 - 64)];
    let loaded = load(&elf(0x20_0000, &headers, &body), &class(128 * MIB, 3)).unwrap();
    for (index, vcpu) in loaded.state.vcpus.iter().enumerate() {
        assert_eq!((vcpu.registers.rdi, vcpu.registers.rdx, vcpu.mp_state), (index as u64, 3, Some(0)));
    }
}

#[test]
fn the_pvh_note_starts_in_32_bit_mode_with_a_memory_map() {
    let body = [vec![0x90; 64], note(b"Xen\0", 18, &0x20_0020u32.to_le_bytes())].concat();
    let headers = [(1, 4096, 0x20_0000, 64, 64), (4, 4160, 0, body.len() as u64 - 64, body.len() as u64 - 64)];
    let loaded = load(&elf(0x20_0000, &headers, &body), &class(4096 * MIB, 1)).unwrap();
    let vcpu = &loaded.state.vcpus[0];
    assert_eq!((vcpu.registers.rip, vcpu.special_registers.cr0 & (1 << 31)), (0x20_0020, 0));
    let info = loaded.writes.iter().find(|write| write.address == vcpu.registers.rbx).unwrap();
    assert_eq!(info.bytes[..4], 0x336e_c578u32.to_le_bytes());
    assert_eq!(info.bytes[48..52], 2u32.to_le_bytes(), "two ranges of RAM, around the hole");
}

#[test]
fn boot_tables_cover_all_ram_and_stay_below_640_kib() {
    for gib in [1u64, 4, 64, 1024] {
        let kernel = elf(0x20_0000, &[(1, 4096, 0x20_0000, 1, 1)], &[0x90]);
        let loaded = load(&kernel, &class(gib << 30, 1)).unwrap();
        let end = loaded.writes.iter().filter(|w| w.address < 0x10_0000).map(|w| w.address + w.bytes.len() as u64);
        assert!(end.max().unwrap() <= 0xA_0000, "{gib} GiB");
    }
}

#[test]
fn bad_files_are_refused_by_name() {
    let class = class(16 * MIB, 1);
    let refuse = |entry, headers: &[Header]| load(&elf(entry, headers, &[0x90; 64]), &class).unwrap_err();
    assert!(matches!(load(b"", &class), Err(LoadError::NotElf { .. })));
    assert!(matches!(load(b"#!/bin/sh\n", &class), Err(LoadError::NotElf { .. })));
    assert!(matches!(load(b"\x7fELF\x02\x01\x01", &class), Err(LoadError::Damaged { .. })));
    let mut foreign = elf(0x20_0000, &[(1, 4096, 0x20_0000, 64, 64)], &[0; 64]);
    foreign[18] = 183;
    assert_eq!(load(&foreign, &class), Err(LoadError::Foreign { machine: 183, kind: 2 }));
    assert_eq!(refuse(0x20_0000, &[]), LoadError::Empty);
    let low = refuse(0x1000, &[(1, 4096, 0x1000, 64, 64)]);
    assert!(matches!(low, LoadError::OutsideMemory { index: 0, start: 0x1000, .. }));
    let high = refuse(0x20_0000, &[(1, 4096, 0x20_0000, 64, 64 * MIB)]);
    assert!(matches!(high, LoadError::OutsideMemory { .. }));
    let wrap = refuse(0x20_0000, &[(1, 4096, u64::MAX - 8, 64, 64)]);
    assert!(matches!(wrap, LoadError::OutsideMemory { .. }));
    let cut = refuse(0x20_0000, &[(1, 4096, 0x20_0000, 4096, 4096)]);
    assert!(matches!(cut, LoadError::Truncated { index: 0, offset: 4096, bytes: 4096, .. }));
    let twice = refuse(0x20_0000, &[(1, 4096, 0x20_0000, 64, 8192), (1, 4096, 0x20_1000, 64, 64)]);
    assert_eq!(twice, LoadError::Overlap { first: 0, second: 1, address: 0x20_1000 });
    assert_eq!(refuse(0x30_0000, &[(1, 4096, 0x20_0000, 64, 64)]), LoadError::Entry { entry: 0x30_0000 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_files_never_panic(at in 0usize..300, value in any::<u8>(), cut in 0usize..5000) {
        let body = [vec![0x90; 64], note(b"RAMET\0", 1, &1u32.to_le_bytes())].concat();
        let headers = [(1, 4096, 0x20_0000, 64, 64), (4, 4160, 0, body.len() as u64 - 64, body.len() as u64 - 64)];
        let mut kernel = elf(0x20_0000, &headers, &body);
        kernel[at] = value;
        kernel.truncate(cut);
        // Either outcome is right; a write outside of RAM is not.
        if let Ok(loaded) = load(&kernel, &class(16 * MIB, 1)) {
            for write in loaded.writes {
                prop_assert!(write.address + write.bytes.len() as u64 <= 16 * MIB);
            }
        }
    }
}
