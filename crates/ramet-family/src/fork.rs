//! Forking: from outside, and as guests ask for it.

use crate::birth::BearError;
use crate::boot::{MAKE_TIMEOUT, random};
use crate::describe;
use crate::family::{Family, FamilyEvent, now_ns};
use crate::lifecycle::{Event, Phase};
use crate::member::{OrderError, Ram};
use crate::operation::{Cause, Freeze, Operation, OperationId, Progress, Source};
use crate::quota::QuotaError;
use ramet_abi::guest_port::{ERROR_HOST, ERROR_NOT_PERMITTED, ERROR_QUOTA, ERROR_RATE, FORK_MAX_CHILDREN, FORK_PAUSED};
use ramet_process::SendError;
use ramet_state::{Intent, NewIdentity, plan};
use ramet_vmm::protocol::{BuildStamps, MemorySource, Order};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Why nothing was forked.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// No such machine.
    #[error("There is no machine {number}")]
    Unknown {
        /// Asked for.
        number: u64,
    },
    /// It cannot be forked now.
    #[error("Machine {number} is {phase:?}; only one that runs or is a template can be forked")]
    NotForkable {
        /// Machine.
        number: u64,
        /// Where it is.
        phase: Phase,
    },
    /// Too many at once, or none.
    #[error("{children} children asked for; 1 to {FORK_MAX_CHILDREN} can be forked at once")]
    Children {
        /// Asked for.
        children: u32,
    },
    /// Limits.
    #[error("The fork is not admitted")]
    Quota(#[source] QuotaError),
    /// A process.
    #[error("Child {number} cannot be made; the parent goes on")]
    Bear {
        /// Its number.
        number: u64,
        /// Why.
        #[source]
        source: BearError,
    },
    /// The parent.
    #[error("Machine {number} could not be frozen: {reason}")]
    Freeze {
        /// Machine.
        number: u64,
        /// Why.
        reason: String,
    },
    /// It took too long.
    #[error("The children of machine {number} were not there after {seconds} s; the host may be overloaded")]
    Timeout {
        /// The parent.
        number: u64,
        /// How long it was waited for.
        seconds: u64,
    },
}

/// What became of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOutcome {
    /// Its number.
    pub number: u64,
    /// When what was done in its process, or why it does not exist.
    pub result: Result<BuildStamps, String>,
}

/// What a fork made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkOutcome {
    /// One per child that was asked for; some may have failed, which harms neither the parent nor the others.
    pub children: Vec<ChildOutcome>,
    /// How long the parent's vCPUs were stopped; 0 for a template.
    pub pause_ns: u64,
    /// Host's time-stamp counter when the request was received.
    pub requested_tsc: u64,
}

impl Family {
    /// Forks a machine and waits until its children run, or are held before their first instruction if `paused`.
    ///
    /// # Errors
    /// [`ForkError`] if there are no children at all; what befalls single ones is in their outcome.
    pub fn fork(&mut self, parent: u64, children: u32, paused: bool) -> Result<ForkOutcome, ForkError> {
        let requested_tsc = ramet_kvm::read_tsc();
        let number = parent;
        let member = self.members.get(&parent).ok_or(ForkError::Unknown { number })?;
        if !member.phase().is_forkable() {
            return Err(ForkError::NotForkable { number, phase: member.phase() });
        }
        if children == 0 || children > FORK_MAX_CHILDREN {
            return Err(ForkError::Children { children });
        }
        if let Some(reason) = &member.unforkable {
            return Err(ForkError::Freeze { number, reason: reason.clone() });
        }
        self.quota.admit(self.alive(), children).map_err(ForkError::Quota)?;
        let deadline = Instant::now() + MAKE_TIMEOUT;
        let operation = match self.begin(parent, children, Cause::Outside, paused) {
            Ok(operation) => operation,
            Err(error) => {
                // Its freeze is on its way: who asks again right now shall not find the parent in the middle of it.
                let freezing =
                    |family: &Self| family.members.get(&parent).is_some_and(|m| m.phase() == Phase::Freezing);
                while freezing(self) && Instant::now() < deadline {
                    self.step(deadline.saturating_duration_since(Instant::now()));
                }
                return Err(error);
            }
        };
        while self.operations.get(&operation).is_some_and(|operation| !operation.is_over()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.abandon(operation, "it took too long");
                // A parent that does not answer would stay in the middle of a freeze for ever.
                if self.members.get(&parent).is_some_and(|member| member.freezes.contains(&operation)) {
                    self.kill(parent);
                }
                return Err(ForkError::Timeout { number, seconds: MAKE_TIMEOUT.as_secs() });
            }
            self.step(left);
        }
        let Some(over) = self.operations.remove(&operation) else { return Err(ForkError::Unknown { number }) };
        if let Freeze::Failed(reason) = over.freeze {
            return Err(ForkError::Freeze { number, reason });
        }
        let result = |number: u64, progress: Progress| match progress {
            Progress::Failed(reason) => Err(reason),
            _ => Ok(self.members.get(&number).and_then(|member| member.stamps).unwrap_or_default()),
        };
        let children = over.children.into_iter();
        let children =
            children.map(|(number, progress)| ChildOutcome { number, result: result(number, progress) }).collect();
        Ok(ForkOutcome { children, pause_ns: over.pause_ns, requested_tsc })
    }

    pub(crate) fn new_operation(&mut self, operation: Operation) -> OperationId {
        let id = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(id, operation);
        id
    }

    /// Sends for the children and, from outside, for the parent's freeze.
    fn begin(&mut self, parent: u64, children: u32, cause: Cause, paused: bool) -> Result<OperationId, ForkError> {
        let unknown = ForkError::Unknown { number: parent };
        let Some(class) = self.class.clone() else { return Err(unknown) };
        let Some(member) = self.members.get(&parent) else { return Err(unknown) };
        let depth = member.depth.saturating_add(1);
        let first = self.next_number;
        self.next_number += u64::from(children);
        let numbers = first..self.next_number;
        let operation = self.new_operation(Operation {
            parent,
            cause,
            paused,
            children: numbers.clone().map(|number| (number, Progress::Bearing)).collect::<BTreeMap<_, _>>(),
            freeze: self.freeze_source(parent),
            pause_ns: 0,
        });
        // First the freeze, which is the shorter part, then the births: both go on side by side.
        if cause == Cause::Outside
            && matches!(self.operations.get(&operation), Some(Operation { freeze: Freeze::NotYet, .. }))
        {
            self.order_freeze(parent, operation, &Order::Freeze);
        }
        for number in numbers {
            if let Err(source) = self.bear(number, parent, depth, &class, operation) {
                self.abandon(operation, "a sibling could not be made");
                return Err(ForkError::Bear { number, source });
            }
        }
        Ok(operation)
    }

    /// A template's state and memory are there already.
    fn freeze_source(&self, parent: u64) -> Freeze {
        match self.members.get(&parent) {
            Some(member) => match (&member.template, &member.ram) {
                (Some(state), Ram::Layered(memory)) => {
                    Freeze::Done(Source { state: state.clone(), memory: memory.clone() })
                }
                _ => Freeze::NotYet,
            },
            None => Freeze::Failed("the parent is gone".to_owned()),
        }
    }

    fn order_freeze(&mut self, parent: u64, operation: OperationId, order: &Order) {
        let links = self.members.get(&parent).and_then(|member| Some((member.links.as_ref()?, &member.ram)));
        let outcome = links.ok_or_else(|| "the parent is gone".to_owned()).and_then(|(links, ram)| {
            let founder: Vec<BorrowedFd<'_>> = match ram {
                Ram::Founder(file) => vec![file.read_only()],
                Ram::Layered(_) | Ram::Nothing => vec![],
            };
            links.send(order, &founder).map_err(|error| describe(&error))
        });
        match outcome {
            Ok(()) => {
                let Some(member) = self.members.get_mut(&parent) else { return };
                member.freezes.push_back(operation);
                if member.freezes.len() == 1 {
                    self.note(parent, Event::FreezeSent);
                }
                self.set_freeze(operation, Freeze::Awaited);
            }
            Err(reason) => self.freeze_failed(operation, &reason),
        }
    }

    fn set_freeze(&mut self, operation: OperationId, freeze: Freeze) {
        if let Some(operation) = self.operations.get_mut(&operation) {
            operation.freeze = freeze;
        }
    }

    pub(crate) fn freeze_failed(&mut self, operation: OperationId, reason: &str) {
        let Some(state) = self.operations.get(&operation) else { return };
        if state.cause.is_guest() {
            self.abandon(operation, reason);
            return;
        }
        // Whoever has asked from outside waits for this operation, and takes it away.
        self.set_freeze(operation, Freeze::Failed(reason.to_owned()));
        let numbers = self.unfinished(operation);
        numbers.into_iter().for_each(|number| self.give_up(number, reason));
    }

    fn unfinished(&self, operation: OperationId) -> Vec<u64> {
        let unfinished = |(_, progress): &(&u64, &Progress)| !matches!(progress, Progress::Built | Progress::Failed(_));
        let children = self.operations.get(&operation).map(|state| state.children.iter().filter(unfinished));
        children.map(|children| children.map(|(number, _)| *number).collect()).unwrap_or_default()
    }

    /// Ends an operation, and all of its children that are not built yet.
    fn abandon(&mut self, operation: OperationId, reason: &str) {
        let numbers = self.unfinished(operation);
        // First: nothing that its children's ends bring about shall carry it on.
        self.operations.remove(&operation);
        numbers.into_iter().for_each(|number| self.give_up(number, reason));
    }

    pub(crate) fn child_failed(&mut self, operation: OperationId, number: u64, reason: &str) {
        let Some(state) = self.operations.get_mut(&operation) else { return };
        if let Some(progress) = state.children.get_mut(&number)
            && !matches!(progress, Progress::Failed(_))
        {
            *progress = Progress::Failed(reason.to_owned());
            self.advance(operation);
        }
    }

    pub(crate) fn child_progressed(&mut self, operation: OperationId, number: u64, progress: Progress) {
        let Some(state) = self.operations.get_mut(&operation) else { return };
        if let Some(slot) = state.children.get_mut(&number) {
            *slot = progress;
            self.advance(operation);
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(&id) else { return };
        if let (Cause::GuestFork { call }, Freeze::NotYet) = (operation.cause, &operation.freeze) {
            self.advance_permit(id, call);
            return;
        }
        let Freeze::Done(source) = &operation.freeze else { return };
        // A child that is still being born finds its plan when it is.
        let numbers: Vec<u64> =
            operation.children.keys().copied().filter(|number| operation.awaits_plan(*number)).collect();
        if !numbers.is_empty() {
            let (source, paused) = (source.clone(), operation.paused);
            for number in numbers {
                // One that is given up lets the others advance, from in here.
                if !self.operations.get(&id).is_some_and(|operation| operation.awaits_plan(number)) {
                    continue;
                }
                match self.build(number, &source, paused) {
                    Ok(()) => self.mark_building(id, number),
                    Err(reason) => self.give_up(number, &reason),
                }
            }
        }
        self.conclude_guest_fork(id);
    }

    fn mark_building(&mut self, id: OperationId, number: u64) {
        self.note(number, Event::BuildSent);
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.children.insert(number, Progress::Building);
        }
    }

    /// A guest's fork is permitted when all children are there, and refused if one cannot be had.
    fn advance_permit(&mut self, id: OperationId, call: u32) {
        let Some(operation) = self.operations.get(&id) else { return };
        let parent = operation.parent;
        if let Some(reason) = operation.first_failure() {
            let reason = reason.to_owned();
            self.abandon(id, &reason);
            self.refuse(parent, call, ERROR_HOST, &reason);
        } else if operation.all_blank() {
            let first = operation.children.keys().next().copied().unwrap_or(0);
            self.answered(parent);
            self.order_freeze(parent, id, &Order::Permit { call, first });
        }
    }

    fn conclude_guest_fork(&mut self, id: OperationId) {
        let over = self.operations.get(&id).is_some_and(|state| state.cause.is_guest() && state.is_over());
        if over && let Some(operation) = self.operations.remove(&id) {
            let first = operation.children.keys().next().copied().unwrap_or(0);
            let built = operation.children.values().filter(|progress| **progress == Progress::Built).count();
            let children = u32::try_from(built).unwrap_or(u32::MAX);
            self.tell(FamilyEvent::GuestForked { parent: operation.parent, first, children });
        }
    }

    fn build(&self, number: u64, source: &Source, paused: bool) -> Result<(), String> {
        let generation = random().map_err(|error| describe(&error))?;
        let entropy: [u8; 64] = random().map_err(|error| describe(&error))?;
        let intent = Intent::Fork(NewIdentity { number, generation });
        let plan = plan(&source.state, &intent).map_err(|error| describe(&error))?;
        let (layers, descriptors): (Vec<_>, Vec<_>) = source.memory.descriptors().unzip();
        let memory = MemorySource::Layers { map: source.memory.map().clone(), layers };
        let order = Order::Build { plan: Box::new(plan), memory, entropy: ByteBuf::from(entropy), paused };
        let links = self.members.get(&number).and_then(|member| member.links.as_ref()).ok_or("it is gone")?;
        match links.send(&order, &descriptors) {
            // Its death is on its way, and says more.
            Ok(()) | Err(OrderError::Send(SendError::PeerGone(_))) => Ok(()),
            Err(error) => Err(describe(&error)),
        }
    }

    /// Counts a guest's call; false, and the end of the machine, if it has more than vCPUs that could have made them.
    fn admit_call(&mut self, parent: u64) -> bool {
        let vcpus = self.class.as_ref().map_or(0, |class| u32::from(class.vcpus));
        let Some(member) = self.members.get_mut(&parent) else { return false };
        member.asked += 1;
        if member.asked > vcpus {
            self.give_up(parent, "its process makes more calls than it has vCPUs");
            return false;
        }
        true
    }

    fn answered(&mut self, parent: u64) {
        if let Some(member) = self.members.get_mut(&parent) {
            member.asked = member.asked.saturating_sub(1);
        }
    }

    /// A guest calls fork().
    pub(crate) fn guest_asks_fork(&mut self, parent: u64, call: u32, children: u32, flags: u32) {
        if !self.admit_call(parent) {
            return;
        }
        if children == 0 || children > FORK_MAX_CHILDREN || flags & !FORK_PAUSED != 0 {
            // Its own device refuses these: the process does not say what its guest said.
            self.give_up(parent, "its process passes on a call that its guest port refuses");
            return;
        }
        if let Err(error) = self.quota.admit_guest(self.alive(), children, now_ns()) {
            let code = match error {
                QuotaError::NotGranted => ERROR_NOT_PERMITTED,
                QuotaError::Machines { .. } => ERROR_QUOTA,
                QuotaError::Rate { .. } => ERROR_RATE,
            };
            self.refuse(parent, call, code, &describe(&error));
            return;
        }
        let unforkable = self.members.get(&parent).and_then(|member| member.unforkable.clone());
        let begun = match unforkable {
            Some(reason) => Err(ForkError::Freeze { number: parent, reason }),
            None => self.begin(parent, children, Cause::GuestFork { call }, flags & FORK_PAUSED != 0),
        };
        if let Err(error) = begun {
            self.refuse(parent, call, ERROR_HOST, &describe(&error));
        }
    }

    /// A guest becomes a template; that takes no machine, so no quota.
    pub(crate) fn guest_asks_ready(&mut self, parent: u64, call: u32) {
        if !self.admit_call(parent) {
            return;
        }
        let operation = self.new_operation(Operation {
            parent,
            cause: Cause::GuestReady { call },
            paused: false,
            children: BTreeMap::new(),
            freeze: Freeze::NotYet,
            pause_ns: 0,
        });
        self.answered(parent);
        self.order_freeze(parent, operation, &Order::Permit { call, first: 0 });
    }

    fn refuse(&mut self, parent: u64, call: u32, code: u32, reason: &str) {
        self.answered(parent);
        self.tell(FamilyEvent::GuestForkRefused { parent, reason: reason.to_owned() });
        let links = self.members.get(&parent).and_then(|member| member.links.as_ref());
        let sent = links.map(|links| links.send(&Order::Refuse { call, code }, &[]));
        if let Some(Err(error)) = sent {
            self.give_up(parent, &format!("it cannot be told that its fork is refused: {}", describe(&error)));
        }
    }
}
