//! The guest port's registers: no bus, no machine.

use ramet_abi::guest_port::{
    ARGUMENT_0, ARGUMENT_1, BASE, DONE, DOORBELL, ERROR_ARGUMENT, ERROR_BIT, EXIT, FORK, FORK_MAX_CHILDREN,
    FORK_PAUSED, IDENTIFY, MARK, READY, SIGNATURE,
};
use serde::{Deserialize, Serialize};

/// What a guest wants of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCall {
    /// Fork this machine. The arguments are in range, and the value is awaited in RAX.
    Fork {
        /// 1 to [`FORK_MAX_CHILDREN`].
        children: u32,
        /// 0 or [`FORK_PAUSED`].
        flags: u32,
    },
    /// Become a frozen template.
    Ready,
    /// The job is done, with this status.
    Done(u32),
    /// A mark with this value.
    Mark(u32),
    /// End the machine, with this status.
    Exit(u8),
    /// Ring the machine with this number in the family.
    Doorbell(u32),
}

/// What the guest has latched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Registers {
    /// Arguments of the next command.
    pub(crate) arguments: [u32; 2],
}

impl Registers {
    /// What a read gives, and the call that it makes. `None`: nothing is there.
    pub(crate) fn read(&mut self, offset: u16) -> Option<(u32, Option<GuestCall>)> {
        match BASE.checked_add(offset)? {
            IDENTIFY => Some((SIGNATURE, None)),
            READY => Some((0, Some(GuestCall::Ready))),
            FORK => {
                // The arguments stay: whoever is forked while this call waits makes it again.
                let [children, flags] = self.arguments;
                if (1..=FORK_MAX_CHILDREN).contains(&children) && flags & !FORK_PAUSED == 0 {
                    Some((0, Some(GuestCall::Fork { children, flags })))
                } else {
                    Some((ERROR_BIT | ERROR_ARGUMENT, None))
                }
            }
            _ => None,
        }
    }

    /// The call that a write makes.
    pub(crate) fn write(&mut self, offset: u16, value: u32) -> Option<GuestCall> {
        match BASE.checked_add(offset)? {
            ARGUMENT_0 => self.arguments[0] = value,
            ARGUMENT_1 => self.arguments[1] = value,
            DONE => return Some(GuestCall::Done(value)),
            MARK => return Some(GuestCall::Mark(value)),
            EXIT => return Some(GuestCall::Exit(value.to_le_bytes()[0])),
            DOORBELL => return Some(GuestCall::Doorbell(value)),
            _ => {}
        }
        None
    }
}
