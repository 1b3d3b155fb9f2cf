//! The registers alone. Calls through the bus are tested in `tests/conformance`.

use super::registers::{GuestCall, Registers};
use proptest::prelude::*;
use ramet_abi::guest_port::{FORK_MAX_CHILDREN, FORK_PAUSED, PORTS};

proptest! {
    #[test]
    fn a_fork_is_always_possible(accesses in prop::collection::vec((0u16..PORTS, any::<bool>(), 0u32..2000), 0..60)) {
        let mut registers = Registers::default();
        for (offset, write, value) in accesses {
            let call = if write {
                registers.write(offset, value)
            } else {
                registers.read(offset).and_then(|(_, call)| call)
            };
            if let Some(GuestCall::Fork { children, flags }) = call {
                prop_assert!((1..=FORK_MAX_CHILDREN).contains(&children));
                prop_assert!(flags == 0 || flags == FORK_PAUSED);
            }
        }
    }
}

#[test]
fn offsets_past_the_last_port_wrap_nowhere() {
    let mut registers = Registers::default();
    for offset in [PORTS, 0xFAE0, u16::MAX] {
        assert_eq!(registers.read(offset), None);
        assert_eq!(registers.write(offset, 1), None);
    }
    assert_eq!(registers, Registers::default());
}
