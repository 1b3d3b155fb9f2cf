//! State of the clone page: empty, because all that a guest sees of it is new in every machine.

use super::ClonePage;
use crate::resources::{Taken, handles, role};
use crate::{BuildPartError, PartResources, codec};
use ramet_abi::layout::CLONE_PAGE_BASE;
use ramet_state::{CloneRule, PartState};
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};

pub(crate) const KIND: &str = "clone-page";
pub(crate) const VERSION: u16 = 1;

const HANDLES: &[(&str, CloneRule)] =
    &[(role::INTERRUPT, CloneRule::Recreate), (role::IDENTITY, CloneRule::ReIdentify)];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Registers {}

pub(super) fn save(id: &str) -> PartState {
    PartState {
        id: id.to_owned(),
        kind: KIND.to_owned(),
        version: VERSION,
        registers: codec::encode(&Registers {}),
        handles: handles(HANDLES),
    }
}

impl ClonePage {
    /// The state at power-on.
    pub(crate) fn initial_state(id: &str) -> PartState {
        save(id)
    }

    /// Builds the part and writes the machine's identity into its page.
    ///
    /// # Errors
    /// [`BuildPartError`] if the state is invalid, a resource is missing, or the memory has no clone page.
    pub(crate) fn from_state(state: &PartState, resources: PartResources) -> Result<Self, BuildPartError> {
        let id = state.id.clone();
        let mut taken = Taken::new(state, HANDLES, resources)?;
        codec::decode::<Registers>(&state.registers)
            .map_err(|source| BuildPartError::Registers { id: id.clone(), source })?;
        let identity = taken.identity()?;
        let interrupt = taken.interrupt()?;
        let absent = |_| BuildPartError::Memory { id: id.clone(), what: "the clone page", address: CLONE_PAGE_BASE };
        taken.memory.write_slice(&identity.page(), GuestAddress(CLONE_PAGE_BASE)).map_err(absent)?;
        Ok(Self { id, interrupt })
    }
}
