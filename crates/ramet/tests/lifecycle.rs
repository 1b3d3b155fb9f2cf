//! Machines live and die on their own: many forks in a row, deaths of parents and children at any moment.
#![allow(clippy::unwrap_used)]

mod common;

use common::processes::{children, exists, kill};
use common::{Dice, Machines, Spec};
use ramet_abi::request;
use ramet_family::{ForkError, Phase};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a quarter of the values stay below: what else the host does only ever adds to a time.
fn lower_quartile(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 4]
}

#[test]
fn a_hundred_forks_in_a_row_stay_flat_and_outlive_their_parent() {
    const FORKS: u64 = 100;
    const PAGES: u64 = 64;
    let mut machines = Spec::with_vcpus(2).boot();
    machines.tell(0, request::SPIN, &[1]);
    let (mut pauses, mut clones) = (Vec::new(), Vec::new());
    for round in 0..FORKS {
        machines.dirty(0, 0, PAGES, 7, round);
        let outcome = machines.family.fork(0, 1, false).unwrap();
        pauses.push(outcome.pause_ns);
        let child = common::numbers(&outcome)[0];
        clones.push((child, round));
        if round % 10 == 0 {
            assert_eq!(machines.check(child, 0, PAGES, 7, round), 0, "child {child} at once");
        }
    }
    let (early, late) = (lower_quartile(&pauses[5..25]), lower_quartile(&pauses[80..]));
    assert!(late <= 3 * early, "the pause grew from {early} ns to {late} ns: {pauses:?}");
    for (child, round) in &clones {
        assert_eq!(machines.check(*child, 0, PAGES, 7, *round), 0, "child {child}");
    }
    kill(machines.pid(0));
    let (status, _) = machines.await_end(0);
    assert_eq!((status, machines.phase(0)), (None, Some(Phase::Dead)));
    for (child, round) in &clones {
        machines.assert_well(*child);
        assert_eq!(machines.check(*child, 0, PAGES, 7, *round), 0, "child {child} after its parent's death");
    }
    let (child, round) = clones[42];
    let grandchild = machines.fork_one(child);
    assert_eq!(machines.identity(grandchild).parent, child);
    assert_eq!(machines.check(grandchild, 0, PAGES, 7, round), 0);
    machines.shut_down();
}

#[test]
fn a_long_line_of_descendants_has_every_write_of_its_ancestors() {
    // More generations than one machine has layers.
    const GENERATIONS: u64 = 80;
    let mut machines = Spec::default().boot();
    let mut newest = 0;
    for generation in 0..GENERATIONS {
        machines.dirty(newest, generation * 4, 4, 1, generation);
        machines.dirty(newest, 1000, 8, 1, generation);
        let child = machines.fork_one(newest);
        assert!(machines.family.end(newest), "the parent is not needed any more");
        machines.family.forget(newest);
        newest = child;
    }
    for generation in 0..GENERATIONS {
        assert_eq!(machines.check(newest, generation * 4, 4, 1, generation), 0, "what generation {generation} wrote");
    }
    assert_eq!(machines.check(newest, 1000, 8, 1, GENERATIONS - 1), 0, "what all of them wrote");
    assert_eq!(machines.alive(), [newest]);
    machines.shut_down();
}

#[test]
fn the_death_of_a_child_harms_nobody() {
    let mut machines = common::boot();
    let clones = machines.fork_many(0, 6);
    machines.post(clones[1], request::SPIN, &[1]);
    for victim in [clones[0], clones[1], clones[5]] {
        let process = machines.pid(victim);
        kill(process);
        machines.await_end(victim);
        assert!(!exists(process));
        let error = machines.family.fork(victim, 1, false).unwrap_err();
        assert!(matches!(error, ForkError::NotForkable { phase: Phase::Dead, .. }), "{error}");
    }
    for survivor in [0, clones[2], clones[3], clones[4]] {
        machines.assert_well(survivor);
        let child = machines.fork_one(survivor);
        machines.assert_well(child);
    }
    machines.shut_down();
}

/// Does `victim` while `meanwhile` runs, after a moment.
fn strike(delay: Duration, victim: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(delay);
            victim();
        });
        meanwhile();
    });
}

/// All that live answer, once those that came to nothing are gone.
fn assert_all_well(machines: &mut Machines) {
    for number in machines.alive() {
        if matches!(machines.phase(number), Some(Phase::Bearing | Phase::Blank | Phase::Building)) {
            assert!(machines.family.await_death(number, common::PATIENCE), "machine {number} neither lives nor dies");
        }
    }
    for number in machines.alive() {
        machines.assert_well(number);
    }
}

#[test]
fn a_parent_that_dies_while_it_is_forked_takes_nobody_along() {
    let (mut machines, mut dice) = (common::boot(), Dice::new());
    let (mut forked, mut failed) = (0, 0);
    for _ in 0..12 {
        let parent = machines.fork_one(0);
        machines.dirty(parent, 0, 500, 2, 3);
        machines.fork_one(parent);
        machines.dirty(parent, 0, 500, 2, 4);
        let process = machines.pid(parent);
        let mut outcome = None;
        strike(
            Duration::from_micros(dice.below(6_000)),
            || kill(process),
            || {
                outcome = Some(machines.family.fork(parent, 3, false));
            },
        );
        match outcome.unwrap() {
            Ok(outcome) => {
                forked += 1;
                for child in outcome.children.iter().filter(|child| child.result.is_ok()) {
                    assert_eq!(machines.check(child.number, 0, 500, 2, 4), 0, "child {}", child.number);
                }
            }
            Err(ForkError::Freeze { number, reason }) => {
                failed += 1;
                assert!(number == parent && !reason.is_empty(), "{reason}");
            }
            Err(other) => panic!("{other}"),
        }
        machines.await_end(parent);
        assert_all_well(&mut machines);
        for number in machines.alive().into_iter().skip(1) {
            assert!(machines.family.end(number));
            machines.family.forget(number);
        }
    }
    println!("{forked} forked, {failed} failed");
    machines.shut_down();
}

#[test]
fn a_child_that_dies_at_birth_takes_nobody_along() {
    let (mut machines, mut dice) = (common::boot(), Dice::new());
    let zygote = machines.zygote_pid();
    let mut failed = 0;
    for _ in 0..12 {
        let before: BTreeSet<u32> = children(zygote).into_iter().collect();
        let (delay, over) = (Duration::from_micros(dice.below(3_000)), AtomicBool::new(false));
        let (mut outcome, mut killed) = (None, None);
        let victim = || {
            // The first newcomer, as soon as there is one.
            while !over.load(Ordering::Relaxed) && killed.is_none() {
                killed = children(zygote).into_iter().find(|child| !before.contains(child));
            }
            if let Some(newborn) = killed {
                std::thread::sleep(delay);
                kill(newborn);
            }
        };
        strike(Duration::ZERO, victim, || {
            outcome = Some(machines.family.fork(0, 4, false));
            over.store(true, Ordering::Relaxed);
        });
        let outcome = outcome.unwrap().unwrap();
        assert_eq!(outcome.children.len(), 4);
        let unborn: Vec<_> = outcome.children.iter().filter_map(|child| child.result.as_ref().err()).collect();
        assert!(unborn.len() <= 1 && unborn.iter().all(|reason| reason.contains("killed")), "{unborn:?}");
        failed += unborn.len();
        let doomed = machines.family.members().find(|member| member.pid == killed && killed.is_some());
        if let Some(doomed) = doomed {
            assert!(machines.family.await_death(doomed.number, common::PATIENCE));
        }
        assert_all_well(&mut machines);
        for number in machines.alive().into_iter().skip(1) {
            assert!(machines.family.end(number));
        }
    }
    println!("{failed} children died before they were born");
    machines.shut_down();
}

#[test]
fn the_death_of_the_zygote_ends_the_family_and_says_so() {
    let mut machines = common::boot();
    machines.fork_many(0, 3);
    let processes: Vec<u32> = (0..4).map(|number| machines.pid(number)).collect();
    kill(machines.zygote_pid());
    let (_, failure) = machines.await_end(0);
    assert!(failure.unwrap().contains("zygote"), "the reason");
    common::wait_for("its machines to end", || !processes.iter().any(|process| exists(*process)));
    let error = common::chain(&machines.family.fork(0, 1, false).unwrap_err());
    assert!(error.contains("Dead"), "{error}");
    machines.shut_down();
}

#[test]
fn requests_to_machines_that_are_not_there_are_refused_by_number() {
    let mut machines = common::boot();
    let timeout = Duration::from_millis(10);
    let error = machines.family.request(77, b"", timeout).unwrap_err().to_string();
    assert!(error.contains("77"), "{error}");
    let error = machines.family.fork(77, 1, false).unwrap_err().to_string();
    assert!(error.contains("77"), "{error}");
    for children in [0, 1025] {
        let error = machines.family.fork(0, children, false).unwrap_err().to_string();
        assert!(error.contains(&children.to_string()) && error.contains("1024"), "{error}");
    }
    let long = vec![0; ramet_abi::clone_page::REQUEST_MAX_BYTES + 1];
    let error = machines.family.request(0, &long, timeout).unwrap_err().to_string();
    assert!(error.contains(&long.len().to_string()), "{error}");
    // What a guest does not understand it refuses; what is no request at all as well.
    for nonsense in [&b"\xFF\xFF\xFF\xFF"[..], b"", b"\x01"] {
        let answer = machines.family.request(0, nonsense, common::PATIENCE).unwrap();
        assert_eq!(answer, request::UNKNOWN_OPERATION.to_le_bytes(), "{nonsense:?}");
    }
    assert!(machines.family.resume(0).is_err() && machines.family.pause(77).is_err());
    machines.assert_well(0);
    machines.shut_down();
}

#[test]
fn a_machine_that_is_paused_holds_still_and_goes_on() {
    let mut machines = Spec::with_vcpus(2).boot();
    machines.tell(0, request::WORK, &[request::WORK_DIRTY, 16]);
    machines.family.pause(0).unwrap();
    assert_eq!(machines.phase(0), Some(Phase::Paused));
    let refused = machines.family.fork(0, 1, false).unwrap_err();
    assert!(matches!(refused, ForkError::NotForkable { number: 0, phase: Phase::Paused }), "{refused}");
    machines.family.resume(0).unwrap();
    machines.assert_well(0);
    let child = machines.fork_one(0);
    let [_, mismatches] = machines.ask(child, request::WORK_RESULT, &[]);
    assert_eq!(mismatches, 0);
    machines.shut_down();
}
