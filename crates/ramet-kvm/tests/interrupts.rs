//! Interrupts and timers that are pending when a vCPU is saved arrive after it is restored.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Guest, Memory, RESULTS, Ring, class, kvm, model, programs, start};
use ramet_abi::layout::VECTOR_BASE;
use ramet_kvm::{BlankVm, Exit, Line, install_kick_signal};
use ramet_state::{InterruptMode, Msr, VcpuState};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const GSI: u32 = 5;
const VECTOR: u8 = VECTOR_BASE + GSI as u8;
/// Offsets in the local APIC's page (SDM volume 3, table 11-1).
const SPURIOUS: usize = 0xF0;
const REQUESTS: usize = 0x200;
const TIMER: usize = 0x320;
const INTERRUPTS_ON: u64 = 1 << 9;

fn set(apic: &mut [u8], register: usize, value: u32) {
    apic[register..register + 4].copy_from_slice(&value.to_le_bytes());
}

fn requested(apic: &[u8], vector: u8) -> bool {
    apic[REQUESTS + usize::from(vector / 32) * 16 + usize::from(vector % 32 / 8)] >> (vector % 8) & 1 == 1
}

/// Runs to the program's end; fails instead of hanging.
fn finish(guest: &mut Guest) {
    let kicker = guest.vcpus[0].kicker();
    let (done, waiting) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if waiting.recv_timeout(Duration::from_secs(30)).is_err() {
            kicker.kick().unwrap();
            return false;
        }
        true
    });
    let exit = format!("{:x?}", guest.vcpus[0].run().unwrap());
    done.send(()).unwrap();
    assert!(watch.join().unwrap(), "the interrupt did not arrive");
    assert!(exit.starts_with("PortWrite { port: 10,"), "{exit}");
    assert_eq!(guest.memory.read_u64(RESULTS), 1);
}

/// A state that waits for an interrupt with its local APIC enabled.
fn waiting(guest: &mut Guest) -> VcpuState {
    let mut state = start(Ring::Zero, 0);
    state.local_apic = guest.vcpus[0].save().unwrap().local_apic;
    set(&mut state.local_apic, SPURIOUS, 0x1FF);
    state
}

#[test]
fn a_line_that_was_raised_before_the_save_arrives_after_the_restore() {
    install_kick_signal().unwrap();
    let mut memory = Memory::new();
    memory.load(&programs::spin());
    let class = class(1, InterruptMode::Split);
    let mut blank = BlankVm::create(&kvm(), model(), &class, &[memory.slot()]).unwrap();
    let line = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    blank.wire(&[Line { gsi: GSI, event: line.as_fd() }], &[]).unwrap();
    let (vm, vcpus) = blank.into_parts();
    let mut guest = Guest { vcpus, vm, memory };
    let state = waiting(&mut guest);
    guest.vcpus[0].restore(&state).unwrap();

    // With interrupts off, the request stays in the local APIC.
    rustix::io::write(&line, &1u64.to_ne_bytes()).unwrap();
    let kicker = guest.vcpus[0].kicker();
    let kicking = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        kicker.kick().unwrap();
    });
    assert_eq!(guest.vcpus[0].run().unwrap(), Exit::Interrupted);
    kicking.join().unwrap();
    let mut saved = guest.vcpus[0].save().unwrap();
    assert!(requested(&saved.local_apic, VECTOR));

    let mut memory = Memory::new();
    memory.load(&programs::wait_for_interrupt().with_handler(VECTOR));
    let mut next = Guest::new(memory, 1, InterruptMode::Split);
    saved.registers.rip = common::CODE;
    saved.registers.rflags |= INTERRUPTS_ON;
    next.vcpus[0].restore(&saved).unwrap();
    finish(&mut next);
}

#[test]
fn a_deadline_timer_fires_in_the_machine_that_got_it() {
    let mut memory = Memory::new();
    memory.load(&programs::wait_for_interrupt().with_handler(VECTOR));
    let mut guest = Guest::new(memory, 1, InterruptMode::Split);
    let mut state = waiting(&mut guest);
    // Timer mode 2 is "TSC deadline"; 10 ms from now.
    set(&mut state.local_apic, TIMER, u32::from(VECTOR) | 2 << 17);
    let msrs = guest.vcpus[0].save().unwrap().msrs;
    let now = msrs.iter().find(|msr| msr.index == 0x10).unwrap().data;
    let ticks = u64::from(guest.vcpus[0].tsc_khz().unwrap()) * 10;
    state.msrs = vec![Msr { index: 0x6E0, data: now + ticks }, Msr { index: 0x10, data: now }];
    guest.vcpus[0].restore(&state).unwrap();
    let armed = guest.vcpus[0].save().unwrap();

    let mut next = Guest::new(guest.memory.copy(), 1, InterruptMode::Split);
    next.vcpus[0].restore(&armed).unwrap();
    finish(&mut next);
}

#[test]
fn a_second_vcpu_is_restored_running() {
    let mut memory = Memory::new();
    memory.load(&programs::integer_and_sse());
    let mut guest = Guest::new(memory, 2, InterruptMode::Split);
    let state = VcpuState { mp_state: Some(0), ..start(Ring::Three, 77) };
    guest.vcpus[1].restore(&state).unwrap();
    let saved = guest.vcpus[1].save().unwrap();
    assert_eq!((saved.mp_state, saved.registers), (Some(0), state.registers));
    let mut next = Guest::new(guest.memory.copy(), 2, InterruptMode::Split);
    next.vcpus[1].restore(&saved).unwrap();
    assert!(matches!(next.vcpus[1].run().unwrap(), Exit::PortWrite { port: 0x10, .. }));
    assert_eq!(next.memory.read_u64(RESULTS), 77);
}
