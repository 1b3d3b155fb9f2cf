//! The checks that every part must pass; the crate's documentation says how to join.
//!
//! They are the contracts of `ramet_devices`, one by one. A part that passes can be booted, forked while it works,
//! restored from a file that somebody has tampered with, and driven by a guest that means harm.

use crate::garbage::{self, Step};
use crate::rig::{Rig, identity, new_memory};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ramet_state::{CloneRule, Handle, PartState};

/// A part, as the suite knows it.
pub trait Subject {
    /// What the part's driver in the guest knows. In a guest it is in memory, and so forks with it.
    type Driver: Clone;

    /// The state at power-on.
    fn initial_state(&self) -> PartState;
    /// Brings the part up, as a driver does.
    fn attach(&self, rig: &mut Rig) -> Self::Driver;
    /// One round of real use. Panics unless the part did its job. Rounds with different numbers use different data.
    fn exercise(&self, driver: &mut Self::Driver, rig: &mut Rig, round: u8);
    /// Hands work to the part without letting it run: its doorbell may be rung, its event loop is not run.
    fn begin(&self, driver: &mut Self::Driver, rig: &mut Rig, round: u8);
    /// Panics unless the work that was begun has been done. The event loop has run.
    fn complete(&self, driver: &mut Self::Driver, rig: &mut Rig, round: u8);
}

/// Makes each check a test of its own for a subject.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::conformance!(@tests $subject;
            power_on, round_trip, save_has_no_side_effects, quiesce_is_idempotent, quiesced_is_silent,
            resume_continues, work_under_way_survives, clone_keeps_to_itself, parent_keeps_to_itself,
            generations, truncated_states, flipped_states, random_states, foreign_states, missing_resources,
            garbage_at_power_on, garbage_while_running, garbage_stays_at_home);
    };
    (@tests $subject:expr; $($check:ident),*) => {
        $(
            #[test]
            fn $check() {
                $crate::conformance::$check(&$subject);
            }
        )*
    };
}

const CASES: u32 = 64;

fn property<S: Strategy>(strategy: S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, check);
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

fn running<S: Subject>(subject: &S) -> (Rig, S::Driver) {
    let mut rig = Rig::boot(&subject.initial_state());
    let mut driver = subject.attach(&mut rig);
    subject.exercise(&mut driver, &mut rig, 0);
    (rig, driver)
}

fn resume(rig: &mut Rig) {
    rig.part.part_mut().resume();
    rig.rest();
}

fn rebuild(state: &PartState, rig: &Rig) -> PartState {
    let memory = rig.fork().memory;
    let twin = Rig::build(state, memory, identity(9)).expect("a saved state is valid");
    twin.part.part().save()
}

/// A fresh machine's part is built from its power-on state, is silent until resumed, and then works.
pub fn power_on<S: Subject>(subject: &S) {
    let state = subject.initial_state();
    let rig = Rig::build(&state, new_memory(), identity(0)).expect("a power-on state is valid");
    let seen = rig.observe();
    assert_eq!(seen.state, state, "a part that was just built saves what it was built from");
    assert_eq!(seen.interrupts, 0, "building raises no interrupt");
    assert!(!seen.doorbell, "building rings no doorbell");
    assert!(seen.output.is_empty(), "building sends nothing");
    assert!(seen.memory[..crate::rig::RAM_BYTES].iter().all(|byte| *byte == 0), "building leaves RAM alone");
    running(subject);
}

/// save -> build -> save gives the same state, wherever the part is in its work.
pub fn round_trip<S: Subject>(subject: &S) {
    let (mut rig, mut driver) = running(subject);
    let check = |rig: &Rig| {
        let state = rig.part.part().save();
        assert_eq!(rebuild(&state, rig), state);
    };
    check(&rig);
    subject.begin(&mut driver, &mut rig, 1);
    check(&rig);
    rig.part.part_mut().quiesce();
    check(&rig);
}

/// Saving changes nothing, running or quiesced.
pub fn save_has_no_side_effects<S: Subject>(subject: &S) {
    let (mut rig, mut driver) = running(subject);
    subject.begin(&mut driver, &mut rig, 1);
    for _ in 0..2 {
        let before = rig.observe();
        let first = rig.part.part().save();
        let second = rig.part.part().save();
        assert_eq!(first, second);
        assert_eq!(rig.observe(), before);
        rig.part.part_mut().quiesce();
    }
}

/// A second quiesce changes nothing; neither does one before the first resume.
pub fn quiesce_is_idempotent<S: Subject>(subject: &S) {
    let (mut rig, mut driver) = running(subject);
    subject.begin(&mut driver, &mut rig, 1);
    rig.part.part_mut().quiesce();
    let once = rig.observe();
    rig.part.part_mut().quiesce();
    assert_eq!(rig.observe(), once);

    let mut child = rig.fork();
    let built = child.observe();
    child.part.part_mut().quiesce();
    assert_eq!(child.observe(), built);
}

/// A quiesced part does nothing, whatever happens in its event loop.
pub fn quiesced_is_silent<S: Subject>(subject: &S) {
    let (mut rig, mut driver) = running(subject);
    subject.begin(&mut driver, &mut rig, 1);
    rig.part.part_mut().quiesce();
    rig.send_input(b"input for a quiesced part");
    let before = rig.observe();
    rig.step();
    rig.step();
    assert_eq!(rig.observe(), before);
}

/// Quiesce and resume leave no trace in what the part does, however often.
pub fn resume_continues<S: Subject>(subject: &S) {
    let (mut rig, mut driver) = running(subject);
    for round in 1..5 {
        rig.part.part_mut().quiesce();
        resume(&mut rig);
        if round == 3 {
            resume(&mut rig);
        }
        subject.exercise(&mut driver, &mut rig, round);
    }
}

/// Work that was handed over before a fork is done by parent and child, each in its own memory, though the child
/// never sees the doorbell that was rung for it.
pub fn work_under_way_survives<S: Subject>(subject: &S) {
    let (mut parent, mut driver) = running(subject);
    subject.begin(&mut driver, &mut parent, 1);
    parent.part.part_mut().quiesce();
    let mut child = parent.fork();
    let mut child_driver = driver.clone();
    resume(&mut child);
    subject.complete(&mut child_driver, &mut child, 1);
    subject.exercise(&mut child_driver, &mut child, 2);
    resume(&mut parent);
    subject.complete(&mut driver, &mut parent, 1);
    subject.exercise(&mut driver, &mut parent, 3);
}

/// Nothing that a clone does reaches its parent.
pub fn clone_keeps_to_itself<S: Subject>(subject: &S) {
    let (mut parent, mut driver) = running(subject);
    subject.begin(&mut driver, &mut parent, 1);
    parent.part.part_mut().quiesce();
    let before = parent.observe();
    let mut child = parent.fork();
    let mut child_driver = driver.clone();
    resume(&mut child);
    subject.complete(&mut child_driver, &mut child, 1);
    for round in 2..6 {
        subject.exercise(&mut child_driver, &mut child, round);
    }
    drop(child);
    assert_eq!(parent.observe(), before);
    resume(&mut parent);
    subject.complete(&mut driver, &mut parent, 1);
}

/// Nothing that a parent does reaches its clone.
pub fn parent_keeps_to_itself<S: Subject>(subject: &S) {
    let (mut parent, mut driver) = running(subject);
    subject.begin(&mut driver, &mut parent, 1);
    parent.part.part_mut().quiesce();
    let mut child = parent.fork();
    let mut child_driver = driver.clone();
    let before = child.observe();
    resume(&mut parent);
    subject.complete(&mut driver, &mut parent, 1);
    for round in 2..6 {
        subject.exercise(&mut driver, &mut parent, round);
    }
    drop(parent);
    assert_eq!(child.observe(), before);
    resume(&mut child);
    subject.complete(&mut child_driver, &mut child, 1);
    subject.exercise(&mut child_driver, &mut child, 7);
}

/// Forks of forks of forks work, and so do their ancestors.
pub fn generations<S: Subject>(subject: &S) {
    let mut family = vec![running(subject)];
    for round in 1..5 {
        let (newest, driver) = family.last_mut().expect("there is a founder");
        newest.part.part_mut().quiesce();
        let mut child = newest.fork();
        let child_driver = driver.clone();
        resume(newest);
        resume(&mut child);
        family.push((child, child_driver));
        for (rig, driver) in &mut family {
            subject.exercise(driver, rig, round);
        }
    }
}

/// Builds from a state that may be nonsense; whatever can be built must then behave.
fn build_hostile(state: &PartState, rig: &Rig) -> bool {
    let Ok(mut twin) = Rig::build(state, rig.fork().memory, identity(9)) else { return false };
    assert_eq!(&twin.part.part().save(), state, "what was accepted is what is saved");
    twin.part.part_mut().resume();
    // What it finds in its rings may be any amount of work, in bounded pieces.
    for _ in 0..4 {
        twin.step();
    }
    twin.part.part_mut().quiesce();
    twin.part.part().save();
    true
}

fn hostile_subject<S: Subject>(subject: &S) -> Rig {
    let (mut rig, mut driver) = running(subject);
    subject.begin(&mut driver, &mut rig, 1);
    rig.part.part_mut().quiesce();
    rig
}

/// A state that was cut off is refused.
pub fn truncated_states<S: Subject>(subject: &S) {
    let rig = hostile_subject(subject);
    let state = rig.part.part().save();
    for bytes in 0..state.registers.len() {
        let mut cut = state.clone();
        cut.registers.truncate(bytes);
        assert!(!build_hostile(&cut, &rig), "{bytes} of {} bytes are taken for a state", state.registers.len());
    }
    let mut longer = state.clone();
    longer.registers.push(0);
    assert!(!build_hostile(&longer, &rig), "a byte too many is taken for a state");
    longer.registers.resize(ramet_devices::MAX_REGISTERS_BYTES + 1, 0);
    assert!(!build_hostile(&longer, &rig), "any number of bytes are taken for a state");
}

/// A state with any bit flipped is refused or harmless.
pub fn flipped_states<S: Subject>(subject: &S) {
    let rig = hostile_subject(subject);
    let state = rig.part.part().save();
    for bit in 0..state.registers.len() * 8 {
        let mut flipped = state.clone();
        flipped.registers[bit / 8] ^= 1 << (bit % 8);
        // A flip that is another spelling of the same value may be taken, and is then saved in its usual spelling.
        if let Ok(twin) = Rig::build(&flipped, rig.fork().memory, identity(9)) {
            build_hostile(&twin.part.part().save(), &rig);
        }
    }
}

/// Random registers are refused or harmless, also when they begin like real ones.
pub fn random_states<S: Subject>(subject: &S) {
    let rig = hostile_subject(subject);
    let state = rig.part.part().save();
    let kept = 0..=state.registers.len();
    property((kept, prop::collection::vec(any::<u8>(), 0..300)), |(kept, tail)| {
        let mut random = state.clone();
        random.registers.truncate(kept);
        random.registers.extend(tail);
        if let Ok(twin) = Rig::build(&random, rig.fork().memory, identity(9)) {
            build_hostile(&twin.part.part().save(), &rig);
        }
        Ok(())
    });
}

/// A state of another kind or version, or with other handles, is refused.
pub fn foreign_states<S: Subject>(subject: &S) {
    let rig = hostile_subject(subject);
    let state = rig.part.part().save();
    let refused = |what: &str, change: &dyn Fn(&mut PartState)| {
        let mut foreign = state.clone();
        change(&mut foreign);
        assert!(!build_hostile(&foreign, &rig), "{what} is taken");
    };
    refused("an unknown kind", &|state| state.kind.push('x'));
    refused("a newer version", &|state| state.version += 1);
    refused("version 0", &|state| state.version = 0);
    let extra = Handle { role: "extra".to_owned(), rule: CloneRule::Share };
    refused("one more handle", &|state| state.handles.push(extra.clone()));
    for index in 0..state.handles.len() {
        refused("one handle less", &|state| drop(state.handles.remove(index)));
        refused("another rule", &|state| {
            let rule = &mut state.handles[index].rule;
            *rule = if *rule == CloneRule::Share { CloneRule::Copy } else { CloneRule::Share };
        });
    }
}

/// Without a resource that its state names, a part is not built.
pub fn missing_resources<S: Subject>(subject: &S) {
    let state = subject.initial_state();
    let resources = ramet_devices::PartResources::new(new_memory());
    let built = ramet_devices::build_part(&state, resources);
    assert_eq!(built.is_err(), !state.handles.is_empty(), "{built:?}");
}

fn survive(rig: &mut Rig, steps: &[Step]) -> Result<(), TestCaseError> {
    for step in steps {
        garbage::apply(rig, step);
    }
    // Whatever state this has led to is one that can be saved, built again and lived with.
    let state = rig.part.part().save();
    prop_assert_eq!(&rebuild(&state, rig), &state);
    rig.part.part_mut().quiesce();
    let state = rig.part.part().save();
    prop_assert_eq!(&rebuild(&state, rig), &state);
    let mut child = rig.fork();
    child.part.part_mut().resume();
    child.step();
    rig.part.part_mut().resume();
    rig.step();
    Ok(())
}

/// Random accesses to a part that nobody has set up.
pub fn garbage_at_power_on<S: Subject>(subject: &S) {
    property(garbage::steps(), |steps| survive(&mut Rig::boot(&subject.initial_state()), &steps));
}

/// Random accesses, and random bytes where its driver has its rings, to a part that works; and it can be attached
/// anew afterwards.
pub fn garbage_while_running<S: Subject>(subject: &S) {
    property(garbage::steps(), |steps| survive(&mut running(subject).0, &steps));
}

/// Garbage in a clone leaves its parent and its sibling alone.
pub fn garbage_stays_at_home<S: Subject>(subject: &S) {
    property(garbage::steps(), |steps| {
        let (mut parent, mut driver) = running(subject);
        subject.begin(&mut driver, &mut parent, 1);
        parent.part.part_mut().quiesce();
        let (mut victim, mut culprit) = (parent.fork(), parent.fork());
        let before = (parent.observe(), victim.observe());
        culprit.part.part_mut().resume();
        for step in &steps {
            garbage::apply(&mut culprit, step);
        }
        prop_assert_eq!((parent.observe(), victim.observe()), before);
        let mut victim_driver = driver.clone();
        resume(&mut victim);
        subject.complete(&mut victim_driver, &mut victim, 1);
        Ok(())
    });
}
