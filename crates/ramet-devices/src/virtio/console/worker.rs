//! Moving bytes between the queues and the socket.

use super::state::{ConsoleRegisters, KIND, VERSION};
use super::{Console, config};
use crate::backend::{Backend, Received, Sent};
use crate::resources::{Taken, role};
use crate::virtio::chain::Direction;
use crate::virtio::device::{QueueAccess, ServeError, Served, VirtioDevice};
use crate::virtio::mmio::TOKEN_DEVICE;
use crate::{BuildPartError, Counter, EventSource, Interest};
use ramet_state::CloneRule;
use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;

/// receiveq of port 0; the other is transmitq.
const RECEIVE_QUEUE: usize = 0;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 4096;

impl Console {
    fn receive(&mut self, access: &mut QueueAccess<'_>) -> Result<Served, ServeError> {
        loop {
            if !access.peek(Direction::DeviceWritable)? {
                return Ok(Served::Drained);
            }
            let room = usize::try_from(access.chain.bytes()).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            if room == 0 {
                access.finish(0)?;
                if access.budget.spend(1, 0) {
                    continue;
                }
                return Ok(Served::Exhausted);
            }
            if !self.input_ready {
                return Ok(Served::Waiting);
            }
            let mut buffer = [0; COPY_BYTES];
            let Received::Bytes(count) = self.backend.receive(&mut buffer[..room]) else {
                self.input_ready = false;
                return Ok(Served::Waiting);
            };
            let written = access.chain.write(access.memory, &buffer[..count])?;
            access.finish(u32::try_from(written).unwrap_or(0))?;
            if !access.budget.spend(1, written) {
                return Ok(Served::Exhausted);
            }
        }
    }

    fn transmit(&mut self, access: &mut QueueAccess<'_>) -> Result<Served, ServeError> {
        loop {
            if !access.peek(Direction::DeviceReadable)? {
                return Ok(Served::Drained);
            }
            let mut buffer = [0; COPY_BYTES];
            let done = self.registers.transmitted_bytes;
            let count = access.chain.read(access.memory, done, &mut buffer)?;
            if count == 0 {
                self.registers.transmitted_bytes = 0;
                access.finish(0)?;
                if access.budget.spend(1, 0) {
                    continue;
                }
                return Ok(Served::Exhausted);
            }
            if !self.output_ready {
                return Ok(Served::Waiting);
            }
            let taken = self.offer(&buffer[..count]);
            if taken == 0 {
                self.output_ready = false;
                return Ok(Served::Waiting);
            }
            self.registers.transmitted_bytes = done.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
            if !access.budget.spend(0, taken) {
                return Ok(Served::Exhausted);
            }
        }
    }

    /// Offers bytes to the host; returns how many are off the guest's hands.
    fn offer(&mut self, bytes: &[u8]) -> usize {
        match self.backend.send(bytes) {
            Sent::Taken(count) => count,
            Sent::Full => 0,
            Sent::Gone => {
                self.dropped_bytes = self.dropped_bytes.saturating_add(bytes.len() as u64);
                bytes.len()
            }
        }
    }
}

impl VirtioDevice for Console {
    type Registers = ConsoleRegisters;
    const DEVICE_ID: u32 = VIRTIO_ID_CONSOLE;
    const KIND: &'static str = KIND;
    const VERSION: u16 = VERSION;
    const FEATURES: u64 = config::F_SIZE | config::F_EMERG_WRITE;
    const QUEUE_SIZES: &'static [u16] = &[128, 128];
    const HANDLES: &'static [(&'static str, CloneRule)] = &[(role::CONSOLE, CloneRule::Recreate)];

    fn initial_registers() -> ConsoleRegisters {
        ConsoleRegisters::initial()
    }

    fn from_registers(registers: &ConsoleRegisters, taken: &mut Taken) -> Result<Self, BuildPartError> {
        let backend = Backend::new(taken.console()?);
        let registers = registers.clone();
        Ok(Self { registers, backend, input_ready: false, output_ready: false, dropped_bytes: 0 })
    }

    fn registers(&self) -> ConsoleRegisters {
        self.registers.clone()
    }

    fn reset(&mut self) {
        self.registers.transmitted_bytes = 0;
    }

    fn resume(&mut self) {
        self.input_ready = true;
        self.output_ready = true;
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        config::read(config::Size { columns: self.registers.columns, rows: self.registers.rows }, offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let Some(character) = config::emergency_character(offset, data) else { return };
        if self.offer(&[character]) == 0 {
            self.dropped_bytes = self.dropped_bytes.saturating_add(1);
        }
    }

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        let interest = Interest::ReadableAndWritable;
        vec![EventSource { fd: self.backend.as_fd(), token: TOKEN_DEVICE, interest }]
    }

    fn on_event(&mut self, _token: u32) {
        self.input_ready = true;
        self.output_ready = true;
    }

    fn serve(&mut self, access: &mut QueueAccess<'_>) -> Result<Served, ServeError> {
        if access.index == RECEIVE_QUEUE { self.receive(access) } else { self.transmit(access) }
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "output_dropped_bytes", value: self.dropped_bytes }]
    }
}
