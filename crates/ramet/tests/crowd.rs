//! Many children at once, and guests that talk without end: nothing of it holds the supervisor up.

mod common;

use common::Spec;
use ramet_abi::request;
use std::collections::BTreeSet;

/// More than the some 230 packets that a socket's queue holds.
const CROWD: u32 = 300;

#[test]
fn a_crowd_is_forked_by_one_call() {
    let mut machines = Spec { memory_bytes: 16 << 20, ..Spec::default() }.boot();
    let children = machines.fork_many(0, CROWD);
    assert_eq!(children.len(), CROWD as usize);
    let random: BTreeSet<[u8; 32]> = children.iter().map(|child| machines.identity(*child).random).collect();
    assert_eq!(random.len(), CROWD as usize, "each has random bytes of its own");
    machines.assert_well(0);
    machines.shut_down();
}

#[test]
fn a_guest_that_marks_and_rings_without_end_is_forked_all_the_same() {
    let mut machines = Spec::with_vcpus(2).boot();
    // Garbage to all ports and pages is, among other things, thousands of marks and doorbells.
    machines.post(0, request::CRASH, &[request::CRASH_GARBAGE]);
    for _ in 0..3 {
        let child = machines.fork_one(0);
        machines.assert_well(child);
    }
    machines.shut_down();
}
