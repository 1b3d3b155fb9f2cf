//! No machine sees what another writes: generations, siblings, and a parent that goes on writing.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machines, Spec};
use ramet_abi::request;
use std::collections::BTreeSet;

const CELL: u64 = 7;
const PAGES: u64 = 24;
const STRIDE: u64 = 5;

/// A value that no other machine writes.
fn own(number: u64) -> u64 {
    0xA5A5_0000_0000_0000 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn write_own(machines: &mut Machines, number: u64) {
    machines.poke(number, CELL, own(number));
    machines.dirty(number, 0, PAGES, STRIDE, own(number));
}

fn assert_holds(machines: &mut Machines, number: u64, writer: u64) {
    assert_eq!(machines.peek(number, CELL), own(writer), "machine {number}'s word");
    let wrong = machines.check(number, 0, PAGES, STRIDE, own(writer));
    assert_eq!(wrong, 0, "pages of machine {number} that do not hold what {writer} wrote");
}

fn three_generations(vcpus: u8) {
    let mut machines = Spec::with_vcpus(vcpus).boot();
    if vcpus > 1 {
        machines.tell(0, request::WORK, &[request::WORK_DIRTY, 32]);
    }
    write_own(&mut machines, 0);
    let mut generation = vec![0];
    for depth in 1..=3 {
        let mut next = Vec::new();
        for parent in generation {
            for child in [machines.fork_one(parent), machines.fork_one(parent)] {
                assert_holds(&mut machines, child, parent);
                write_own(&mut machines, child);
                // The parent writes, and its later children see what it wrote last.
                machines.dirty(parent, 1, PAGES, STRIDE, own(child));
                let info = machines.members().find(|member| member.number == child).unwrap();
                assert_eq!((info.parent, info.depth), (parent, depth));
                next.push(child);
            }
        }
        generation = next;
    }
    let everybody = machines.alive();
    assert_eq!(everybody.len(), 1 + 2 + 4 + 8);
    for number in &everybody {
        assert_holds(&mut machines, *number, *number);
        if vcpus > 1 {
            let [_, mismatches] = machines.ask(*number, request::WORK_RESULT, &[]);
            assert_eq!(mismatches, 0, "machine {number}: pages that vCPU 1 did not find as it had left them");
        }
    }
    machines.shut_down();
}

#[test]
fn three_generations_with_one_vcpu_do_not_see_one_another() {
    three_generations(1);
}

#[test]
fn three_generations_with_two_vcpus_do_not_see_one_another() {
    three_generations(2);
}

#[test]
fn children_see_what_was_there_at_the_fork_however_often_the_parent_rewrites_it() {
    const FORKS: u64 = 10;
    let mut machines = Spec::with_vcpus(2).boot();
    machines.tell(0, request::WORK, &[request::WORK_DIRTY, 64]);
    let mut children = Vec::new();
    for seed in 0..FORKS {
        // Some pages are written before every fork, some before every third, some only once.
        machines.dirty(0, 0, 64, 3, seed);
        machines.dirty(0, 1000 + seed * 10, 10, 1, seed);
        if seed % 3 == 0 {
            machines.dirty(0, 500, 40, 7, seed);
        }
        children.push((machines.fork_one(0), seed));
        // vCPU 1 rewrites its pages all the time; this does so for vCPU 0's, right after the fork.
        machines.dirty(0, 0, 64, 3, 1 << 32);
        machines.dirty(0, 500, 40, 7, 1 << 32);
        machines.dirty(0, 500, 40, 7, seed / 3 * 3);
    }
    for &(child, seed) in children.iter().chain(&children) {
        assert_eq!(machines.check(child, 0, 64, 3, seed), 0, "child {child}");
        assert_eq!(machines.check(child, 500, 40, 7, seed / 3 * 3), 0, "child {child}");
        for earlier in 0..FORKS {
            let wrong = machines.check(child, 1000 + earlier * 10, 10, 1, earlier);
            assert_eq!(wrong, if earlier <= seed { 0 } else { 10 }, "child {child}, pages of fork {earlier}");
        }
        let [_, mismatches] = machines.ask(child, request::WORK_RESULT, &[]);
        assert_eq!(mismatches, 0, "child {child}'s vCPU 1");
    }
    machines.shut_down();
}

#[test]
fn a_second_vcpu_works_on_in_every_child() {
    let mut machines = Spec::with_vcpus(2).boot();
    machines.tell(0, request::WORK, &[request::WORK_DIRTY, 128]);
    let children = machines.fork_many(0, 3);
    for number in [0, children[0], children[1], children[2]] {
        let [before, _] = machines.ask(number, request::WORK_RESULT, &[]);
        common::wait_for("vCPU 1 to work on", || {
            let [now, mismatches] = machines.ask(number, request::WORK_RESULT, &[]);
            assert_eq!(mismatches, 0, "machine {number}");
            now > before + 2
        });
        machines.tell(number, request::WORK, &[request::WORK_NONE, 0]);
    }
    machines.shut_down();
}

#[test]
fn every_clone_is_itself() {
    const CLONES: u32 = 50;
    let mut machines = common::boot();
    let founder = machines.identity(0);
    let clones = [machines.fork_many(0, CLONES / 2), machines.fork_many(0, CLONES / 2)].concat();
    let mut own_random = BTreeSet::from([founder.random]);
    let mut device_random = BTreeSet::from([machines.ask::<4>(0, request::RANDOM, &[])]);
    let mut generations = BTreeSet::from([founder.generation]);
    for (index, clone) in (1u64..).zip(clones) {
        let identity = machines.identity(clone);
        assert_eq!((identity.number, identity.parent, identity.vcpus), (index, 0, 1));
        assert!(identity.counter >= founder.counter, "it goes on from where its parent was");
        assert!(own_random.insert(identity.random), "clone {clone} repeats another's generator");
        assert!(generations.insert(identity.generation), "clone {clone} repeats another's generation");
        let random = machines.ask::<4>(clone, request::RANDOM, &[]);
        assert!(device_random.insert(random), "clone {clone} repeats another's virtio-rng");
    }
    machines.shut_down();
}
