//! The guest port: how a guest asks to be forked, and says what it is doing ([`ramet_abi::guest_port`]).
//!
//! ```text
//!  write ARGUMENT_0, ARGUMENT_1 --> latched
//!  read FORK, READY             --> GuestCall; the access completes with 0, the machine then edits the register
//!  write DONE, MARK, EXIT, DOORBELL --> GuestCall
//! ```
//!
//! Every register has 32 bits and is accessed as such. Any other access reads as all ones or is ignored.
//!
//! Deliberately absent: carrying out calls, permission, quotas. The machine does that; the values that it gives
//! back never pass through here, because the access is complete before the machine is frozen.

mod registers;
mod state;
#[cfg(test)]
mod tests;

pub use registers::GuestCall;
pub(crate) use state::{KIND, VERSION};

use crate::{Counter, EventSource, Part};
use ramet_state::PartState;
use registers::Registers;

/// The guest port of one machine.
#[derive(Debug)]
pub struct GuestPort {
    id: String,
    registers: Registers,
}

impl GuestPort {
    /// Reads at `offset` from the first port and fills all of `data`. A returned call is the machine's to carry
    /// out; its result replaces the 0 that the access reads, by an edit of the completed register.
    pub fn read(&mut self, offset: u16, data: &mut [u8]) -> Option<GuestCall> {
        data.fill(0xFF);
        let register: &mut [u8; 4] = data.try_into().ok()?;
        let (value, call) = self.registers.read(offset)?;
        *register = value.to_le_bytes();
        call
    }

    /// Writes `data` at `offset` from the first port.
    pub fn write(&mut self, offset: u16, data: &[u8]) -> Option<GuestCall> {
        let value: [u8; 4] = data.try_into().ok()?;
        self.registers.write(offset, u32::from_le_bytes(value))
    }
}

impl Part for GuestPort {
    fn id(&self) -> &str {
        &self.id
    }

    fn quiesce(&mut self) {}

    fn save(&self) -> PartState {
        state::save(&self.id, &self.registers)
    }

    fn resume(&mut self) {}

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        Vec::new()
    }

    fn on_event(&mut self, _token: u32) {}

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}
