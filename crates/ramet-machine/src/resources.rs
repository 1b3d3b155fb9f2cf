//! What a machine is given by descriptor.

use ramet_abi::layout::PAGE_BYTES;
use ramet_memory::{LayerId, PageMap};
use ramet_state::VmClass;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Descriptors that a blank machine is born with; they never change.
#[derive(Debug)]
pub struct BlankResources {
    /// Memory of the clone page: a sealed memfd of one page, shared with the supervisor.
    pub clone_page: OwnedFd,
    /// Eventfd that interrupts the guest: a request, a doorbell, a new generation.
    pub request: OwnedFd,
    /// Eventfd that the guest rings when it has answered.
    pub answer: OwnedFd,
    /// The virtio console's end of its socket.
    pub console: OwnedFd,
    /// The serial device's end of its socket.
    pub serial: OwnedFd,
    /// The family's memory, if the class has some.
    pub family: Option<OwnedFd>,
}

/// The wrong descriptors.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// Too few or too many.
    #[error("{found} descriptors came with the order; {expected} are needed")]
    Count {
        /// How many came.
        found: usize,
        /// How many belong to it.
        expected: usize,
    },
    /// The map names a layer twice.
    #[error("Layer {0} was given twice")]
    Twice(LayerId),
}

impl BlankResources {
    /// In the order of the fields.
    ///
    /// # Errors
    /// [`ResourceError::Count`].
    pub fn from_descriptors(class: &VmClass, descriptors: Vec<OwnedFd>) -> Result<Self, ResourceError> {
        let expected = 5 + usize::from(class.family_bytes > 0);
        let found = descriptors.len();
        if found != expected {
            return Err(ResourceError::Count { found, expected });
        }
        let mut next = descriptors.into_iter();
        let mut take = || next.next().ok_or(ResourceError::Count { found, expected });
        Ok(Self {
            clone_page: take()?,
            request: take()?,
            answer: take()?,
            console: take()?,
            serial: take()?,
            family: next.next(),
        })
    }
}

/// Where a machine's RAM comes from.
#[derive(Debug)]
pub enum Ram {
    /// A flat layer of its own, writable.
    Founder(OwnedFd),
    /// Frozen layers.
    Layers {
        /// What is where.
        map: PageMap,
        /// Their read-only descriptors.
        layers: BTreeMap<LayerId, OwnedFd>,
    },
}

impl Ram {
    /// A founder's RAM.
    ///
    /// # Errors
    /// [`ResourceError::Count`] unless there is exactly one descriptor.
    pub fn founder(descriptors: Vec<OwnedFd>) -> Result<Self, ResourceError> {
        let found = descriptors.len();
        match <[OwnedFd; 1]>::try_from(descriptors) {
            Ok([fd]) => Ok(Self::Founder(fd)),
            Err(_) => Err(ResourceError::Count { found, expected: 1 }),
        }
    }

    /// A clone's RAM: descriptor `n` is `layers[n]`.
    ///
    /// # Errors
    /// [`ResourceError`] if descriptors are missing, left over or named twice.
    pub fn layers(map: PageMap, layers: Vec<LayerId>, descriptors: Vec<OwnedFd>) -> Result<Self, ResourceError> {
        let (found, expected) = (descriptors.len(), layers.len());
        if found != expected {
            return Err(ResourceError::Count { found, expected });
        }
        let mut by_id = BTreeMap::new();
        for (layer, descriptor) in layers.into_iter().zip(descriptors) {
            if by_id.insert(layer, descriptor).is_some() {
                return Err(ResourceError::Twice(layer));
            }
        }
        Ok(Self::Layers { map, layers: by_id })
    }
}

/// Pages of RAM of a class.
pub(crate) fn ram_pages(class: &VmClass) -> u64 {
    class.memory_bytes / PAGE_BYTES
}
