//! Time and consoles across forks: clocks are right and never go back, each machine's output is its own.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machines, Spec};
use ramet_abi::request;
use ramet_family::{FamilyEvent, Terminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far a clock may be off on a host that has other things to do. The exact figure is for the benchmarks.
const TOLERANCE_NS: u64 = 50_000_000;

fn host_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Asks a machine for the time, and holds its wall clock against the host's. Returns its monotonic clock.
fn monotonic_ns(machines: &mut Machines, number: u64) -> u64 {
    let before = host_ns();
    let [monotonic, wall, _] = machines.ask(number, request::TIME, &[]);
    let after = host_ns();
    let right = before.saturating_sub(TOLERANCE_NS)..=after + TOLERANCE_NS;
    assert!(right.contains(&wall), "machine {number}'s wall clock is {wall}, the host's was {before} to {after}");
    monotonic
}

fn clocks_through_generations(vcpus: u8) {
    let mut machines = Spec::with_vcpus(vcpus).boot();
    let mut parent = 0;
    for _ in 0..4 {
        let before = monotonic_ns(&mut machines, parent);
        let child = machines.fork_one(parent);
        // Held for a while, it must not lose that time.
        std::thread::sleep(Duration::from_millis(20));
        let in_child = monotonic_ns(&mut machines, child);
        let after = monotonic_ns(&mut machines, parent);
        assert!(before < in_child, "the clock of machine {child} went back from {before} to {in_child}");
        assert!(before < after, "the clock of machine {parent} went back from {before} to {after}");
        assert!(in_child < after + TOLERANCE_NS, "machine {child}: {in_child}, its parent later: {after}");
        assert!(in_child >= before + 20_000_000 - 1_000_000, "machine {child} lost the time between");
        parent = child;
    }
    machines.shut_down();
}

#[test]
fn clocks_are_right_and_never_go_back_through_generations() {
    clocks_through_generations(1);
}

#[test]
fn clocks_are_right_with_two_vcpus() {
    clocks_through_generations(2);
}

#[test]
fn a_child_that_was_held_knows_what_time_it_is() {
    let mut machines = common::boot();
    let before = monotonic_ns(&mut machines, 0);
    let outcome = machines.family.fork(0, 1, true).unwrap();
    let [child] = common::numbers(&outcome)[..] else { panic!("{outcome:?}") };
    std::thread::sleep(Duration::from_millis(120));
    machines.family.resume(child).unwrap();
    let now = monotonic_ns(&mut machines, child);
    assert!(now >= before + 120_000_000, "it was held for 120 ms, and saw {} ns", now - before);
    // The same for one that ran already.
    machines.family.pause(child).unwrap();
    std::thread::sleep(Duration::from_millis(120));
    machines.family.resume(child).unwrap();
    assert!(monotonic_ns(&mut machines, child) >= now + 120_000_000);
    machines.shut_down();
}

fn output(machines: &mut Machines, number: u64, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        text += &machines.await_event(&format!("{wanted:?} from machine {number}"), |event| match event {
            FamilyEvent::Output { number: from, terminal: Terminal::Console, bytes } if *from == number => {
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => None,
        });
    }
    text
}

#[test]
fn the_console_of_each_machine_is_its_own() {
    let mut machines = common::boot();
    assert!(output(&mut machines, 0, "\n").contains("ramet unikernel"), "its greeting");
    let child = machines.fork_one(0);
    let grandchild = machines.fork_one(child);
    for (number, line) in [(child, "the child\n"), (0, "the parent\n"), (grandchild, "the grandchild\n")] {
        let say = ramet_unikernel::request_with_bytes(request::CONSOLE, line.as_bytes());
        let answer = machines.family.request(number, &say, common::PATIENCE).unwrap();
        assert_eq!(ramet_unikernel::payload(&answer), Ok(&[][..]));
    }
    for (number, line) in [(0, "the parent\n"), (child, "the child\n"), (grandchild, "the grandchild\n")] {
        assert_eq!(output(&mut machines, number, line), line, "machine {number} says nothing else, no greeting again");
    }
    machines.shut_down();
}

/// Also where guests have a time-stamp counter of their own.
#[test]
fn first_instructions_are_told_in_the_hosts_time() {
    let mut machines = Spec::default().boot();
    let outcome = machines.family.fork(0, 1, false).unwrap();
    let child = common::numbers(&outcome)[0];
    machines.assert_well(child);
    let range = outcome.requested_tsc..=ramet_kvm::read_tsc();
    let first = machines.family.first_instruction_tsc(child).unwrap();
    assert!(range.contains(&first), "{first} is not in {range:?}");
    machines.shut_down();
}
