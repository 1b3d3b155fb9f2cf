//! Limits of the host that are met in the middle of a fork of many: whoever lives goes on, and nothing is left over.
//!
//! The limits are those of this process and of the zygote, so these tests run one after the other.
#![allow(clippy::unwrap_used)]

mod common;

use common::processes::{Footprint, pid};
use common::{Machines, Spec, alone, chain};
use ramet_abi::guest_port::{ERROR_BIT, ERROR_HOST};
use ramet_abi::request;
use ramet_family::{FamilyEvent, Phase};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::time::Duration;

/// Lowers the soft limit of open files of this process until it is dropped.
struct FewDescriptors(Rlimit);

impl FewDescriptors {
    fn more_than_now(more: u64) -> Self {
        let before = getrlimit(Resource::Nofile);
        // Numbers are given from the lowest free one on; the limit is one above the highest that may be given.
        let mut free: Vec<std::fs::File> = Vec::new();
        while (free.len() as u64) < more {
            free.push(std::fs::File::open("/dev/null").unwrap());
        }
        let next = std::fs::File::open("/dev/null").unwrap();
        let limit = std::os::fd::AsRawFd::as_raw_fd(&next).cast_unsigned().into();
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: before.maximum }).unwrap();
        Self(before)
    }
}

impl Drop for FewDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

/// Waits until children that came to nothing are gone; the founder and `survivors` are well, and can be forked.
fn assert_unharmed(machines: &mut Machines, survivors: &[u64]) {
    let unfinished = |machines: &Machines| -> Vec<u64> {
        let is_half =
            |number: &u64| matches!(machines.phase(*number), Some(Phase::Bearing | Phase::Blank | Phase::Building));
        machines.alive().into_iter().filter(is_half).collect()
    };
    for number in unfinished(machines) {
        assert!(machines.family.await_death(number, common::PATIENCE), "machine {number} neither lives nor dies");
    }
    for number in [&[0], survivors].concat() {
        machines.assert_well(number);
    }
    let child = machines.fork_one(0);
    machines.assert_well(child);
    assert!(machines.family.end(child));
    let dead: Vec<u64> =
        machines.family.members().filter(|member| member.phase == Phase::Dead).map(|member| member.number).collect();
    dead.into_iter().for_each(|number| machines.family.forget(number));
}

#[test]
fn a_supervisor_without_descriptors_loses_no_machine() {
    let _alone = alone();
    let mut machines = common::boot();
    let sibling = machines.fork_one(0);
    // What a family keeps for later is there now.
    assert_unharmed(&mut machines, &[sibling]);
    let before = Footprint::of_this_process();
    let (mut refused, mut partial) = (0, 0);
    for more in (0..40).chain([50, 60]) {
        machines.dirty(0, 0, 20, 3, more);
        let few = FewDescriptors::more_than_now(more);
        let outcome = machines.family.fork(0, 4, false);
        drop(few);
        match outcome {
            Ok(outcome) => {
                for child in outcome.children {
                    match child.result {
                        Ok(_) => assert_eq!(machines.check(child.number, 0, 20, 3, more), 0),
                        Err(reason) => {
                            partial += 1;
                            assert!(reason.contains("EMFILE") || reason.contains("ulimit"), "{more}: {reason}");
                        }
                    }
                    machines.family.end(child.number);
                }
            }
            Err(error) => {
                refused += 1;
                let text = chain(&error);
                assert!(text.contains("EMFILE") || text.contains("ulimit"), "with {more} descriptors: {text}");
            }
        }
        assert_unharmed(&mut machines, &[sibling]);
    }
    println!("{refused} forks were refused, {partial} children failed alone");
    assert!(refused > 10, "the limit was met");
    let layers = machines.layer_descriptors().len();
    let after = Footprint::of_this_process();
    let kept = (after.descriptors.len(), before.descriptors.len());
    assert!(kept.0 <= kept.1 + layers, "{kept:?}, {layers} layers: {:#?}", after.descriptors);
    assert_eq!(after.shared_mappings, before.shared_mappings);
    machines.shut_down();
}

/// Limits the zygote, and so the machines that it bears from now on.
fn limit_zygote(machines: &Machines, resource: Resource, limit: Rlimit) -> Rlimit {
    prlimit(Some(pid(machines.zygote_pid())), resource, limit).unwrap()
}

#[test]
fn a_zygote_without_descriptors_bears_nobody_and_lives() {
    let _alone = alone();
    let mut machines = common::boot();
    let sibling = machines.fork_one(0);
    let held = ramet_process::inspect::descriptors(pid(machines.zygote_pid())).unwrap();
    let highest = held.iter().map(|descriptor| descriptor.fd).max().unwrap();
    let mut failed = 0;
    for more in 0..8 {
        let few = Rlimit { current: Some(u64::try_from(highest).unwrap() + more), maximum: None };
        let before =
            limit_zygote(&machines, Resource::Nofile, Rlimit { maximum: getrlimit(Resource::Nofile).maximum, ..few });
        let outcome = machines.family.fork(0, 4, false);
        limit_zygote(&machines, Resource::Nofile, before);
        match outcome {
            Ok(outcome) => {
                for child in outcome.children {
                    if let Err(reason) = child.result {
                        failed += 1;
                        let says_so =
                            ["EMFILE", "ulimit -n", "Too many open files"].iter().any(|words| reason.contains(words));
                        assert!(says_so, "with {more} descriptors: {reason}");
                    }
                    machines.family.end(child.number);
                }
            }
            Err(error) => panic!("with {more} descriptors: {}", chain(&error)),
        }
        assert_unharmed(&mut machines, &[sibling]);
    }
    println!("{failed} children failed alone");
    assert!(failed >= 4, "the limit was met");
    machines.shut_down();
}

#[test]
fn machines_that_may_have_no_threads_are_not_born_and_their_parent_lives() {
    let _alone = alone();
    let mut machines = Spec { vcpus: 2, limits: common::granted(20), ..Spec::default() }.boot();
    let sibling = machines.fork_one(0);
    // The zygote itself is root, whom this limit does not hold back; each machine has a user of its own.
    let maximum = getrlimit(Resource::Nproc).maximum;
    for threads in [1, 2] {
        let before = limit_zygote(&machines, Resource::Nproc, Rlimit { current: Some(threads), maximum });
        let outcome = machines.family.fork(0, 3, false).unwrap();
        for child in outcome.children {
            let reason = child.result.unwrap_err();
            assert!(reason.contains("Thread of vCPU") && reason.contains("ulimit -u"), "{reason}");
        }
        let [refused] = machines.ask(0, request::FORK, &[2, 0]);
        assert_eq!(refused, u64::from(ERROR_BIT | ERROR_HOST), "as the guest sees it");
        let reason = machines.await_event("the refusal", |event| match event {
            FamilyEvent::GuestForkRefused { parent: 0, reason } => Some(reason.clone()),
            _ => None,
        });
        assert!(reason.contains("Thread of vCPU"), "{reason}");
        limit_zygote(&machines, Resource::Nproc, before);
        assert_unharmed(&mut machines, &[sibling]);
    }
    machines.shut_down();
}

#[test]
fn a_family_without_room_for_layers_cannot_be_forked_but_lives() {
    let _alone = alone();
    const PAGES: u64 = 6_000;
    // Room for the founder, and for what a few forks find; each delta is held by the child that was built on it.
    let mut machines = Spec { layer_limit_bytes: Some(80 << 20), ..Spec::default() }.boot();
    let mut children = Vec::new();
    let error = loop {
        let seed = children.len() as u64;
        machines.dirty(0, 0, PAGES, 1, seed);
        match machines.family.fork(0, 1, false) {
            Ok(outcome) => children.push(common::numbers(&outcome)[0]),
            Err(error) => break chain(&error),
        }
        assert!(children.len() < 20, "the limit was never met");
    };
    assert!(children.len() >= 2, "{error}");
    assert!(
        error.contains("bytes") && error.contains(&(80 << 20).to_string()),
        "the limit, and what was wanted: {error}"
    );
    for (seed, child) in (0u64..).zip(&children) {
        assert_eq!(machines.check(*child, 0, PAGES, 1, seed), 0, "child {child}");
    }
    let last = children.len() as u64;
    assert_eq!(machines.check(0, 0, PAGES, 1, last), 0, "the parent has all that it wrote");
    assert!(machines.family.fork(0, 1, false).is_err(), "as long as there is no room");
    // Children can be forked that have written little.
    let grandchild = machines.fork_one(children[0]);
    assert_eq!(machines.check(grandchild, 0, PAGES, 1, 0), 0);
    // Room that is made is used, and what was written before the failure is in the next child.
    for child in children.into_iter().chain([grandchild]) {
        assert!(machines.family.end(child));
    }
    machines.dirty(0, 3, 10, 5, 99);
    let child = machines.fork_one(0);
    assert_eq!(machines.check(child, 3, 10, 5, 99), 0);
    assert_eq!(machines.check(child, 100, PAGES - 100, 1, last), 0);
    machines.shut_down();
}

#[test]
fn a_guest_that_forks_without_room_for_layers_gets_no_children_and_lives() {
    let _alone = alone();
    const PAGES: u64 = 6_000;
    let spec = Spec { layer_limit_bytes: Some(80 << 20), limits: common::granted(30), ..Spec::default() };
    let mut machines = spec.boot();
    for seed in 0..6 {
        machines.events.clear();
        machines.dirty(0, 0, PAGES, 1, seed);
        let [first] = machines.ask(0, request::FORK, &[1, 0]);
        // Whether there was room is known only when the call has returned.
        assert!(first <= 6 || first == u64::from(ERROR_BIT | ERROR_HOST), "{first:#x}");
        machines.gather();
    }
    let deadline = std::time::Instant::now() + Duration::from_millis(200);
    while std::time::Instant::now() < deadline {
        machines.gather();
    }
    machines.events.clear();
    assert_eq!(machines.check(0, 0, PAGES, 1, 5), 0);
    let born = machines.alive().into_iter().filter(|number| machines.phase(*number) == Some(Phase::Running)).count();
    assert!((2..6).contains(&born), "{born} machines");
    // The same for a call for a template, which the guest is told of.
    let ready = machines.post(0, request::READY, &[]);
    machines.await_event("the refusal", |event| matches!(event, FamilyEvent::GuestForkRefused { .. }).then_some(()));
    common::wait_for("the guest's answer", || machines.poll_answer(0, ready).unwrap().is_some());
    let answer = machines.poll_answer(0, ready).unwrap().unwrap();
    assert_eq!(ramet_unikernel::words::<1>(&answer), Ok([u64::from(ERROR_BIT | ERROR_HOST)]));
    assert_eq!(machines.phase(0), Some(Phase::Running));
    machines.shut_down();
}
