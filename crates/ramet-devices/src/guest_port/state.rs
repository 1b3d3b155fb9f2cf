//! State of the guest port.

use super::GuestPort;
use super::registers::Registers;
use crate::resources::{Taken, handles};
use crate::{BuildPartError, PartResources, codec};
use ramet_state::PartState;

pub(crate) const KIND: &str = "guest-port";
pub(crate) const VERSION: u16 = 1;

pub(super) fn save(id: &str, registers: &Registers) -> PartState {
    PartState {
        id: id.to_owned(),
        kind: KIND.to_owned(),
        version: VERSION,
        registers: codec::encode(registers),
        handles: handles(&[]),
    }
}

impl GuestPort {
    /// The state at power-on.
    pub(crate) fn initial_state(id: &str) -> PartState {
        save(id, &Registers::default())
    }

    /// Builds the part.
    ///
    /// # Errors
    /// [`BuildPartError`] if the state is invalid.
    pub(crate) fn from_state(state: &PartState, resources: PartResources) -> Result<Self, BuildPartError> {
        Taken::new(state, &[], resources)?;
        let registers = codec::decode(&state.registers)
            .map_err(|source| BuildPartError::Registers { id: state.id.clone(), source })?;
        Ok(Self { id: state.id.clone(), registers })
    }
}
