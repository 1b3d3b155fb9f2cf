//! The clone page: identity and generation, with the semantics of VMGENID.
//!
//! ```text
//!  built: the page's first 256 bytes hold the machine's identity --resume or raise()--> interrupt
//! ```
//!
//! The page itself ([`ramet_abi::clone_page`]) is memory that the supervisor made for this one machine. Building
//! writes the host's part of it and nothing else, because a request may already wait in the mailbox. Resuming raises
//! the interrupt: after a build there is a new generation to see, and a request or a doorbell that was under way
//! when the machine was frozen is lost to a clone. An interrupt too many only makes the guest look.
//!
//! Deliberately absent: minting identities (they arrive final, as a resource), the mailbox (it is the
//! supervisor's), registers (the guest can see none; the version is all that a state holds).

mod registers;
mod state;
#[cfg(test)]
mod tests;

pub use registers::MachineIdentity;
pub(crate) use state::{KIND, VERSION};

use crate::{Counter, EventSource, Interrupt, Part};
use ramet_state::PartState;
use std::sync::Arc;

/// The clone page of one machine.
pub struct ClonePage {
    id: String,
    interrupt: Arc<dyn Interrupt>,
}

impl ClonePage {
    /// Interrupts the guest to make it look at its page: a family doorbell, or a request that did not come through
    /// the supervisor's own eventfd.
    pub fn raise(&self) {
        self.interrupt.raise();
    }
}

impl Part for ClonePage {
    fn id(&self) -> &str {
        &self.id
    }

    fn quiesce(&mut self) {}

    fn save(&self) -> PartState {
        state::save(&self.id)
    }

    fn resume(&mut self) {
        self.raise();
    }

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        Vec::new()
    }

    fn on_event(&mut self, _token: u32) {}

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}
