//! Creating machines: every mode and number of vCPUs, and errors that say what is wrong.
#![allow(clippy::unwrap_used)]

mod common;

use common::programs::integer_and_sse;
use common::{Guest, Memory, Ring, class, kvm, model, start};
use ramet_kvm::{BlankVm, CreateError, Doorbell, DoorbellLength, Line, WireError};
use ramet_state::{InterruptMode, VmClassError, memory_regions};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;

const MODES: [InterruptMode; 3] =
    [InterruptMode::Split, InterruptMode::Full { pit: false }, InterruptMode::Full { pit: true }];

#[test]
fn every_mode_and_number_of_vcpus_runs() {
    for interrupts in MODES {
        for vcpus in [1, 2, 4] {
            let mut memory = Memory::new();
            memory.load(&integer_and_sse());
            let mut guest = Guest::new(memory, vcpus, interrupts);
            assert_eq!(guest.vcpus.len(), usize::from(vcpus));
            guest.vcpus[0].restore(&start(Ring::Three, 10)).unwrap();
            guest.finish();
            assert_eq!(guest.memory.read_u64(common::RESULTS), 10, "{interrupts:?}, {vcpus} vCPUs");
        }
    }
}

#[test]
fn slots_may_lie_over_addresses_where_nothing_is_mapped() {
    let mut class = class(1, InterruptMode::Split);
    class.memory_bytes = 128 << 20;
    let slots: Vec<_> = memory_regions(&class).into_iter().map(|region| (region, (1 << 44) + region.start)).collect();
    let (_vm, mut vcpus) = BlankVm::create(&kvm(), model(), &class, &slots).unwrap().into_parts();
    vcpus[0].restore(&start(Ring::Three, 1)).unwrap();
    let exit = vcpus[0].run().unwrap();
    assert!(
        matches!(exit, ramet_kvm::Exit::MemoryFault { .. } | ramet_kvm::Exit::Shutdown),
        "a guest without memory must stop: {exit:?}"
    );
}

#[test]
fn lines_and_doorbells_are_wired() {
    let memory = Memory::new();
    let mut blank = BlankVm::create(&kvm(), model(), &class(1, InterruptMode::Split), &[memory.slot()]).unwrap();
    let [line, any, four] = [(); 3].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let lines = [Line { gsi: 5, event: line.as_fd() }];
    let doorbells = [
        Doorbell { address: 0xD000_0050, length: DoorbellLength::Any, event: any.as_fd() },
        Doorbell { address: 0xD110_0000, length: DoorbellLength::Four, event: four.as_fd() },
    ];
    blank.wire(&lines, &doorbells).unwrap();
    let twice = blank.wire(&[], &doorbells[1..]).unwrap_err();
    assert!(matches!(twice, WireError::Doorbell { address: 0xD110_0000, .. }));
    assert!(twice.to_string().contains("already"), "{twice}");
}

#[test]
fn errors_name_the_argument() {
    let kvm = kvm();
    let memory = Memory::new();
    let mut none = class(1, InterruptMode::Split);
    none.vcpus = 0;
    let error = BlankVm::create(&kvm, model(), &none, &[memory.slot()]).unwrap_err();
    assert!(matches!(error, CreateError::Class(VmClassError::Vcpus { vcpus: 0, .. })));

    let class = class(1, InterruptMode::Split);
    let (mut region, host) = memory.slot();
    let overlapping = BlankVm::create(&kvm, model(), &class, &[(region, host), (region, host)]).unwrap_err();
    assert!(overlapping.to_string().contains("overlaps"), "{overlapping}");
    region.bytes = 4097;
    let odd = BlankVm::create(&kvm, model(), &class, &[(region, host)]).unwrap_err();
    assert!(odd.to_string().contains("4097"), "{odd}");

    let mut many = class;
    many.cpuid = vec![many.cpuid[0]; 300];
    let error = BlankVm::create(&kvm, model(), &many, &[memory.slot()]).unwrap_err();
    assert!(matches!(error, CreateError::Cpuid { entries: 300, .. }), "{error}");
}

#[test]
fn full_controllers_survive_and_foreign_ones_are_refused() {
    let state = {
        let guest = Guest::new(Memory::new(), 1, InterruptMode::Full { pit: true });
        guest.vm.save_interrupt_controller().unwrap()
    };
    assert_eq!((state.chips.len(), state.pit.len()), (3, 112));
    let full = Guest::new(Memory::new(), 1, InterruptMode::Full { pit: true });
    let mut changed = state.clone();
    // IRQ base of the first PIC (struct kvm_pic_state: last_irr, irr, imr, isr, priority_add, irq_base).
    changed.chips[0][8 + 5] = 0x20;
    full.vm.restore_interrupt_controller(&changed).unwrap();
    let again = full.vm.save_interrupt_controller().unwrap();
    assert_eq!(again.chips, changed.chips);

    let split = Guest::new(Memory::new(), 1, InterruptMode::Split);
    assert!(split.vm.restore_interrupt_controller(&state).is_err());
    assert_eq!(split.vm.save_interrupt_controller().unwrap(), Default::default());
    let mut short = state.clone();
    short.chips[2].pop();
    assert!(full.vm.restore_interrupt_controller(&short).unwrap_err().to_string().contains("519"));
    let mut swapped = state;
    swapped.chips.swap(0, 2);
    assert!(full.vm.restore_interrupt_controller(&swapped).is_err());
}

#[test]
fn the_clock_goes_on_from_where_it_was() {
    let guest = Guest::new(Memory::new(), 1, InterruptMode::Split);
    guest.vm.set_clock(5_000_000_000_000).unwrap();
    let saved = guest.vm.clock().unwrap();
    assert!((5_000_000_000_000..5_001_000_000_000).contains(&saved.kvm_clock_ns), "{saved:?}");
    let other = Guest::new(Memory::new(), 1, InterruptMode::Split);
    other.vm.continue_clock(&saved).unwrap();
    let now = other.vm.clock().unwrap();
    let (guest_passed, host_passed) =
        (now.kvm_clock_ns - saved.kvm_clock_ns, now.host_boottime_ns - saved.host_boottime_ns);
    assert!(guest_passed.abs_diff(host_passed) < 1_000_000, "{guest_passed} ns against {host_passed} ns");
}
