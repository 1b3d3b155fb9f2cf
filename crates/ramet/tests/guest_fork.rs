//! fork() as guests call it: what it returns on each side, what it refuses, and that a fork bomb harms nobody.
#![allow(clippy::unwrap_used)]

mod common;

use common::elf::{self, Code};
use common::{Machines, Spec, granted};
use ramet_abi::guest_port::{self, ERROR_BIT, FORK_PAUSED};
use ramet_abi::request;
use ramet_family::{FamilyEvent, GuestForks, Limits, Phase, RequestError};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn boot_granted(limits: Limits) -> Machines {
    Spec { limits, ..Spec::default() }.boot()
}

/// What fork() returns in the parent.
fn fork(machines: &mut Machines, number: u64, children: u64, flags: u32) -> u32 {
    let [result] = machines.ask(number, request::FORK, &[children, flags.into()]);
    u32::try_from(result).unwrap()
}

fn await_forked(machines: &mut Machines) -> (u64, u64, u32) {
    machines.await_event("a guest's fork", |event| match event {
        FamilyEvent::GuestForked { parent, first, children } => Some((*parent, *first, *children)),
        _ => None,
    })
}

fn await_marks(machines: &mut Machines, count: usize) -> BTreeMap<u64, Vec<u32>> {
    let mut marks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for _ in 0..count {
        let (number, value) = machines.await_event("a mark", |event| match event {
            FamilyEvent::Mark { number, value, .. } => Some((*number, *value)),
            _ => None,
        });
        marks.entry(number).or_default().push(value);
    }
    marks
}

/// Forks and marks what that returned.
fn fork_and_mark(code: Code, children: u32, flags: u32) -> Code {
    let code = code.write_long(guest_port::ARGUMENT_0, children).write_long(guest_port::ARGUMENT_1, flags);
    code.read_long(guest_port::FORK).write_eax(guest_port::MARK)
}

#[test]
fn the_parent_gets_its_first_childs_number_and_each_child_0() {
    let kernel = elf::kernel(&fork_and_mark(Code::default(), 3, 0).halt().0);
    let mut machines = Spec { limits: granted(10), ..Spec::default() }.boot_kernel(&kernel);
    let expected = BTreeMap::from([(0, vec![1]), (1, vec![0]), (2, vec![0]), (3, vec![0])]);
    assert_eq!(await_marks(&mut machines, 4), expected);
    assert_eq!(await_forked(&mut machines), (0, 1, 3));
    machines.shut_down();
}

#[test]
fn children_go_on_from_the_call_and_know_their_own_number() {
    let mut machines = boot_granted(granted(20));
    machines.poke(0, 3, 33);
    assert_eq!(fork(&mut machines, 0, 2, 0), 1);
    assert_eq!(await_forked(&mut machines), (0, 1, 2));
    assert_eq!(fork(&mut machines, 2, 4, 0), 3, "a child forks, too");
    assert_eq!(await_forked(&mut machines), (2, 3, 4));
    for (number, parent) in [(1, 0), (2, 0), (3, 2), (6, 2)] {
        let identity = machines.identity(number);
        assert_eq!((identity.number, identity.parent), (number, parent));
        assert_eq!(machines.peek(number, 3), 33);
    }
    machines.shut_down();
}

#[test]
fn a_guest_with_two_vcpus_forks_while_the_other_works() {
    let mut machines = Spec { vcpus: 2, limits: granted(20), ..Spec::default() }.boot();
    machines.tell(0, request::WORK, &[request::WORK_DIRTY, 32]);
    for first in 1..=4 {
        assert_eq!(fork(&mut machines, 0, 1, 0), first);
        await_forked(&mut machines);
    }
    for number in 0..=4 {
        let [_, mismatches] = machines.ask(number, request::WORK_RESULT, &[]);
        assert_eq!(mismatches, 0, "machine {number}");
        machines.tell(number, request::WORK, &[request::WORK_NONE, 0]);
    }
    machines.shut_down();
}

#[test]
fn children_that_shall_be_paused_run_when_they_are_let() {
    let mut machines = boot_granted(granted(10));
    machines.poke(0, 1, 11);
    assert_eq!(fork(&mut machines, 0, 2, FORK_PAUSED), 1);
    await_forked(&mut machines);
    machines.poke(0, 1, 12);
    for child in [1, 2] {
        assert_eq!(machines.phase(child), Some(Phase::Paused));
        assert_eq!(machines.first_instruction_tsc(child), None, "it has executed nothing");
    }
    machines.family.resume(1).unwrap();
    machines.assert_well(1);
    assert_eq!(machines.peek(1, 1), 11);
    assert_eq!(machines.phase(2), Some(Phase::Paused));
    machines.shut_down();
}

#[test]
fn fork_is_refused_unless_it_was_granted() {
    let mut machines = common::boot();
    assert_eq!(fork(&mut machines, 0, 1, 0), ERROR_BIT | guest_port::ERROR_NOT_PERMITTED);
    let reason = machines.await_event("the refusal", |event| match event {
        FamilyEvent::GuestForkRefused { parent: 0, reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("--guest-forks"), "{reason}");
    machines.assert_well(0);
    assert_eq!(machines.fork_one(0), 1, "from outside it can be forked all the same");
    machines.shut_down();
}

#[test]
fn arguments_quota_and_rate_are_refused_with_their_codes() {
    let forks = GuestForks { per_second: 1, burst: 3 };
    let mut machines = boot_granted(Limits { machines: 4, guest_forks: Some(forks) });
    for (children, flags) in [(0, 0), (1025, 0), (1, 2), (1, 0x8000_0000)] {
        let refused = fork(&mut machines, 0, children, flags);
        assert_eq!(refused, ERROR_BIT | guest_port::ERROR_ARGUMENT, "{children} children, flags {flags:#x}");
    }
    assert_eq!(fork(&mut machines, 0, 4, 0), ERROR_BIT | guest_port::ERROR_QUOTA);
    assert_eq!(fork(&mut machines, 0, 3, 0), 1);
    await_forked(&mut machines);
    assert_eq!(fork(&mut machines, 2, 1, 0), ERROR_BIT | guest_port::ERROR_QUOTA);
    for number in 1..=3 {
        assert!(machines.family.end(number));
    }
    assert_eq!(
        fork(&mut machines, 0, 3, 0),
        ERROR_BIT | guest_port::ERROR_RATE,
        "no token is left, and one comes a second"
    );
    machines.assert_well(0);
    machines.shut_down();
}

#[test]
fn a_fork_bomb_stops_at_the_quota_and_harms_nobody() {
    const QUOTA: u32 = 12;
    let mut bystander = common::boot();
    let code = Code::default().write_long(guest_port::ARGUMENT_0, 1).write_long(guest_port::ARGUMENT_1, 0);
    let bomb = elf::kernel(&code.read_long(guest_port::FORK).again().0);
    let mut machines = Spec { limits: granted(QUOTA), ..Spec::default() }.boot_kernel(&bomb);
    let mut refused = 0;
    let deadline = Instant::now() + common::PATIENCE;
    while refused < 200 {
        assert!(Instant::now() < deadline, "{} machines, {refused} refusals", machines.alive().len());
        machines.gather();
        assert!(machines.alive().len() <= QUOTA as usize);
        refused += machines.events.iter().filter(|event| matches!(event, FamilyEvent::GuestForkRefused { .. })).count();
        let ended = machines.events.iter().find(|event| matches!(event, FamilyEvent::Ended { .. }));
        assert_eq!(ended, None, "a machine ended of it");
        machines.events.clear();
    }
    assert_eq!(machines.alive().len(), QUOTA as usize);
    let child = bystander.fork_one(0);
    bystander.assert_well(child);
    bystander.assert_well(0);
    // What dies makes room, and no more than that.
    machines.family.kill(3);
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        machines.gather();
        assert!(machines.alive().len() <= QUOTA as usize);
    }
    machines.shut_down();
    bystander.assert_well(child);
    bystander.shut_down();
}

#[test]
fn all_vcpus_may_fork_at_once() {
    // Each vCPU forks and marks what that returned; in each machine that is born of it, the other vCPU's call is made
    // again if it was waiting.
    let kernel = elf::kernel_on_all_vcpus(&fork_and_mark(Code::default(), 1, 0).halt().0);
    for _ in 0..5 {
        let mut machines = Spec { vcpus: 2, limits: granted(16), ..Spec::default() }.boot_kernel(&kernel);
        let deadline = Instant::now() + Duration::from_millis(400);
        while Instant::now() < deadline {
            machines.gather();
        }
        let ended = machines.events.iter().find(|event| matches!(event, FamilyEvent::Ended { .. }));
        assert_eq!(ended, None, "a machine ended of it");
        let mut marks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for event in &machines.events {
            if let FamilyEvent::Mark { number, value, .. } = event {
                marks.entry(*number).or_default().push(*value);
            }
        }
        assert_eq!(marks[&0].len(), 2, "both vCPUs of the founder go on: {marks:?}");
        assert!(marks[&0].iter().all(|first| (1..16).contains(first)), "{marks:?}");
        assert_ne!(marks[&0][0], marks[&0][1], "each got a child of its own");
        for child in &marks[&0] {
            let own = &marks[&u64::from(*child)];
            assert!(own.contains(&0), "machine {child} is a child: {marks:?}");
        }
        machines.shut_down();
    }
}

#[test]
fn a_template_is_frozen_and_children_are_dispatched_from_it_again_and_again() {
    let mut machines = common::boot();
    let template = machines.fork_one(0);
    machines.poke(template, 5, 55);
    machines.dirty(template, 0, 100, 2, 9);
    machines.post(template, request::READY, &[]);
    machines.await_event("the template", |event| (*event == FamilyEvent::Ready { number: template }).then_some(()));
    assert_eq!(machines.phase(template), Some(Phase::Template));
    let refused = machines.family.post(template, &ramet_unikernel::request(request::IDENTITY, &[]));
    assert!(matches!(refused, Err(RequestError::NotRunning { phase: Phase::Template, .. })), "{refused:?}");
    for round in 0..4 {
        let outcome = machines.family.fork(template, 5, false).unwrap();
        assert_eq!(outcome.pause_ns, 0, "nothing runs that could be paused");
        for child in common::numbers(&outcome) {
            let identity = machines.identity(child);
            assert_eq!((identity.number, identity.parent), (child, template));
            assert_eq!(machines.peek(child, 5), 55, "round {round}");
            assert_eq!(machines.check(child, 0, 100, 2, 9), 0, "round {round}");
            machines.poke(child, 5, child);
            machines.dirty(child, 0, 100, 2, child);
        }
    }
    // A child can become a template itself, and one without its parent as well.
    let child = machines.fork_one(template);
    machines.poke(child, 5, 56);
    machines.post(child, request::READY, &[]);
    machines.await_event("the second template", |event| (*event == FamilyEvent::Ready { number: child }).then_some(()));
    assert!(machines.family.end(template));
    let grandchild = machines.fork_one(child);
    assert_eq!(machines.peek(grandchild, 5), 56);
    machines.assert_well(0);
    machines.shut_down();
}

#[test]
fn ready_returns_0_in_children_and_never_in_the_template() {
    let code = Code::default().write_long(guest_port::MARK, 7).read_long(guest_port::READY);
    let kernel = elf::kernel(&code.write_eax(guest_port::MARK).halt().0);
    let mut machines = Spec::default().boot_kernel(&kernel);
    assert_eq!(await_marks(&mut machines, 1), BTreeMap::from([(0, vec![7])]));
    machines.await_event("the template", |event| (*event == FamilyEvent::Ready { number: 0 }).then_some(()));
    assert_eq!(machines.fork_many(0, 2), [1, 2]);
    assert_eq!(await_marks(&mut machines, 2), BTreeMap::from([(1, vec![0]), (2, vec![0])]));
    machines.shut_down();
}

#[test]
fn done_mark_and_exit_are_reported() {
    let mut machines = common::boot();
    let (done, exits) = (machines.fork_one(0), machines.fork_one(0));
    machines.tell(0, request::MARK, &[4711]);
    assert_eq!(await_marks(&mut machines, 1), BTreeMap::from([(0, vec![4711])]));
    machines.post(done, request::DONE, &[17]);
    let event = FamilyEvent::Done { number: done, status: 17 };
    machines.await_event("the end of the job", |found| (*found == event).then_some(()));
    assert_eq!(machines.phase(done), Some(Phase::Done));
    assert!(machines.family.fork(done, 1, false).is_err(), "it is held for good");
    assert!(machines.family.end(done));
    machines.post(exits, request::EXIT, &[42]);
    assert_eq!(machines.await_end(exits), (Some(42), None));
    machines.assert_well(0);
    machines.shut_down();
}
