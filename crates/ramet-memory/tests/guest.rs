//! What a guest writes through KVM is found and stays apart, under slots that were registered before anything was
//! mapped there.
#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use common::{PAGE, adopt, data, set};
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use ramet_memory::{AddressSpace, DiscardKind, Frozen, LayerStore, LayeredMemory, TrackerKind, View};
use ramet_state::MemoryRegion;
use std::collections::HashMap;
use vm_memory::{Bytes, GuestAddress};

const PAGES: u64 = 4096;
/// Where the guest's program is, and the list of addresses that it works through.
const PROGRAM: u64 = PAGE;
const LIST: u64 = 16 * PAGE;

/// 32-bit code: for each address in the list at ESI, ECX of them, writes BL there; then an OUT ends it.
/// lodsd; mov edi, eax; mov [edi], bl; loop; out 0x10, al
const WRITE: [u8; 9] = [0xAD, 0x89, 0xC7, 0x88, 0x1F, 0xE2, 0xF9, 0xE6, 0x10];
/// The same, but adds what is there to EDX: lodsd; movzx edi, byte [eax]; add edx, edi; loop; out 0x10, al
const SUM: [u8; 10] = [0xAD, 0x0F, 0xB6, 0x38, 0x01, 0xFA, 0xE2, 0xF8, 0xE6, 0x10];
const SUM_AT: u64 = PROGRAM + 0x100;

/// A machine of KVM's with one vCPU in flat protected mode, before it has any memory.
struct Blank {
    _machine: VmFd,
    vcpu: VcpuFd,
    space: AddressSpace,
}

struct Guest {
    _machine: VmFd,
    vcpu: VcpuFd,
    view: View,
}

impl Blank {
    fn new(regions: &[MemoryRegion]) -> Blank {
        let kvm = Kvm::new().expect("these tests take /dev/kvm");
        let machine = kvm.create_vm().unwrap();
        machine.set_tss_address(0xFFFB_D000).unwrap();
        let space = AddressSpace::claim().unwrap();
        for (slot, region) in (0..).zip(regions) {
            let slot = kvm_userspace_memory_region {
                slot,
                guest_phys_addr: region.start,
                memory_size: region.bytes,
                userspace_addr: space.host_address(region).unwrap(),
                flags: 0,
            };
            // SAFETY: nothing is mapped there, and nothing but guest memory ever will be.
            unsafe { machine.set_user_memory_region(slot) }.unwrap();
        }
        let vcpu = machine.create_vcpu(0).unwrap();
        let mut special = vcpu.get_sregs().unwrap();
        for segment in [&mut special.cs, &mut special.ds, &mut special.es, &mut special.ss] {
            (segment.base, segment.limit, segment.selector) = (0, u32::MAX, 0x10);
            (segment.g, segment.db, segment.s, segment.present, segment.type_) = (1, 1, 1, 1, 3);
        }
        (special.cs.selector, special.cs.type_) = (8, 11);
        special.cr0 |= 1;
        vcpu.set_sregs(&special).unwrap();
        Blank { _machine: machine, vcpu, space }
    }

    fn on(self, memory: &LayeredMemory, regions: &[MemoryRegion]) -> Guest {
        let Blank { _machine, vcpu, space } = self;
        let layers: HashMap<_, _> = memory.descriptors().collect();
        let tracker = common::tracker(TrackerKind::WriteProtection);
        let view = View::map_layers(space, regions, memory.map(), &layers, tracker).unwrap();
        Guest { _machine, vcpu, view }
    }
}

impl Guest {
    fn run(&mut self, program: u64, pages: &[u64], value: u8) -> u64 {
        for (index, page) in (0u64..).zip(pages) {
            let address = u32::try_from(page * PAGE).unwrap();
            self.view.memory().write_obj(address, GuestAddress(LIST + index * 4)).unwrap();
        }
        let registers = kvm_regs {
            rip: program,
            rsi: LIST,
            rcx: pages.len() as u64,
            rbx: u64::from(value),
            rflags: 2,
            ..Default::default()
        };
        self.vcpu.set_regs(&registers).unwrap();
        match self.vcpu.run().unwrap() {
            VcpuExit::IoOut(0x10, _) => {}
            other => panic!("the guest ended with {other:?}"),
        }
        self.vcpu.get_regs().unwrap().rdx
    }

    fn write(&mut self, pages: &[u64], value: u8) {
        self.run(PROGRAM, pages, value);
    }

    fn sum(&mut self, pages: &[u64]) -> u64 {
        self.run(SUM_AT, pages, 0)
    }

    fn freeze(&mut self) -> ramet_memory::Delta {
        let Frozen::Delta(frozen) = self.view.freeze(None).unwrap() else { panic!("a private view gives a delta") };
        frozen.finish().unwrap()
    }
}

/// A founder with the program and a 1 in every page from 64 on.
fn root(store: &LayerStore, regions: &[MemoryRegion]) -> LayeredMemory {
    let (_, memory) = common::founder(store, regions, |machine| {
        machine.view.memory().write_slice(&WRITE, GuestAddress(PROGRAM)).unwrap();
        machine.view.memory().write_slice(&SUM, GuestAddress(SUM_AT)).unwrap();
        (64..PAGES).for_each(|page| machine.view.memory().write_obj(1u8, GuestAddress(page * PAGE)).unwrap());
    });
    memory
}

#[test]
fn what_a_guest_writes_is_found_exactly_and_frozen() {
    for store in common::stores() {
        let regions = common::regions(PAGES, 0);
        let root = root(&store, &regions);
        let mut parent = Blank::new(&regions).on(&root, &regions);
        let mut node = root.clone();
        let pages: Vec<u64> = (0..64).map(|index| 64 + index * 61).collect();
        let list = LIST / PAGE;
        for round in 2..102 {
            if round % 2 == 0 {
                parent.write(&pages[..32], 255);
                parent.view.prepare_freeze().unwrap();
            }
            parent.write(&pages, round);
            let delta = parent.freeze();
            assert_eq!(data(&delta.runs), set(pages.iter().copied().chain([list])), "round {round}");
            node = adopt(&store, &node, delta);
            assert_eq!(parent.sum(&pages), 64 * u64::from(round));
        }
        let mut children = [0, 1].map(|_| Blank::new(&regions).on(&node, &regions));
        children[0].write(&pages[..10], 7);
        parent.write(&pages[..20], 9);
        assert_eq!(parent.sum(&pages), 20 * 9 + 44 * 101);
        assert_eq!(children[0].sum(&pages), 10 * 7 + 54 * 101);
        assert_eq!(children[1].sum(&pages), 64 * 101);
    }
}

#[test]
fn a_guest_that_has_a_page_mapped_sees_it_discarded() {
    let store = LayerStore::open(Default::default());
    let regions = common::regions(PAGES, 0);
    let root = root(&store, &regions);
    let mut guest = Blank::new(&regions).on(&root, &regions);
    let pages: Vec<u64> = (100..200).collect();
    guest.write(&pages[..50], 3);
    assert_eq!(guest.sum(&pages), 50 * 3 + 50);
    guest.view.discard(110 * PAGE, 80 * PAGE, DiscardKind::Zero).unwrap();
    assert_eq!(guest.sum(&pages), 10 * 3 + 10);
    guest.write(&pages[60..70], 5);
    let delta = guest.freeze();
    assert_eq!(data(&delta.runs), set((100..110).chain(160..170).chain([LIST / PAGE])));
    let mut child = Blank::new(&regions).on(&adopt(&store, &root, delta), &regions);
    assert_eq!(child.sum(&pages), 10 * 3 + 10 * 5 + 10);
}
