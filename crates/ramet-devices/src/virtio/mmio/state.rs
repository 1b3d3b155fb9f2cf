//! State of a transport and its device.

use super::registers::Registers;
use super::worker::{Position, QueueError, Queues};
use super::{Activity, VirtioMmio};
use crate::resources::{Taken, handles, role};
use crate::virtio::device::VirtioDevice;
use crate::{BuildPartError, PartResources, codec};
use ramet_state::{CloneRule, PartState};
use serde::{Deserialize, Serialize};

const HANDLES: [(&str, CloneRule); 2] = [(role::INTERRUPT, CloneRule::Recreate), (role::DOORBELL, CloneRule::Recreate)];

/// How far a queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueuePosition {
    pub(super) next_available: u16,
    pub(super) next_used: u16,
}

/// Transport, queues and device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved<R> {
    pub(super) transport: Registers,
    /// One per queue while the driver is ready, else none.
    pub(super) positions: Vec<Option<QueuePosition>>,
    pub(super) device: R,
}

fn all_handles<D: VirtioDevice>() -> Vec<(&'static str, CloneRule)> {
    HANDLES.iter().chain(D::HANDLES).copied().collect()
}

fn part_state<D: VirtioDevice>(id: &str, saved: &Saved<D::Registers>) -> PartState {
    PartState {
        id: id.to_owned(),
        kind: D::KIND.to_owned(),
        version: D::VERSION,
        registers: codec::encode(saved),
        handles: handles(&all_handles::<D>()),
    }
}

pub(super) fn save<D: VirtioDevice>(part: &VirtioMmio<D>) -> PartState {
    let queues = match &part.activity {
        Activity::Off => None,
        Activity::Parked(queues) => Some(queues),
        Activity::Serving(worker) => Some(worker.queues()),
    };
    let position = |Position { next_available, next_used }| QueuePosition { next_available, next_used };
    let positions = queues.into_iter().flat_map(Queues::positions).map(|found| found.map(position));
    let saved =
        Saved { transport: part.registers.clone(), positions: positions.collect(), device: part.device.registers() };
    part_state::<D>(&part.id, &saved)
}

impl<D: VirtioDevice> VirtioMmio<D> {
    /// The state at power-on.
    pub(crate) fn initial_state(id: &str) -> PartState {
        let transport = Registers::initial::<D>();
        part_state::<D>(id, &Saved { transport, positions: Vec::new(), device: D::initial_registers() })
    }

    /// Builds the part, quiesced.
    ///
    /// # Errors
    /// [`BuildPartError`] if the state is invalid or a resource is missing.
    pub(crate) fn from_state(state: &PartState, resources: PartResources) -> Result<Self, BuildPartError> {
        let id = state.id.clone();
        let mut taken = Taken::new(state, &all_handles::<D>(), resources)?;
        let Saved { transport: registers, positions, device } = codec::decode::<Saved<D::Registers>>(&state.registers)
            .map_err(|source| BuildPartError::Registers { id: id.clone(), source })?;
        let field = |(field, value, rule)| BuildPartError::Field { id: id.clone(), field, value, rule };
        if let Some(invalid) = registers.invalid::<D>() {
            return Err(field(invalid));
        }
        let activity = if registers.is_active() {
            let ready = registers.queues.iter().map(|queue| queue.ready);
            if !positions.iter().map(Option::is_some).eq(ready) {
                let rule = "there is one for each queue that is ready";
                return Err(field(("number of queue positions", positions.len() as u64, rule)));
            }
            let position = |QueuePosition { next_available, next_used }| Position { next_available, next_used };
            let positions = positions.into_iter().map(|found| found.map(position));
            let queues = Queues::at(&registers, positions, &taken.memory);
            let refused = |error| {
                let (QueueError::Registers { index, .. } | QueueError::Memory { index }) = error;
                field(("queue", index as u64, "its areas are aligned and in memory"))
            };
            Activity::Parked(queues.map_err(refused)?)
        } else if positions.is_empty() {
            Activity::Off
        } else {
            let rule = "there are none before the driver is ready";
            return Err(field(("number of queue positions", positions.len() as u64, rule)));
        };
        let (interrupt, doorbell) = (taken.interrupt()?, taken.doorbell()?);
        let device = D::from_registers(&device, &mut taken)?;
        let memory = taken.memory;
        Ok(Self { id, registers, activity, device, quiesced: true, memory, interrupt, doorbell, faults: 0 })
    }
}
