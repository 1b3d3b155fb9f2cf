//! Registers survive forks to the last bit, whenever they come: in ring 3 and ring 0, on one vCPU and two.
//!
//! A workload keeps its whole state in registers and ends with a digest of them; a run that was forked many times must
//! end, in the parent and in each child, with the digest of a run that nobody disturbed. docs/hosts.toml says which
//! registers this host has.
#![allow(clippy::unwrap_used)]

mod common;

use common::hosts::Host;
use common::{Dice, Machines, Spec};
use ramet_abi::request::{self, EXACT_AVX, EXACT_AVX512, EXACT_INTEGER, EXACT_RING0, EXACT_SSE, EXACT_X87};
use ramet_unikernel::AnswerError;
use std::time::{Duration, Instant};

const SEED: u64 = 0x5EED;
/// How long an undisturbed run shall take.
const RUN: Duration = Duration::from_millis(200);
/// Forks in one run.
const FORKS: u64 = 5;

/// Register classes that the host may have or lack.
const CLASSES: &[(&str, u64)] = &[("x87", EXACT_X87), ("sse", EXACT_SSE), ("avx", EXACT_AVX), ("avx512", EXACT_AVX512)];

/// All that the host has, in ring 3.
fn everything(host: &Host) -> u64 {
    let had = CLASSES.iter().filter(|(field, _)| host.can(field));
    had.fold(EXACT_INTEGER, |mask, (_, class)| mask | class)
}

/// How many rounds take about [`RUN`], and their digest, from a machine that nobody forks meanwhile.
fn undisturbed(machines: &mut Machines, number: u64, mask: u64) -> (u64, u64) {
    let mut rounds = 64;
    loop {
        let began = Instant::now();
        let [digest] = machines.ask(number, request::EXACT, &[SEED, rounds, mask]);
        if began.elapsed() >= RUN {
            return (rounds, digest);
        }
        rounds *= 2;
    }
}

/// Forks a machine at random moments of a run of the workload and compares all outcomes with an undisturbed one.
fn forked_runs_end_as_undisturbed(machines: &mut Machines, mask: u64, dice: &mut Dice) {
    // A machine of its own, so that the one that is forked has no earlier outcome that could be mistaken.
    let reference = machines.fork_one(0);
    let (rounds, expected) = undisturbed(machines, reference, mask);
    machines.family.end(reference);
    let mut in_the_middle = 0;
    while in_the_middle < FORKS {
        let parent = machines.fork_one(0);
        let sequence = machines.post(parent, request::EXACT, &[SEED, rounds, mask]);
        let mut children = Vec::new();
        for _ in 0..FORKS {
            std::thread::sleep(Duration::from_micros(dice.below(RUN.as_micros() as u64 / FORKS)));
            let child = machines.fork_one(parent);
            // Without an answer after the fork, there was none at the fork.
            let running = machines.poll_answer(parent, sequence).unwrap().is_none();
            children.push((child, running));
        }
        common::wait_for("the parent's run to end", || machines.poll_answer(parent, sequence).unwrap().is_some());
        let answer = machines.poll_answer(parent, sequence).unwrap().unwrap();
        assert_eq!(ramet_unikernel::words::<1>(&answer), Ok([expected]), "the parent's digest, mask {mask:#x}");
        for (child, running) in children {
            let [finished, digest, done] = machines.ask(child, request::EXACT_RESULT, &[]);
            if finished == 1 {
                assert_eq!((digest, done), (expected, rounds), "child {child}, mask {mask:#x}");
                in_the_middle += u64::from(running);
            }
            machines.family.end(child);
        }
        machines.family.end(parent);
    }
}

#[test]
fn every_class_of_registers_survives_forks_in_ring_3() {
    let (host, mut dice) = (Host::at_hand(), Dice::new());
    let mut machines = common::boot();
    forked_runs_end_as_undisturbed(&mut machines, EXACT_INTEGER, &mut dice);
    for (field, class) in CLASSES {
        if host.can(field) {
            forked_runs_end_as_undisturbed(&mut machines, EXACT_INTEGER | class, &mut dice);
        } else {
            let refused = machines.try_ask::<1>(0, request::EXACT, &[SEED, 1, EXACT_INTEGER | class]);
            let expected = Err(AnswerError::Refused { status: request::BAD_ARGUMENT });
            assert_eq!(refused, expected, "docs/hosts.toml says that this host lacks {field}");
        }
    }
    machines.shut_down();
}

#[test]
fn all_registers_survive_forks_in_ring_0_and_on_the_way_there() {
    let (host, mut dice) = (Host::at_hand(), Dice::new());
    assert!(host.can("ud2_enters_ring0") && host.can("page_fault_enters_ring0"), "how the workload enters ring 0");
    let mut machines = common::boot();
    forked_runs_end_as_undisturbed(&mut machines, EXACT_INTEGER | EXACT_RING0, &mut dice);
    forked_runs_end_as_undisturbed(&mut machines, everything(&host) | EXACT_RING0, &mut dice);
    machines.shut_down();
}

#[test]
fn two_vcpus_survive_forks_in_the_middle_of_their_work() {
    let (host, mut dice) = (Host::at_hand(), Dice::new());
    let mask = everything(&host) | EXACT_RING0;
    let mut machines = Spec::with_vcpus(2).boot();
    machines.tell(0, request::WORK, &[request::WORK_EXACT, mask]);
    forked_runs_end_as_undisturbed(&mut machines, mask, &mut dice);
    let mut generation = 0;
    for _ in 0..3 {
        // vCPU 1 of every machine compares all of its digests with the first one, also across the fork.
        let child = machines.fork_one(generation);
        for number in [generation, child] {
            let [before, _] = machines.ask(number, request::WORK_RESULT, &[]);
            common::wait_for("vCPU 1 to work on", || {
                let [rounds, mismatches] = machines.ask(number, request::WORK_RESULT, &[]);
                assert_eq!(mismatches, 0, "digests of machine {number}'s vCPU 1 that differ");
                rounds > before + 2
            });
        }
        machines.tell(generation, request::WORK, &[request::WORK_NONE, 0]);
        generation = child;
    }
    machines.shut_down();
}

#[test]
fn a_workload_with_an_unknown_class_is_refused() {
    let mut machines = common::boot();
    let refused = machines.try_ask::<1>(0, request::EXACT, &[SEED, 1, 0x80]);
    assert_eq!(refused, Err(AnswerError::Refused { status: request::BAD_ARGUMENT }));
    machines.shut_down();
}
