//! What a machine that was frozen hands over, and what becomes of it.
//!
//! A delta becomes a layer of the parent's node, or goes back: what a supervisor has no room for belongs to the parent's
//! next freeze again, and the parent is as it was. What cannot be believed is refused for good.

use crate::describe;
use crate::family::{Family, FamilyEvent};
use crate::lifecycle::Event;
use crate::member::Ram;
use crate::operation::{Cause, Freeze, Operation, OperationId, Source};
use ramet_abi::layout::PAGE_BYTES;
use ramet_memory::{AdoptError, LayeredMemory};
use ramet_state::validate;
use ramet_vmm::protocol::{Frozen, FrozenMemory, Order};
use std::os::fd::{AsFd, OwnedFd};

/// Layers of one machine, at most: their descriptors must fit one message. Beyond it deltas are put together.
const MAX_LAYERS: usize = 64;

/// Why what was handed over is not kept.
enum Refusal {
    /// It is as it should be, but there is no room for it.
    NoRoom(String),
    /// It is not as it should be.
    Unbelievable(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Unbelievable(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Self::Unbelievable(reason.to_owned())
    }
}

impl From<AdoptError> for Refusal {
    fn from(error: AdoptError) -> Self {
        let reason = describe(&error);
        match error {
            AdoptError::System(errno) => Self::NoRoom(match ramet_process::limits::advise(errno) {
                Some(advice) => format!("{reason}: {advice}"),
                None => reason,
            }),
            AdoptError::Store(_) => Self::NoRoom(reason),
            AdoptError::NotMemfd | AdoptError::Size { .. } | AdoptError::WritableMapping => Self::Unbelievable(reason),
        }
    }
}

impl Family {
    /// A machine reports its freeze.
    pub(crate) fn take_frozen(&mut self, number: u64, frozen: Frozen, delta: Option<OwnedFd>) {
        let Some(operation) = self.members.get_mut(&number).and_then(|member| member.freezes.pop_front()) else {
            self.give_up(number, "its process reports a freeze that nobody asked for");
            return;
        };
        let pause_ns = frozen.pause_ns;
        // What it was asked for counts, not what it says. An operation that was given up meanwhile was a fork.
        let ready =
            matches!(self.operations.get(&operation), Some(state) if matches!(state.cause, Cause::GuestReady { .. }));
        match self.adopt(number, &frozen, delta) {
            Ok(memory) => {
                let source = Source { state: frozen.state, memory };
                if ready && let Some(member) = self.members.get_mut(&number) {
                    member.template = Some(source.state.clone());
                }
                if let Some(state) = self.operations.get_mut(&operation) {
                    state.pause_ns = pause_ns;
                    state.freeze = Freeze::Done(source);
                }
                self.after_freeze(number, ready);
                if ready {
                    self.operations.remove(&operation);
                    self.tell(FamilyEvent::Ready { number });
                } else {
                    self.advance(operation);
                }
            }
            Err(Refusal::NoRoom(reason)) => self.return_freeze(number, operation, &reason),
            Err(Refusal::Unbelievable(reason)) => self.refuse_freeze(number, operation, &reason),
        }
    }

    /// What it wrote is in no layer: it runs on, but its descendants would lack that.
    fn refuse_freeze(&mut self, number: u64, operation: OperationId, reason: &str) {
        if let Some(member) = self.members.get_mut(&number) {
            member.unforkable = Some(format!("an earlier freeze was refused: {reason}"));
        }
        self.end_freeze(number, operation, reason);
    }

    /// What it wrote is its own again, and is in its next freeze.
    fn return_freeze(&mut self, number: u64, operation: OperationId, reason: &str) {
        let links = self.members.get(&number).and_then(|member| member.links.as_ref());
        let returned = links.is_some_and(|links| links.send(&Order::TakeBack, &[]).is_ok());
        match returned {
            true => self.end_freeze(number, operation, reason),
            false => self.refuse_freeze(number, operation, reason),
        }
    }

    fn end_freeze(&mut self, number: u64, operation: OperationId, reason: &str) {
        self.after_freeze(number, false);
        if self.operations.get(&operation).is_some_and(|state| state.cause.is_guest()) {
            self.tell(FamilyEvent::GuestForkRefused { parent: number, reason: reason.to_owned() });
        }
        self.freeze_failed(operation, reason);
    }

    /// The report of a freeze came without the descriptors that belong to it.
    pub(crate) fn lose_freeze(&mut self, number: u64, reason: &str) {
        let Some(member) = self.members.get_mut(&number) else { return };
        let is_founder = matches!(member.ram, Ram::Founder(_));
        match member.freezes.pop_front() {
            // Its flat layer is frozen already, and cannot be returned.
            Some(operation) if is_founder => self.refuse_freeze(number, operation, reason),
            Some(operation) => self.return_freeze(number, operation, reason),
            None => self.give_up(number, reason),
        }
    }

    /// A machine could not be frozen, and goes on.
    pub(crate) fn take_not_frozen(&mut self, number: u64, reason: &str) {
        if let Some(operation) = self.members.get_mut(&number).and_then(|member| member.freezes.pop_front()) {
            self.end_freeze(number, operation, reason);
        }
    }

    fn after_freeze(&mut self, number: u64, template: bool) {
        let waiting = self.members.get(&number).is_some_and(|member| !member.freezes.is_empty());
        if template {
            self.note(number, Event::BecameTemplate);
        } else if !waiting {
            self.note(number, Event::Thawed);
        }
    }

    /// Makes a node of what a machine's process hands over; everything in it is untrusted.
    fn adopt(&mut self, number: u64, frozen: &Frozen, delta: Option<OwnedFd>) -> Result<LayeredMemory, Refusal> {
        let class = self.class.clone().ok_or("it is gone")?;
        let member = self.members.get_mut(&number).ok_or("it is gone")?;
        let identity = &frozen.state.identity;
        let named = (identity.number, identity.parent, identity.depth) == (number, member.parent, member.depth);
        if frozen.state.class != *class || !named {
            return Err("its state is not this machine's".into());
        }
        validate(&frozen.state).map_err(|error| describe(&error))?;
        let memory = match (&member.ram, &frozen.memory) {
            (Ram::Founder(_), FrozenMemory::Flat { holes }) => {
                let Ram::Founder(file) = std::mem::replace(&mut member.ram, Ram::Nothing) else {
                    return Err("it has no memory".into());
                };
                let published = self.store.publish(file).map_err(|error| describe(&error))?;
                LayeredMemory::founded(published, holes).map_err(|error| describe(&error))?
            }
            (Ram::Layered(below), FrozenMemory::Delta { pages, runs }) => {
                let most = class.memory_bytes / PAGE_BYTES;
                // The file has room for what was written twice, once ahead and once again.
                if *pages > most.saturating_mul(2) || runs.len() as u64 > most {
                    return Err(format!("it reports {pages} pages in {} runs; it has {most} pages", runs.len()).into());
                }
                let layer = match delta {
                    Some(delta) if *pages > 0 => Some(self.store.adopt_delta(delta, *pages)?),
                    _ => None,
                };
                below.with_delta(layer, runs).map_err(|error| describe(&error))?
            }
            _ => return Err("it reports a kind of memory that it does not have".into()),
        };
        let memory = if memory.layers().len() > MAX_LAYERS {
            self.store.consolidate(&memory).map_err(|error| Refusal::NoRoom(describe(&error)))?
        } else {
            memory
        };
        member.ram = Ram::Layered(memory.clone());
        Ok(memory)
    }

    /// A child is built on what its parent was frozen as.
    pub(crate) fn settle_ram(&mut self, number: u64, operation: OperationId) {
        let Some(Operation { freeze: Freeze::Done(source), .. }) = self.operations.get(&operation) else { return };
        let memory = source.memory.clone();
        if let Some(member) = self.members.get_mut(&number) {
            member.ram = Ram::Layered(memory);
        }
    }

    /// The layers' descriptors, for tests that look at who holds what.
    pub fn layer_descriptors(&self) -> Vec<std::os::fd::RawFd> {
        use std::os::fd::AsRawFd;
        let layered = self.members.values().filter_map(|member| match &member.ram {
            Ram::Layered(memory) => Some(memory),
            Ram::Founder(_) | Ram::Nothing => None,
        });
        layered.flat_map(|memory| memory.layers().map(|layer| layer.as_fd().as_raw_fd()).collect::<Vec<_>>()).collect()
    }
}
