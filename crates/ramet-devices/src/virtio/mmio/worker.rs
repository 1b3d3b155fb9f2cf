//! The owner of a transport's queues while they are served.

use super::registers::Registers;
use crate::virtio::chain::Chain;
use crate::virtio::device::{Budget, QueueAccess, ServeError, Served, VirtioDevice};
use std::sync::atomic::Ordering;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// How far a queue has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Index of the next buffer in the driver's ring.
    pub(super) next_available: u16,
    /// Index of the next entry in the device's ring.
    pub(super) next_used: u16,
}

/// Why a queue cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueueError {
    /// Its registers contradict each other.
    #[error("Queue {index} has an impossible size or a misaligned area")]
    Registers {
        /// Which queue.
        index: usize,
        #[source]
        source: virtio_queue::Error,
    },
    /// Its rings are not in memory.
    #[error("Queue {index} has an area that is not in memory")]
    Memory {
        /// Which queue.
        index: usize,
    },
}

/// Makes a queue from its registers.
pub(super) fn build_queue(
    registers: &Registers,
    index: usize,
    position: Option<Position>,
    memory: &GuestMemoryMmap,
) -> Result<Queue, QueueError> {
    let queue = &registers.queues[index];
    let position = position.unwrap_or_default();
    let state = QueueState {
        // The largest size there is; the registers have been held to the device's own.
        max_size: 1 << 15,
        next_avail: position.next_available,
        next_used: position.next_used,
        event_idx_enabled: registers.has_event_index(),
        size: queue.size,
        ready: true,
        desc_table: queue.descriptor_area,
        avail_ring: queue.driver_area,
        used_ring: queue.device_area,
    };
    let queue = Queue::try_from(state).map_err(|source| QueueError::Registers { index, source })?;
    // `virtio_queue` takes a driver area at 0 for "not set".
    if state.avail_ring == 0 || !queue.is_valid(memory) {
        return Err(QueueError::Memory { index });
    }
    Ok(queue)
}

/// Queues at rest; `None` is a queue that is not ready.
#[derive(Debug)]
pub(super) struct Queues(Vec<Option<Queue>>);

impl Queues {
    /// Queues of a driver that has just become ready.
    pub(super) fn fresh(registers: &Registers, memory: &GuestMemoryMmap) -> Result<Self, QueueError> {
        let positions = registers.queues.iter().map(|queue| queue.ready.then(Position::default));
        Self::at(registers, positions, memory)
    }

    /// Queues that have come as far as `positions` say.
    pub(super) fn at(
        registers: &Registers,
        positions: impl Iterator<Item = Option<Position>>,
        memory: &GuestMemoryMmap,
    ) -> Result<Self, QueueError> {
        let queues = positions.enumerate().map(|(index, position)| match position {
            Some(_) => build_queue(registers, index, position, memory).map(Some),
            None => Ok(None),
        });
        queues.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn stop(&mut self, index: usize) {
        self.0[index] = None;
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = Option<Position>> {
        self.0.iter().map(|queue| {
            let position =
                |queue: &Queue| Position { next_available: queue.next_avail(), next_used: queue.next_used() };
            queue.as_ref().map(position)
        })
    }
}

/// What came of serving.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// The guest wants to hear of it.
    pub(super) interrupt: bool,
    /// There is more to do.
    pub(super) again: bool,
}

/// Owns the queues.
#[derive(Debug)]
pub(super) struct Worker {
    queues: Queues,
    chain: Chain,
}

impl Worker {
    pub(super) fn new(queues: Queues) -> Self {
        let longest = queues.0.iter().flatten().map(|queue| queue.size()).max().unwrap_or(0);
        Self { queues, chain: Chain::with_capacity(longest) }
    }

    /// Gives the queues back.
    pub(super) fn park(self) -> Queues {
        self.queues
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(super) fn stop(&mut self, index: usize) {
        self.queues.stop(index);
    }

    /// Serves every queue that is ready, each within its budget.
    pub(super) fn serve<D: VirtioDevice>(
        &mut self,
        device: &mut D,
        memory: &GuestMemoryMmap,
    ) -> Result<Outcome, ServeError> {
        let mut outcome = Outcome::default();
        for (index, queue) in self.queues.0.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            let mut budget = Budget::new();
            let mut used = false;
            let chain = &mut self.chain;
            let access = QueueAccess { index, queue, memory, chain, budget: &mut budget, used: &mut used };
            outcome.again |= serve_queue(device, access)?;
            if used && wants_interrupt(queue, memory)? {
                outcome.interrupt = true;
            }
        }
        Ok(outcome)
    }
}

/// Serves a queue until it is drained, has to wait, or the budget is used up; `true` in this last case.
fn serve_queue<D: VirtioDevice>(device: &mut D, mut access: QueueAccess<'_>) -> Result<bool, ServeError> {
    loop {
        access.queue.disable_notification(access.memory).map_err(ServeError::Queue)?;
        match device.serve(&mut access)? {
            Served::Exhausted => return Ok(true),
            // The next event of the host looks at the queue anyway.
            Served::Waiting => return Ok(false),
            Served::Drained => {
                if !access.queue.enable_notification(access.memory).map_err(ServeError::Queue)? {
                    return Ok(false);
                }
                // Something arrived in between. A driver that goes on like this must not hold us here.
                if !access.budget.spend(1, 0) {
                    return Ok(true);
                }
            }
        }
    }
}

/// Whether the driver wants an interrupt for the buffers that were used (sections 2.7.7 and 2.7.10).
fn wants_interrupt(queue: &mut Queue, memory: &GuestMemoryMmap) -> Result<bool, ServeError> {
    if queue.event_idx_enabled() {
        return queue.needs_notification(memory).map_err(ServeError::Queue);
    }
    std::sync::atomic::fence(Ordering::SeqCst);
    let flags = memory.load(GuestAddress(queue.avail_ring()), Ordering::Relaxed).map(u16::from_le);
    let flags = flags.map_err(|error| ServeError::Queue(virtio_queue::Error::GuestMemory(error)))?;
    Ok(u32::from(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0)
}
