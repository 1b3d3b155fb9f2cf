//! Serving requests for entropy.

use super::Rng;
use super::state::{KIND, RngRegisters, VERSION};
use crate::resources::Taken;
use crate::virtio::chain::Direction;
use crate::virtio::device::{QueueAccess, ServeError, Served, VirtioDevice};
use crate::{BuildPartError, Counter, EventSource};
use ramet_state::CloneRule;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

/// Most bytes of one request that are filled; a driver asks again for more.
pub(crate) const REQUEST_MAX_BYTES: usize = 4096;

pub(super) fn fill(mut buffer: &mut [u8]) -> Result<(), ServeError> {
    while !buffer.is_empty() {
        match getrandom(&mut *buffer, GetRandomFlags::empty()) {
            Ok(count) => buffer = &mut buffer[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(ServeError::Entropy(error)),
        }
    }
    Ok(())
}

impl VirtioDevice for Rng {
    type Registers = RngRegisters;
    const DEVICE_ID: u32 = VIRTIO_ID_RNG;
    const KIND: &'static str = KIND;
    const VERSION: u16 = VERSION;
    const FEATURES: u64 = 0;
    const QUEUE_SIZES: &'static [u16] = &[64];
    const HANDLES: &'static [(&'static str, CloneRule)] = &[];

    fn initial_registers() -> RngRegisters {
        RngRegisters {}
    }

    fn from_registers(RngRegisters {}: &RngRegisters, _: &mut Taken) -> Result<Self, BuildPartError> {
        Ok(Self {})
    }

    fn registers(&self) -> RngRegisters {
        RngRegisters {}
    }

    fn reset(&mut self) {}

    fn resume(&mut self) {}

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        Vec::new()
    }

    fn on_event(&mut self, _token: u32) {}

    fn serve(&mut self, access: &mut QueueAccess<'_>) -> Result<Served, ServeError> {
        loop {
            if !access.peek(Direction::DeviceWritable)? {
                return Ok(Served::Drained);
            }
            let mut buffer = [0; REQUEST_MAX_BYTES];
            let wanted = usize::try_from(access.chain.bytes()).unwrap_or(REQUEST_MAX_BYTES).min(REQUEST_MAX_BYTES);
            fill(&mut buffer[..wanted])?;
            let written = access.chain.write(access.memory, &buffer[..wanted])?;
            access.finish(u32::try_from(written).unwrap_or(0))?;
            if !access.budget.spend(1, written) {
                return Ok(Served::Exhausted);
            }
        }
    }

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}
