//! The page's layout. What a machine sees of it is tested in `tests/conformance`.

use super::MachineIdentity;
use super::registers::HOST_BYTES;
use ramet_abi::clone_page::{ENTROPY_AT, ENTROPY_BYTES, FIRST_INSTRUCTION_TSC_AT, GENERATION_AT, NUMBER_AT};
use ramet_state::Identity;

fn identity() -> MachineIdentity {
    MachineIdentity {
        identity: Identity {
            number: u64::MAX,
            parent: u64::MAX,
            depth: u32::MAX,
            generation: [0xFF; 16],
            generation_counter: u32::MAX,
        },
        vcpus: u32::MAX,
        wall_offset_ns: -1,
        family_bytes: u64::MAX,
        entropy: [0xFF; ENTROPY_BYTES],
    }
}

#[test]
fn the_host_writes_nothing_of_the_guests() {
    const { assert!(HOST_BYTES <= FIRST_INSTRUCTION_TSC_AT && ENTROPY_AT + ENTROPY_BYTES <= HOST_BYTES) };
}

#[test]
fn every_field_has_bytes_of_its_own() {
    type Clear = fn(&mut MachineIdentity);
    let full = identity().page();
    // Clearing a field clears its own bytes and no others.
    let cleared: [(&str, usize, Clear); 9] = [
        ("number", 8, |who| who.identity.number = 0),
        ("parent", 8, |who| who.identity.parent = 0),
        ("depth", 4, |who| who.identity.depth = 0),
        ("generation", 16, |who| who.identity.generation = [0; 16]),
        ("counter", 4, |who| who.identity.generation_counter = 0),
        ("vcpus", 4, |who| who.vcpus = 0),
        ("wall", 8, |who| who.wall_offset_ns = 0),
        ("family", 8, |who| who.family_bytes = 0),
        ("entropy", ENTROPY_BYTES, |who| who.entropy = [0; ENTROPY_BYTES]),
    ];
    for (name, bytes, clear) in cleared {
        let mut who = identity();
        clear(&mut who);
        let differing = who.page().iter().zip(&full).filter(|(left, right)| left != right).count();
        assert_eq!(differing, bytes, "{name}");
    }
    assert_eq!(full[NUMBER_AT..NUMBER_AT + 8], [0xFF; 8]);
    assert_eq!(full[GENERATION_AT..GENERATION_AT + 16], [0xFF; 16]);
}
