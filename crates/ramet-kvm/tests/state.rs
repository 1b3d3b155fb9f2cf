//! Saving and restoring vCPUs: nothing is lost, nothing foreign is let in.
#![allow(clippy::unwrap_used)]

mod common;

use common::programs::{self, Program};
use common::{CODE, Guest, Memory, RESULT_BYTES, RESULTS, Ring, host, start};
use proptest::prelude::*;
use ramet_kvm::{Exit, Kicker, RestoreError, install_kick_signal, supported_xcr0};
use ramet_state::{InterruptMode, Msr, VcpuState};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Registers that go on by themselves: the time-stamp counter, and KVM's count of SMIs.
fn without_time(mut state: VcpuState) -> VcpuState {
    state.msrs.retain(|msr| ![0x10, 0x34].contains(&msr.index));
    // The local APIC's current count.
    state.local_apic[0x390..0x394].fill(0);
    state
}

/// Compares class by class, to print only what differs.
fn assert_same(found: VcpuState, expected: VcpuState) {
    let (found, expected) = (without_time(found), without_time(expected));
    assert_eq!(found.registers, expected.registers);
    assert_eq!(found.special_registers, expected.special_registers);
    assert_eq!(found.xcrs, expected.xcrs);
    let differing: Vec<_> =
        found.msrs.iter().zip(&expected.msrs).filter(|(found, expected)| found != expected).collect();
    assert!(differing.is_empty(), "{differing:x?}");
    assert_eq!(found.msrs.len(), expected.msrs.len());
    assert_eq!(found.events, expected.events);
    assert_eq!(found.debug_registers, expected.debug_registers);
    assert_eq!(found.mp_state, expected.mp_state);
    let differing =
        |a: &[u8], b: &[u8]| a.iter().zip(b).enumerate().find(|(_, (a, b))| a != b).map(|(at, (a, b))| (at, *a, *b));
    assert_eq!(differing(&found.xsave, &expected.xsave), None, "XSAVE");
    assert_eq!(differing(&found.local_apic, &expected.local_apic), None, "local APIC");
    assert_eq!(found, expected);
}

#[test]
fn what_is_saved_is_what_was_restored() {
    for interrupts in [InterruptMode::Split, InterruptMode::Full { pit: true }] {
        let mut memory = Memory::new();
        memory.load(&programs::integer_and_sse());
        let mut guest = Guest::new(memory, 2, interrupts);
        guest.vcpus[0].restore(&start(Ring::Three, 1000)).unwrap();
        guest.finish();
        guest.vcpus[0].complete_pending(&mut |exit| panic!("{exit:?}")).unwrap();
        let mut states: Vec<_> = guest.vcpus.iter_mut().map(|vcpu| vcpu.save().unwrap()).collect();
        // Something in every class: debug registers, MSRs, the local APIC's task priority and timer.
        states[0].debug_registers[..8].copy_from_slice(&0x1234_5678u64.to_le_bytes());
        let lstar = states[0].msrs.iter_mut().find(|msr| msr.index == 0xC000_0082).expect("LSTAR");
        lstar.data = 0x4242;
        // Task priority, and the processor priority that follows from it.
        (states[0].local_apic[0x80], states[0].local_apic[0xA0]) = (0x30, 0x30);
        states[0].special_registers.cr8 = 3;
        let mut second = Guest::new(guest.memory.copy(), 2, interrupts);
        for (vcpu, state) in second.vcpus.iter_mut().zip(&states) {
            vcpu.restore(state).unwrap();
        }
        for (vcpu, state) in second.vcpus.iter_mut().zip(states) {
            assert_same(vcpu.save().unwrap(), state);
        }
    }
}

#[test]
fn a_vcpu_that_ran_takes_another_state() {
    let mut guest = Guest::of(&programs::integer_and_sse(), Ring::Three, 5);
    let before = guest.vcpus[0].save().unwrap();
    guest.finish();
    assert!(matches!(guest.vcpus[0].restore(&before), Err(RestoreError::PendingAccess { vcpu: 0 })));
    guest.vcpus[0].complete_pending(&mut |exit| panic!("{exit:?}")).unwrap();
    guest.vcpus[0].restore(&before).unwrap();
    assert_same(guest.vcpus[0].save().unwrap(), before);
    guest.finish();
}

/// Stops that a run must have to show something.
const ENOUGH_HOPS: u32 = 10;

/// A program's results after a run without stops, and after one that is moved to a new machine at each stop. Runs
/// longer until there were enough stops.
fn hop_to_the_end(program: &Program, ring: Ring, interrupts: InterruptMode) {
    install_kick_signal().unwrap();
    let mut iterations = 4_000;
    loop {
        iterations *= 4;
        let mut memory = Memory::new();
        memory.load(program);
        let mut guest = Guest::new(memory, 1, interrupts);
        guest.vcpus[0].restore(&start(ring, iterations)).unwrap();
        guest.finish();
        let expected = guest.memory.read(RESULTS, RESULT_BYTES);
        let (hops, found) = hop(program, ring, interrupts, iterations);
        assert!(found == expected, "{} differs after {hops} hops", program.name);
        if hops >= ENOUGH_HOPS {
            return;
        }
    }
}

/// Stops a vCPU at random moments; at each, moves it to a new machine and destroys the old one.
fn hop(program: &Program, ring: Ring, interrupts: InterruptMode, iterations: u64) -> (u32, Vec<u8>) {
    let (send, kickers) = mpsc::channel::<(Kicker, Duration)>();
    let kicking = thread::spawn(move || {
        for (kicker, after) in kickers {
            thread::sleep(after);
            kicker.kick().unwrap();
        }
    });
    let mut memory = Memory::new();
    memory.load(program);
    let mut guest = Guest::new(memory, 1, interrupts);
    guest.vcpus[0].restore(&start(ring, iterations)).unwrap();
    let (mut hops, mut pause_us) = (0, 97);
    loop {
        pause_us = (pause_us * 7919 + 13) % 4_000;
        send.send((guest.vcpus[0].kicker(), Duration::from_micros(pause_us))).unwrap();
        match guest.vcpus[0].run().unwrap() {
            Exit::Interrupted => {}
            Exit::PortWrite { port: 0x10, .. } => break,
            other => panic!("{}: {other:x?}", program.name),
        }
        guest.vcpus[0].complete_pending(&mut |exit| panic!("{exit:?}")).unwrap();
        let (state, controllers) = (guest.vcpus[0].save().unwrap(), guest.vm.save_interrupt_controller().unwrap());
        let mut next = Guest::new(guest.memory.copy(), 1, interrupts);
        guest.memory.poison();
        drop(guest);
        next.vm.restore_interrupt_controller(&controllers).unwrap();
        next.vcpus[0].restore(&state).unwrap();
        guest = next;
        hops += 1;
    }
    drop(send);
    kicking.join().unwrap();
    (hops, guest.memory.read(RESULTS, RESULT_BYTES))
}

#[test]
fn integers_and_sse_are_exact_across_hops_in_ring_3() {
    hop_to_the_end(&programs::integer_and_sse(), Ring::Three, InterruptMode::Split);
    hop_to_the_end(&programs::integer_and_sse(), Ring::Three, InterruptMode::Full { pit: false });
}

#[test]
fn avx2_and_x87_are_exact_where_the_host_has_them() {
    if host::has_xcr0(0x7) {
        hop_to_the_end(&programs::avx2_and_x87(), Ring::Three, InterruptMode::Split);
    } else {
        assert_eq!(supported_xcr0(&host::cpuid()) & 4, 0);
    }
}

#[test]
fn avx512_is_exact_where_the_host_has_it() {
    if host::has_xcr0(0xE7) {
        hop_to_the_end(&programs::avx512(), Ring::Three, InterruptMode::Split);
    } else {
        assert_eq!(supported_xcr0(&host::cpuid()) & 0xE0, 0);
    }
}

#[test]
fn entries_to_ring_0_are_exact_across_hops() {
    hop_to_the_end(&programs::rings_by_ud2().with_handler(6), Ring::Three, InterruptMode::Split);
}

#[test]
fn a_kick_from_another_thread_ends_a_spinning_and_a_halted_guest() {
    install_kick_signal().unwrap();
    for program in [programs::spin(), programs::halt()] {
        let mut guest = Guest::of(&program, Ring::Zero, 0);
        let kicker = guest.vcpus[0].kicker();
        let kicking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            kicker.kick().unwrap();
        });
        assert_eq!(guest.vcpus[0].run().unwrap(), Exit::Interrupted, "{}", program.name);
        kicking.join().unwrap();
        // A kick lasts until it is taken back.
        assert_eq!(guest.vcpus[0].run().unwrap(), Exit::Interrupted);
        guest.vcpus[0].complete_pending(&mut |exit| panic!("{exit:?}")).unwrap();
        assert_eq!(guest.vcpus[0].run().unwrap(), Exit::Interrupted, "completing must not take it back");
        guest.vcpus[0].clear_kick();
    }
}

#[test]
fn a_kick_before_the_first_run_counts() {
    let mut guest = Guest::of(&programs::spin(), Ring::Three, 0);
    guest.vcpus[0].kicker().kick().unwrap();
    assert_eq!(guest.vcpus[0].run().unwrap(), Exit::Interrupted);
}

/// What `accesses` reads at a port and from an address without memory.
fn answer(exit: Exit<'_>) {
    match exit {
        Exit::PortRead { port: 0x20, size: 4, data } => data.copy_from_slice(&0xCAFE_F00Du32.to_le_bytes()),
        Exit::MmioRead { address, data } => {
            for (offset, byte) in (0u64..).zip(data) {
                *byte = ((address + offset) & 0xFF) as u8;
            }
        }
        other => panic!("{other:x?}"),
    }
}

#[test]
fn pending_accesses_are_completed_even_when_they_are_split() {
    let mut guest = Guest::of(&programs::accesses(), Ring::Three, 0);
    let mut exits = 0;
    loop {
        match guest.vcpus[0].run().unwrap() {
            Exit::Interrupted => continue,
            Exit::PortWrite { port: 0x10, .. } => break,
            exit => answer(exit),
        }
        exits += 1;
        guest.vcpus[0].complete_pending(&mut answer).unwrap();
        // The registers are complete: a copy of them goes on elsewhere.
        let state = guest.vcpus[0].save().unwrap();
        let mut next = Guest::new(guest.memory.copy(), 1, InterruptMode::Split);
        next.vcpus[0].restore(&state).unwrap();
        guest = next;
    }
    assert_eq!(exits, 2);
    assert_eq!(guest.memory.read_u64(RESULTS) as u32, 0xCAFE_F00D);
    assert_eq!(guest.memory.read(RESULTS + 8, 8), [0xFC, 0xFD, 0xFE, 0xFF, 0, 1, 2, 3]);
}

#[test]
fn a_read_that_is_saved_half_done_is_made_again() {
    let mut guest = Guest::of(&programs::accesses(), Ring::Three, 0);
    assert!(matches!(guest.vcpus[0].run().unwrap(), Exit::PortRead { .. }));
    let state = guest.vcpus[0].save().unwrap();
    let mut copy = Guest::new(guest.memory.copy(), 1, InterruptMode::Split);
    copy.vcpus[0].restore(&state).unwrap();
    assert!(matches!(copy.vcpus[0].run().unwrap(), Exit::PortRead { port: 0x20, .. }), "the copy reads again");
    // The original still waits for its data.
    guest.vcpus[0].complete_pending(&mut |exit| panic!("{exit:?}")).unwrap();
    guest.vcpus[0].edit_registers(|registers| registers.rax = 7).unwrap();
    loop {
        match guest.vcpus[0].run().unwrap() {
            Exit::Interrupted => {}
            Exit::PortWrite { port: 0x10, .. } => break,
            exit => answer(exit),
        }
    }
    assert_eq!(guest.memory.read_u64(RESULTS) as u32, 7);
}

#[test]
fn foreign_registers_are_refused_by_name() {
    let mut guest = Guest::of(&programs::spin(), Ring::Three, 0);
    let good = guest.vcpus[0].save().unwrap();
    let mut state = good.clone();
    state.msrs.push(Msr { index: 0xDEAD, data: 7 });
    let error = Guest::new(Memory::new(), 1, InterruptMode::Split).vcpus[0].restore(&state).unwrap_err();
    assert!(matches!(error, RestoreError::Msr { index: 0xDEAD, value: 7, .. }), "{error}");

    let mut state = good.clone();
    state.special_registers.cr0 = 0x8000_0000;
    let error = Guest::new(Memory::new(), 1, InterruptMode::Split).vcpus[0].restore(&state).unwrap_err();
    assert!(error.to_string().contains("KVM_SET_SREGS"), "{error}");

    let mut state = good.clone();
    state.xcrs[0].value = 1 << 62;
    let error = Guest::new(Memory::new(), 1, InterruptMode::Split).vcpus[0].restore(&state).unwrap_err();
    assert!(error.to_string().contains("KVM_SET_XCRS"), "{error}");

    let mut state = good;
    state.events[1] = 200;
    state.events[0] = 1;
    let error = Guest::new(Memory::new(), 1, InterruptMode::Split).vcpus[0].restore(&state).unwrap_err();
    assert!(error.to_string().contains("KVM_SET_VCPU_EVENTS"), "{error}");
}

#[test]
fn a_guest_at_a_non_canonical_address_ends_without_harm() {
    for rip in [0x8000_0000_0000, u64::MAX, 0xDEAD_BEEF_0000_0000] {
        let mut memory = Memory::new();
        memory.load(&programs::spin());
        let mut guest = Guest::new(memory, 1, InterruptMode::Split);
        let mut state = start(Ring::Three, 0);
        state.registers.rip = rip;
        if guest.vcpus[0].restore(&state).is_err() {
            continue;
        }
        let exit = guest.vcpus[0].run();
        assert!(
            matches!(exit, Err(_) | Ok(Exit::Shutdown | Exit::FailEntry { .. } | Exit::InternalError { .. })),
            "{rip:#x}: {exit:?}"
        );
    }
    assert_ne!(CODE, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn byte_classes_of_a_wrong_length_are_refused(class in 0usize..4, length in 1usize..9000, fill: u8) {
        let mut guest = Guest::new(Memory::new(), 1, InterruptMode::Split);
        let mut state = guest.vcpus[0].save().unwrap();
        let bytes = match class {
            0 => &mut state.xsave,
            1 => &mut state.local_apic,
            2 => &mut state.events,
            _ => &mut state.debug_registers,
        };
        prop_assume!(bytes.len() != length);
        *bytes = vec![fill; length];
        let result = guest.vcpus[0].restore(&state);
        prop_assert!(matches!(result, Err(RestoreError::Length { found, .. }) if found == length), "{result:?}");
    }

    #[test]
    fn byte_classes_of_garbage_never_panic(class in 0usize..4, at in 0usize..4096, bytes: [u8; 16]) {
        let mut guest = Guest::new(Memory::new(), 1, InterruptMode::Split);
        let mut state = guest.vcpus[0].save().unwrap();
        let target = match class {
            0 => &mut state.xsave,
            1 => &mut state.local_apic,
            2 => &mut state.events,
            _ => &mut state.debug_registers,
        };
        let at = at % (target.len() - bytes.len());
        target[at..at + bytes.len()].copy_from_slice(&bytes);
        // Accepted or refused, as KVM sees it.
        let _either = guest.vcpus[0].restore(&state);
    }
}
