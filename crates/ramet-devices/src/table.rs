//! The table of all parts, and the one way to make one.

use crate::serial::Serial;
use crate::virtio::{VirtioConsole, VirtioRng};
use crate::{BuiltPart, ClonePage, GuestPort, PartResources, RegistersError};
use crate::{clone_page, guest_port, serial, virtio};
use ramet_state::PartState;

/// Why a part could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildPartError {
    /// Nothing of this kind.
    #[error("Part \"{id}\" is of kind \"{kind}\", which this version does not have")]
    UnknownKind {
        /// The part.
        id: String,
        /// Its kind.
        kind: String,
    },
    /// A known kind in another version.
    #[error("Part \"{id}\" of kind \"{kind}\" has version {version}; version {known} is known")]
    UnknownVersion {
        /// The part.
        id: String,
        /// Its kind.
        kind: String,
        /// The state's version.
        version: u16,
        /// Newest version that can be built.
        known: u16,
    },
    /// Its registers are no registers.
    #[error("Part \"{id}\" cannot be read")]
    Registers {
        /// The part.
        id: String,
        /// Why.
        #[source]
        source: RegistersError,
    },
    /// A register has a value that the part never has.
    #[error("Part \"{id}\": {field} is {value:#x}; {rule}")]
    Field {
        /// The part.
        id: String,
        /// The register.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// Its handles are not those of its kind.
    #[error("Part \"{id}\" does not name its handles, which are: {expected}")]
    Handles {
        /// The part.
        id: String,
        /// Roles and rules.
        expected: String,
    },
    /// The machine gave nothing for a role.
    #[error("Part \"{id}\" was given nothing for its role \"{role}\"")]
    MissingResource {
        /// The part.
        id: String,
        /// The role.
        role: &'static str,
    },
    /// The machine gave something of another type for a role.
    #[error("Part \"{id}\" was not given {expected} for its role \"{role}\"")]
    WrongResource {
        /// The part.
        id: String,
        /// The role.
        role: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// The machine's memory lacks what the part needs.
    #[error("Part \"{id}\": {what} at {address:#x} is not in the machine's memory")]
    Memory {
        /// The part.
        id: String,
        /// What should be there.
        what: &'static str,
        /// Guest-physical address.
        address: u64,
    },
}

type Constructor = fn(&PartState, PartResources) -> Result<BuiltPart, BuildPartError>;

struct Kind {
    kind: &'static str,
    version: u16,
    build: Constructor,
}

static TABLE: &[Kind] = &[
    Kind {
        kind: serial::KIND,
        version: serial::VERSION,
        build: |state, resources| Ok(BuiltPart::Port(Box::new(Serial::from_state(state, resources)?))),
    },
    Kind {
        kind: virtio::console::KIND,
        version: virtio::console::VERSION,
        build: |state, resources| Ok(BuiltPart::Mmio(Box::new(VirtioConsole::from_state(state, resources)?))),
    },
    Kind {
        kind: virtio::rng::KIND,
        version: virtio::rng::VERSION,
        build: |state, resources| Ok(BuiltPart::Mmio(Box::new(VirtioRng::from_state(state, resources)?))),
    },
    Kind {
        kind: clone_page::KIND,
        version: clone_page::VERSION,
        build: |state, resources| Ok(BuiltPart::ClonePage(ClonePage::from_state(state, resources)?)),
    },
    Kind {
        kind: guest_port::KIND,
        version: guest_port::VERSION,
        build: |state, resources| Ok(BuiltPart::GuestPort(GuestPort::from_state(state, resources)?)),
    },
];

/// Kinds and versions that [`build_part`] builds.
pub fn kinds() -> impl Iterator<Item = (&'static str, u16)> {
    TABLE.iter().map(|kind| (kind.kind, kind.version))
}

/// Builds a part, quiesced. The state is untrusted.
///
/// # Errors
/// [`BuildPartError`] if the state is not one that a part of its kind has, or the resources are not those that it
/// names.
pub fn build_part(state: &PartState, resources: PartResources) -> Result<BuiltPart, BuildPartError> {
    let newest = TABLE.iter().filter(|kind| kind.kind == state.kind).map(|kind| kind.version).max();
    let Some(known) = newest else {
        return Err(BuildPartError::UnknownKind { id: state.id.clone(), kind: state.kind.clone() });
    };
    match TABLE.iter().find(|kind| kind.kind == state.kind && kind.version == state.version) {
        Some(kind) => (kind.build)(state, resources),
        None => Err(BuildPartError::UnknownVersion {
            id: state.id.clone(),
            kind: state.kind.clone(),
            version: state.version,
            known,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_has_one_constructor() {
        let all: Vec<_> = kinds().collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|(_, version)| *version > 0));
    }
}
