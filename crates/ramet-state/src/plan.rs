//! What is built from a state: a pure function over data.
//!
//! | intent | registers | handles and regions | identity | clock |
//! |---|---|---|---|---|
//! | [`Intent::Boot`] | as the loader made them | all new | as given | begins |
//! | [`Intent::Fork`] | the parent's; the caller of fork() reads 0 | by their clone rules | new | continues |
//!
//! Devices are built from what comes out and only ever see final values.

use crate::{CloneRule, Identity, MachineState, MemoryRegion, RegionPurpose, VmClassError, memory_regions};
use serde::{Deserialize, Serialize};

/// What is wanted of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Start a machine that a loader has put together.
    Boot(NewIdentity),
    /// A machine that goes on where this one was stopped, beside it.
    Fork(NewIdentity),
}

/// What the supervisor decides about a new machine's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewIdentity {
    /// Its number; no other machine of the family has or had it.
    pub number: u64,
    /// Its generation; random.
    pub generation: [u8; 16],
}

/// What the builder does about a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandleAction {
    /// Use the parent's.
    Share,
    /// Use a copy of the parent's.
    Copy,
    /// Make a new one.
    Create,
}

/// A handle and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlePlan {
    /// The part.
    pub part: String,
    /// The handle's role in it.
    pub role: String,
    /// What to do.
    pub action: HandleAction,
}

/// What the builder does about a region of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionAction {
    /// Write straight into a layer of its own.
    Found,
    /// A private view of frozen layers.
    Private,
    /// The family's memory.
    Share,
    /// New memory.
    Create,
}

/// What the builder does about kvm-clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockPlan {
    /// It begins.
    Begin,
    /// It goes on from the saved value, plus the time that has passed since.
    Continue,
}

/// All that a builder needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildPlan {
    /// The machine, with its final identity and registers.
    pub state: MachineState,
    /// One per handle of every part.
    pub handles: Vec<HandlePlan>,
    /// One per region, in the order of the slots.
    pub regions: Vec<(MemoryRegion, RegionAction)>,
    /// kvm-clock.
    pub clock: ClockPlan,
}

/// Why a state cannot be planned with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The class is impossible.
    #[error("Machine class is invalid")]
    Class(#[source] VmClassError),
    /// Not one state per vCPU.
    #[error("State holds {found} vCPUs for a machine of {expected}")]
    Vcpus {
        /// What the class says.
        expected: u8,
        /// What is there.
        found: usize,
    },
    /// The regions are not those of the class.
    #[error("Memory regions do not match a machine of {memory_bytes} bytes")]
    Regions {
        /// RAM of the class.
        memory_bytes: u64,
    },
    /// Two parts have one name.
    #[error("Part \"{id}\" occurs twice")]
    DuplicatePart {
        /// The name.
        id: String,
    },
    /// Too many parts.
    #[error("State holds {found} parts; at most {MAX_PARTS} are possible")]
    TooManyParts {
        /// How many.
        found: usize,
    },
    /// Something is larger than it can be.
    #[error("{what}: {found} of them; at most {maximum} are possible")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        found: usize,
        /// The most.
        maximum: usize,
    },
    /// The calling vCPU does not exist.
    #[error("vCPU {caller} is said to have called, in a machine of {vcpus}")]
    Caller {
        /// Its index.
        caller: u8,
        /// How many there are.
        vcpus: u8,
    },
    /// The child would have its parent's name.
    #[error("Machine {number} cannot be its own child")]
    OwnChild {
        /// The number.
        number: u64,
    },
    /// A generation was used twice.
    #[error("Generation of machine {number} is its parent's")]
    Generation {
        /// The number.
        number: u64,
    },
    /// A lineage longer than can be counted.
    #[error("Machine {number} is the last of a lineage of {depth} forks: boot afresh")]
    TooDeep {
        /// The parent's number.
        number: u64,
        /// Its depth.
        depth: u32,
    },
}

/// Most parts of a machine.
const MAX_PARTS: usize = 256;

/// Everything that is a list or bytes has a bound.
fn check_sizes(state: &MachineState) -> Result<(), PlanError> {
    let bound = |what, found, maximum| match found <= maximum {
        true => Ok(()),
        false => Err(PlanError::TooMany { what, found, maximum }),
    };
    for vcpu in &state.vcpus {
        bound("bytes of extended state", vcpu.xsave.len(), 64 << 10)?;
        bound("extended control registers", vcpu.xcrs.len(), 16)?;
        bound("model-specific registers", vcpu.msrs.len(), 4096)?;
        bound("bytes of a local APIC", vcpu.local_apic.len(), 4096)?;
        bound("bytes of pending events", vcpu.events.len(), 4096)?;
        bound("bytes of debug registers", vcpu.debug_registers.len(), 4096)?;
    }
    let chips = &state.interrupt_controller.chips;
    bound("interrupt controllers", chips.len(), 3)?;
    chips.iter().try_for_each(|chip| bound("bytes of an interrupt controller", chip.len(), 4096))?;
    bound("bytes of a timer", state.interrupt_controller.pit.len(), 4096)?;
    for part in &state.parts {
        bound("bytes of a part's name", part.id.len() + part.kind.len(), 256)?;
        bound("bytes of a part's registers", part.registers.len(), 64 << 10)?;
        bound("handles of a part", part.handles.len(), 16)?;
    }
    Ok(())
}

/// Checks that a state is consistent in itself, and within bounds.
///
/// # Errors
/// [`PlanError`] names what is wrong.
pub fn validate(state: &MachineState) -> Result<(), PlanError> {
    state.class.validate().map_err(PlanError::Class)?;
    if state.vcpus.len() != usize::from(state.class.vcpus) {
        return Err(PlanError::Vcpus { expected: state.class.vcpus, found: state.vcpus.len() });
    }
    if state.memory != memory_regions(&state.class) {
        return Err(PlanError::Regions { memory_bytes: state.class.memory_bytes });
    }
    if state.parts.len() > MAX_PARTS {
        return Err(PlanError::TooManyParts { found: state.parts.len() });
    }
    check_sizes(state)?;
    let mut ids: Vec<&str> = state.parts.iter().map(|part| part.id.as_str()).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(PlanError::DuplicatePart { id: pair[0].to_owned() });
    }
    match state.caller {
        Some(caller) if caller >= state.class.vcpus => Err(PlanError::Caller { caller, vcpus: state.class.vcpus }),
        _ => Ok(()),
    }
}

fn handles(state: &MachineState, action: impl Fn(CloneRule) -> HandleAction) -> Vec<HandlePlan> {
    let parts = state.parts.iter();
    parts
        .flat_map(|part| part.handles.iter().map(move |handle| (part, handle)))
        .map(|(part, handle)| HandlePlan {
            part: part.id.clone(),
            role: handle.role.clone(),
            action: action(handle.rule),
        })
        .collect()
}

fn boot(state: &MachineState, new: &NewIdentity) -> BuildPlan {
    let mut state = state.clone();
    state.identity = Identity {
        number: new.number,
        parent: new.number,
        depth: 0,
        generation: new.generation,
        generation_counter: 1,
    };
    let regions = state.memory.iter().map(|region| {
        let action = match region.purpose {
            RegionPurpose::Ram => RegionAction::Found,
            RegionPurpose::ClonePage => RegionAction::Create,
            RegionPurpose::Family => RegionAction::Share,
        };
        (*region, action)
    });
    let regions = regions.collect();
    let handles = handles(&state, |_| HandleAction::Create);
    BuildPlan { state, handles, regions, clock: ClockPlan::Begin }
}

fn fork(state: &MachineState, new: &NewIdentity) -> Result<BuildPlan, PlanError> {
    let parent = &state.identity;
    if new.number == parent.number {
        return Err(PlanError::OwnChild { number: new.number });
    }
    if new.generation == parent.generation {
        return Err(PlanError::Generation { number: new.number });
    }
    let too_deep = PlanError::TooDeep { number: parent.number, depth: parent.depth };
    let identity = Identity {
        number: new.number,
        parent: parent.number,
        depth: parent.depth.checked_add(1).ok_or(too_deep.clone())?,
        generation: new.generation,
        generation_counter: parent.generation_counter.checked_add(1).ok_or(too_deep)?,
    };
    let mut state = state.clone();
    state.identity = identity;
    if let Some(caller) = state.caller.take() {
        // fork() returns 0 in the child.
        state.vcpus[usize::from(caller)].registers.rax = 0;
    }
    let regions = state.memory.iter().map(|region| {
        let action = match region.rule {
            CloneRule::Copy => RegionAction::Private,
            CloneRule::Share => RegionAction::Share,
            CloneRule::Recreate | CloneRule::ReIdentify => RegionAction::Create,
        };
        (*region, action)
    });
    let regions = regions.collect();
    let handles = handles(&state, |rule| match rule {
        CloneRule::Share => HandleAction::Share,
        CloneRule::Copy => HandleAction::Copy,
        CloneRule::Recreate | CloneRule::ReIdentify => HandleAction::Create,
    });
    Ok(BuildPlan { state, handles, regions, clock: ClockPlan::Continue })
}

/// Plans what to build from `state`.
///
/// The state is untrusted: it may come from a file or from a machine's process.
///
/// # Errors
/// [`PlanError`] if it contradicts itself or the intent.
pub fn plan(state: &MachineState, intent: &Intent) -> Result<BuildPlan, PlanError> {
    validate(state)?;
    match intent {
        Intent::Boot(new) => Ok(boot(state, new)),
        Intent::Fork(new) => fork(state, new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{any_machine, sample_machine};
    use proptest::prelude::*;

    fn child_of(state: &MachineState) -> NewIdentity {
        let mut generation = state.identity.generation;
        generation[3] ^= 0x40;
        NewIdentity { number: state.identity.number.wrapping_add(1), generation }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_fork_keeps_registers_and_rewrites_identity(state in any_machine()) {
            let new = child_of(&state);
            let built = plan(&state, &Intent::Fork(new.clone())).unwrap();
            prop_assert_eq!(built.state.identity.number, new.number);
            prop_assert_eq!(built.state.identity.parent, state.identity.number);
            prop_assert_eq!(built.state.identity.depth, state.identity.depth + 1);
            prop_assert_eq!(built.state.identity.generation, new.generation);
            prop_assert!(built.state.identity.generation_counter > state.identity.generation_counter);
            prop_assert_eq!(&built.state.parts, &state.parts);
            prop_assert_eq!(&built.state.interrupt_controller, &state.interrupt_controller);
            prop_assert_eq!(&built.state.clock, &state.clock);
            for (index, (child, parent)) in built.state.vcpus.iter().zip(&state.vcpus).enumerate() {
                let mut expected = parent.clone();
                if state.caller == Some(u8::try_from(index).unwrap()) {
                    expected.registers.rax = 0;
                }
                prop_assert_eq!(child, &expected);
            }
            prop_assert_eq!(built.state.caller, None);
        }

        #[test]
        fn only_what_is_declared_is_shared(state in any_machine()) {
            let built = plan(&state, &Intent::Fork(child_of(&state))).unwrap();
            for (region, action) in &built.regions {
                prop_assert_eq!(*action == RegionAction::Share, region.rule == CloneRule::Share);
            }
            for handle in &built.handles {
                let part = state.parts.iter().find(|part| part.id == handle.part).unwrap();
                let rule = part.handles.iter().find(|other| other.role == handle.role).unwrap().rule;
                prop_assert_eq!(handle.action == HandleAction::Share, rule == CloneRule::Share);
            }
        }

        #[test]
        fn planning_is_pure(state in any_machine()) {
            let intent = Intent::Fork(child_of(&state));
            let before = state.clone();
            prop_assert_eq!(plan(&state, &intent), plan(&state, &intent));
            prop_assert_eq!(before, state);
        }
    }

    #[test]
    fn boot_gives_the_identity_and_makes_everything_new() {
        let state = sample_machine();
        let built = plan(&state, &Intent::Boot(NewIdentity { number: 0, generation: [7; 16] })).unwrap();
        assert_eq!(built.state.identity.parent, 0);
        assert_eq!(built.clock, ClockPlan::Begin);
        assert!(built.handles.iter().all(|handle| handle.action == HandleAction::Create));
        assert_eq!(built.regions[0].1, RegionAction::Found);
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let good = sample_machine();
        let intent = Intent::Fork(child_of(&good));
        let refuse = |edit: &dyn Fn(&mut MachineState)| {
            let mut state = good.clone();
            edit(&mut state);
            plan(&state, &intent).unwrap_err()
        };
        assert_eq!(refuse(&|s| s.vcpus.clear()), PlanError::Vcpus { expected: good.class.vcpus, found: 0 });
        assert!(matches!(refuse(&|s| s.class.memory_bytes = 0), PlanError::Class(_)));
        assert!(matches!(refuse(&|s| s.memory[0].bytes += 4096), PlanError::Regions { .. }));
        assert!(matches!(refuse(&|s| s.memory[0].rule = CloneRule::Share), PlanError::Regions { .. }));
        assert_eq!(
            refuse(&|s| s.parts[1].id = s.parts[0].id.clone()),
            PlanError::DuplicatePart { id: good.parts[0].id.clone() }
        );
        assert!(matches!(refuse(&|s| s.caller = Some(200)), PlanError::Caller { caller: 200, .. }));
        assert!(matches!(refuse(&|s| s.identity.depth = u32::MAX), PlanError::TooDeep { .. }));
        let own = NewIdentity { number: good.identity.number, generation: [9; 16] };
        assert!(matches!(plan(&good, &Intent::Fork(own)), Err(PlanError::OwnChild { .. })));
        let twin = NewIdentity { number: 77, generation: good.identity.generation };
        assert!(matches!(plan(&good, &Intent::Fork(twin)), Err(PlanError::Generation { .. })));
    }
}
