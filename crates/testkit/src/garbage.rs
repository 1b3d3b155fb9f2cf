//! What a hostile guest might do: as proptest strategies, and as bytes from a fuzzer.

use crate::rig::{RAM_BYTES, Rig, identity, new_memory};
use proptest::prelude::*;
use ramet_state::PartState;
use vm_memory::{Bytes, GuestAddress};

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads `bytes` bytes from the bus.
    Read {
        /// From the part's first address.
        offset: u64,
        /// How many.
        bytes: usize,
    },
    /// Writes to the bus.
    Write {
        /// From the part's first address.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Writes to guest memory, where drivers of the tests have their rings.
    Memory {
        /// Where.
        address: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Rings the doorbell.
    Doorbell,
    /// The host sends something.
    Input(Vec<u8>),
    /// The host reads everything.
    TakeOutput,
    /// The event loop runs once.
    Events,
}

fn offset() -> impl Strategy<Value = u64> {
    // Mostly registers, sometimes anything.
    prop_oneof![8 => (0u64..0x48).prop_map(|word| word * 4), 2 => 0u64..0x120, 1 => any::<u64>()]
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    // Small numbers and addresses in RAM reach further than random ones.
    let ram = u32::try_from(RAM_BYTES).expect("RAM is small");
    prop_oneof![4 => 0u32..0x20, 2 => (0..ram / 16).prop_map(|paragraph| paragraph * 16), 1 => any::<u32>()]
        .prop_map(|value| value.to_le_bytes().to_vec())
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![6 => word(), 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

/// A step of any kind.
pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (offset(), prop_oneof![4 => Just(4usize), 1 => Just(1usize), 1 => 0usize..20])
            .prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        12 => (offset(), data()).prop_map(|(offset, data)| Step::Write { offset, data }),
        8 => (0u64..0x4000, data()).prop_map(|(address, data)| Step::Memory { address, data }),
        2 => Just(Step::Doorbell),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Input),
        1 => Just(Step::TakeOutput),
        3 => Just(Step::Events),
    ]
}

/// A whole run.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..64)
}

/// Does a step.
pub fn apply(rig: &mut Rig, step: &Step) {
    match step {
        Step::Read { offset, bytes } => {
            let mut data = vec![0; *bytes];
            rig.read_bytes(*offset, &mut data);
        }
        Step::Write { offset, data } => rig.write_bytes(*offset, data),
        // What runs over the end of RAM is cut off.
        Step::Memory { address, data } => drop(rig.memory.write(data, GuestAddress(*address))),
        Step::Doorbell => rig.ring_doorbell(),
        Step::Input(bytes) => {
            rig.send_input(bytes);
        }
        Step::TakeOutput => {
            rig.take_output();
        }
        Step::Events => rig.step(),
    }
}

/// Reads steps from raw bytes, for fuzzers: any input is a run.
pub fn steps_from_bytes(bytes: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = bytes;
    while let [kind, low, high, length, tail @ ..] = rest {
        let count = usize::from(*length % 32).min(tail.len());
        let (data, next) = tail.split_at(count);
        let offset = u64::from(u16::from_le_bytes([*low, *high]));
        let data = data.to_vec();
        steps.push(match kind % 8 {
            0 => Step::Read { offset, bytes: usize::from(*length % 32) },
            1..=3 => Step::Write { offset, data },
            4 => Step::Memory { address: offset, data },
            5 => Step::Doorbell,
            6 => Step::Input(data),
            _ => Step::Events,
        });
        rest = next;
    }
    steps
}

/// A fuzz target for a part: drives one with this power-on state by `bytes`, and checks that where this has led to can
/// be saved, built again and lived with.
///
/// # Panics
/// If it cannot.
pub fn fuzz(state: &PartState, bytes: &[u8]) {
    let mut rig = Rig::boot(state);
    for step in steps_from_bytes(bytes) {
        apply(&mut rig, &step);
    }
    rig.part.part_mut().quiesce();
    let mut child = rig.fork();
    assert_eq!(child.part.part().save(), rig.part.part().save());
    child.part.part_mut().resume();
    child.step();
}

/// A fuzz target for a part's constructor: builds one from `registers`, and lives with it if it can be built.
///
/// # Panics
/// If it can be built but not lived with.
pub fn fuzz_registers(state: &PartState, registers: &[u8]) {
    let hostile = PartState { registers: registers.to_vec(), ..state.clone() };
    let Ok(mut rig) = Rig::build(&hostile, new_memory(), identity(0)) else { return };
    rig.part.part_mut().resume();
    rig.step();
    rig.part.part_mut().quiesce();
    rig.fork();
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_devices::initial_state;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_run(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            fuzz(&initial_state::virtio_console("console"), &bytes);
            fuzz(&initial_state::serial("serial"), &bytes);
            fuzz_registers(&initial_state::virtio_console("console"), &bytes);
        }
    }
}
