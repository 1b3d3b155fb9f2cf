//! What machines of a family may share: memory that is declared to be, and doorbells.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Machines, Spec};
use ramet_abi::layout::{FAMILY_MAX_BYTES, PAGE_BYTES};
use ramet_abi::request;
use ramet_unikernel::AnswerError;

const REFUSED: AnswerError = AnswerError::Refused { status: request::BAD_ARGUMENT };

fn family_peek(machines: &mut Machines, number: u64, index: u64) -> u64 {
    let [value] = machines.ask(number, request::FAMILY_PEEK, &[index]);
    value
}

#[test]
fn a_write_to_family_memory_is_seen_by_all_generations() {
    let words = PAGE_BYTES / 8;
    let mut machines = Spec { family_bytes: PAGE_BYTES, ..Spec::default() }.boot();
    machines.tell(0, request::FAMILY_POKE, &[0, 10]);
    let child = machines.fork_one(0);
    let grandchild = machines.fork_one(child);
    machines.tell(grandchild, request::FAMILY_POKE, &[1, 11]);
    machines.tell(child, request::FAMILY_POKE, &[words - 1, 12]);
    for number in [0, child, grandchild] {
        let found = [0, 1, words - 1].map(|index| family_peek(&mut machines, number, index));
        assert_eq!(found, [10, 11, 12], "machine {number}");
        assert_eq!(machines.try_ask::<1>(number, request::FAMILY_PEEK, &[words]), Err(REFUSED), "beyond its end");
    }
    machines.tell(0, request::FAMILY_POKE, &[0, 20]);
    assert_eq!(family_peek(&mut machines, grandchild, 0), 20);
    // Private memory is private all the same.
    machines.poke(0, 0, 1);
    assert_eq!(machines.peek(child, 0), 0);
    machines.shut_down();
}

#[test]
fn there_is_no_family_memory_where_none_is_declared_and_none_between_families() {
    let mut without = common::boot();
    assert_eq!(without.try_ask::<1>(0, request::FAMILY_PEEK, &[0]), Err(REFUSED));
    without.shut_down();
    let spec = Spec { family_bytes: PAGE_BYTES, ..Spec::default() };
    let (mut one, mut other) = (spec.boot(), spec.boot());
    one.tell(0, request::FAMILY_POKE, &[0, 1]);
    assert_eq!(family_peek(&mut other, 0, 0), 0);
    one.shut_down();
    other.shut_down();
}

#[test]
fn family_memory_has_limits() {
    let mut machines = Spec { family_bytes: FAMILY_MAX_BYTES, ..Spec::default() }.boot();
    let last = FAMILY_MAX_BYTES / 8 - 1;
    machines.tell(0, request::FAMILY_POKE, &[last, 5]);
    let child = machines.fork_one(0);
    assert_eq!(family_peek(&mut machines, child, last), 5);
    machines.shut_down();
    for family_bytes in [1, PAGE_BYTES + 8, FAMILY_MAX_BYTES + PAGE_BYTES] {
        let spec = Spec { family_bytes, ..Spec::default() };
        let mut family = ramet_family::Family::start(&spec.config()).unwrap();
        let error = common::chain(&family.boot(&spec.boot_spec(ramet_unikernel::ELF)).unwrap_err());
        assert!(error.contains(&family_bytes.to_string()), "{error}");
        family.shut_down();
    }
}

#[test]
fn machines_ring_one_another_also_before_they_are_born() {
    let mut machines = common::boot();
    let (one, other) = (machines.fork_one(0), machines.fork_one(0));
    let doorbells = |machines: &mut Machines, number: u64| -> u64 {
        let [count] = machines.ask(number, request::DOORBELLS, &[]);
        count
    };
    // Each request is an interrupt itself; what is more than those are doorbells.
    let before = doorbells(&mut machines, other);
    assert_eq!(doorbells(&mut machines, other), before + 1, "nobody has rung");
    let mut requests = 1;
    common::wait_for("the doorbell", || {
        machines.tell(one, request::RING, &[other]);
        // An interrupt that comes while another is pending is one with it, so this one gets time to arrive.
        machines.gather();
        requests += 1;
        doorbells(&mut machines, other) > before + requests
    });
    // One for a machine that is not there yet rings when it is.
    let next = other + 1;
    machines.tell(one, request::RING, &[next]);
    machines.tell(one, request::RING, &[1000]);
    machines.gather();
    assert_eq!(machines.fork_one(0), next);
    machines.assert_well(next);
    // And for one that is gone, or never was, it is nothing.
    assert!(machines.family.end(other));
    for target in [other, u64::from(u32::MAX), 1 << 20] {
        machines.tell(one, request::RING, &[target]);
    }
    for number in [0, one, next] {
        machines.assert_well(number);
    }
    machines.shut_down();
}
