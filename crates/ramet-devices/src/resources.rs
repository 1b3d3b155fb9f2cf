//! Host resources, handed to a part by role.

use crate::{BuildPartError, Interrupt, MachineIdentity};
use ramet_state::{CloneRule, Handle, PartState};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vm_memory::GuestMemoryMmap;

/// Roles of the handles, and what the machine gives for each.
pub mod role {
    /// [`super::Resource::Interrupt`]: the part's line.
    pub const INTERRUPT: &str = "interrupt";
    /// [`super::Resource::Doorbell`]: a non-blocking eventfd that is also the ioeventfd of QueueNotify, for every
    /// queue (no datamatch). The part rings it itself when a queue is notified by an exit, and when it has more to
    /// do.
    pub const DOORBELL: &str = "doorbell";
    /// [`super::Resource::Stream`]: a connected, non-blocking stream socket.
    pub const CONSOLE: &str = "console";
    /// [`super::Resource::Identity`]: who the machine is.
    pub const IDENTITY: &str = "identity";
}

/// A host resource.
#[derive(Clone)]
pub enum Resource {
    /// An interrupt.
    Interrupt(Arc<dyn Interrupt>),
    /// An eventfd.
    Doorbell(Arc<OwnedFd>),
    /// A stream socket.
    Stream(Arc<OwnedFd>),
    /// Final identity of the machine.
    Identity(Box<MachineIdentity>),
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interrupt(_) => formatter.write_str("Interrupt"),
            Self::Doorbell(fd) => formatter.debug_tuple("Doorbell").field(fd).finish(),
            Self::Stream(fd) => formatter.debug_tuple("Stream").field(fd).finish(),
            Self::Identity(identity) => formatter.debug_tuple("Identity").field(identity).finish(),
        }
    }
}

/// All that a part gets from its machine.
#[derive(Clone, Debug)]
pub struct PartResources {
    /// The machine's memory: everything that the guest may name as a buffer, and the clone page. Every byte of it
    /// must be accessible: what is unplugged is no part of it.
    pub memory: GuestMemoryMmap,
    /// One resource per handle of the part's state, by role.
    pub handles: BTreeMap<String, Resource>,
}

impl PartResources {
    /// Only memory, no handles.
    pub fn new(memory: GuestMemoryMmap) -> Self {
        Self { memory, handles: BTreeMap::new() }
    }

    /// With one more handle.
    #[must_use]
    pub fn with(mut self, role: &str, resource: Resource) -> Self {
        self.handles.insert(role.to_owned(), resource);
        self
    }
}

/// The resources of one part while it is being built.
pub(crate) struct Taken {
    id: String,
    /// The machine's memory.
    pub(crate) memory: GuestMemoryMmap,
    handles: BTreeMap<String, Resource>,
}

impl Taken {
    /// Checks that the state names exactly the handles `expected`, with their rules.
    pub(crate) fn new(
        state: &PartState,
        expected: &[(&'static str, CloneRule)],
        resources: PartResources,
    ) -> Result<Self, BuildPartError> {
        if state.handles != handles(expected) {
            let expected = expected.iter().map(|(role, rule)| format!("{role} ({rule:?})")).collect::<Vec<_>>();
            return Err(BuildPartError::Handles { id: state.id.clone(), expected: expected.join(", ") });
        }
        Ok(Self { id: state.id.clone(), memory: resources.memory, handles: resources.handles })
    }

    fn take<T>(
        &mut self,
        role: &'static str,
        expected: &'static str,
        pick: impl FnOnce(Resource) -> Option<T>,
    ) -> Result<T, BuildPartError> {
        let missing = BuildPartError::MissingResource { id: self.id.clone(), role };
        let resource = self.handles.remove(role).ok_or(missing)?;
        pick(resource).ok_or_else(|| BuildPartError::WrongResource { id: self.id.clone(), role, expected })
    }

    pub(crate) fn interrupt(&mut self) -> Result<Arc<dyn Interrupt>, BuildPartError> {
        self.take(role::INTERRUPT, "an interrupt", |resource| match resource {
            Resource::Interrupt(interrupt) => Some(interrupt),
            _ => None,
        })
    }

    pub(crate) fn doorbell(&mut self) -> Result<Arc<OwnedFd>, BuildPartError> {
        self.take(role::DOORBELL, "a doorbell", |resource| match resource {
            Resource::Doorbell(fd) => Some(fd),
            _ => None,
        })
    }

    pub(crate) fn console(&mut self) -> Result<Arc<OwnedFd>, BuildPartError> {
        self.take(role::CONSOLE, "a stream socket", |resource| match resource {
            Resource::Stream(fd) => Some(fd),
            _ => None,
        })
    }

    pub(crate) fn identity(&mut self) -> Result<Box<MachineIdentity>, BuildPartError> {
        self.take(role::IDENTITY, "an identity", |resource| match resource {
            Resource::Identity(identity) => Some(identity),
            _ => None,
        })
    }
}

/// Handles as a state names them.
pub(crate) fn handles(list: &[(&'static str, CloneRule)]) -> Vec<Handle> {
    list.iter().map(|&(role, rule)| Handle { role: role.to_owned(), rule }).collect()
}
