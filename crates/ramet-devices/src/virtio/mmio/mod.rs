//! The virtio-mmio transport, version 2 (virtio 1.2, section 4.2).
//!
//! ```text
//!                 DRIVER_OK                    quiesce()
//!   Off --------------------------> Serving ------------> Parked
//!    ^  <-- reset, broken rings ---    ^  <-- resume() ------+
//!    +---------------- reset ----------------------------------+
//!
//!   Off: queues are registers only.  Serving: the worker owns the queues.  Parked: they are values.
//! ```
//!
//! A driver that breaks the rules of its rings gets DEVICE_NEEDS_RESET and a configuration interrupt (section
//! 2.1.2), and its queues are let go. Queue registers are deaf while their queue is ready, and all of them once
//! DRIVER_OK is set: what was checked when a queue became ready stays true for as long as it is served.
//!
//! Deliberately absent: version 1, per-queue interrupts, notification data, shared-memory regions (their lengths
//! read as all ones, which means "none").

mod registers;
mod state;
#[cfg(test)]
mod tests;
mod worker;

use crate::interrupt::{drain, ring};
use crate::part::{EventSource, Interest, MmioPart, Part};
use crate::virtio::device::VirtioDevice;
use crate::{Counter, Interrupt};
use ramet_state::PartState;
use registers::{Effect, Registers};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vm_memory::GuestMemoryMmap;
use worker::{Queues, Worker};

const TOKEN_DOORBELL: u32 = 0;
/// First token of the device behind the transport.
pub(crate) const TOKEN_DEVICE: u32 = 1;

/// Offset of configuration space.
const CONFIGURATION: u64 = virtio_bindings::virtio_mmio::VIRTIO_MMIO_CONFIG as u64;
/// Bytes that one transport occupies on the bus.
const WINDOW_BYTES: u64 = ramet_abi::layout::PAGE_BYTES;
/// How many broken rings are worth a line in the log, per transport: the guest can break them for ever.
const FAULTS_LOGGED: u64 = 8;

/// Who has the queues.
enum Activity {
    Off,
    Parked(Queues),
    Serving(Worker),
}

/// A transport and the device behind it.
pub(crate) struct VirtioMmio<D> {
    id: String,
    registers: Registers,
    activity: Activity,
    device: D,
    quiesced: bool,
    memory: GuestMemoryMmap,
    interrupt: Arc<dyn Interrupt>,
    doorbell: Arc<OwnedFd>,
    faults: u64,
}

impl<D: VirtioDevice> VirtioMmio<D> {
    fn raise(&mut self, cause: u32) {
        self.registers.interrupt_status |= cause;
        self.interrupt.raise();
    }

    fn kick(&self) {
        ring(&self.doorbell, "ioeventfd");
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            // Serving happens in the event loop only, also for a notification that came by an exit.
            Effect::Notify => self.kick(),
            Effect::QueueReady(index) => {
                let queue = worker::build_queue(&self.registers, index, None, &self.memory);
                if let Err(error) = &queue {
                    tracing::debug!(part = self.id, %error, "Queue is not made ready");
                }
                self.registers.queues[index].ready = queue.is_ok();
            }
            Effect::StopQueue(index) => match &mut self.activity {
                Activity::Off => {}
                Activity::Parked(queues) => queues.stop(index),
                Activity::Serving(worker) => worker.stop(index),
            },
            Effect::Activate => self.activate(),
            Effect::Reset => {
                self.activity = Activity::Off;
                self.device.reset();
            }
        }
    }

    fn activate(&mut self) {
        match Queues::fresh(&self.registers, &self.memory) {
            Ok(queues) => {
                self.activity = Activity::Parked(queues);
                if !self.quiesced {
                    self.serve_from_now_on();
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Gives parked queues to a worker, as if each had been kicked.
    fn serve_from_now_on(&mut self) {
        self.activity = match std::mem::replace(&mut self.activity, Activity::Off) {
            Activity::Parked(queues) => Activity::Serving(Worker::new(queues)),
            other => other,
        };
        self.kick();
    }

    fn serve(&mut self) {
        let Activity::Serving(worker) = &mut self.activity else { return };
        match worker.serve(&mut self.device, &self.memory) {
            Ok(served) => {
                if served.interrupt {
                    self.raise(registers::INTERRUPT_USED);
                }
                if served.again {
                    self.kick();
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.faults = self.faults.saturating_add(1);
        if self.faults <= FAULTS_LOGGED {
            tracing::warn!(part = self.id, error, "Driver broke its rings; the device needs a reset");
        }
        self.activity = Activity::Off;
        self.registers.set_needs_reset();
        self.raise(registers::INTERRUPT_CONFIGURATION);
    }
}

impl<D: VirtioDevice> Part for VirtioMmio<D> {
    fn id(&self) -> &str {
        &self.id
    }

    fn quiesce(&mut self) {
        self.quiesced = true;
        self.activity = match std::mem::replace(&mut self.activity, Activity::Off) {
            Activity::Serving(worker) => Activity::Parked(worker.park()),
            other => other,
        };
    }

    fn save(&self) -> PartState {
        state::save(self)
    }

    fn resume(&mut self) {
        self.quiesced = false;
        self.device.resume();
        if self.registers.interrupt_status != 0 {
            self.interrupt.raise();
        }
        self.serve_from_now_on();
    }

    fn event_sources(&self) -> Vec<EventSource<'_>> {
        let mut sources = self.device.event_sources();
        sources.push(EventSource { fd: self.doorbell.as_fd(), token: TOKEN_DOORBELL, interest: Interest::Readable });
        sources
    }

    fn on_event(&mut self, token: u32) {
        if self.quiesced {
            return;
        }
        if token == TOKEN_DOORBELL {
            drain(&self.doorbell);
        } else {
            self.device.on_event(token);
        }
        self.serve();
    }

    fn counters(&self) -> Vec<Counter> {
        let mut counters = self.device.counters();
        counters.push(Counter { name: "broken_rings", value: self.faults });
        counters
    }
}

impl<D: VirtioDevice> MmioPart for VirtioMmio<D> {
    fn mmio_read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if offset >= CONFIGURATION {
            if offset < WINDOW_BYTES && data.len() <= 8 {
                self.device.read_config(offset - CONFIGURATION, data);
            }
            return;
        }
        // Section 4.2.2.2: registers are accessed with 32 bits, aligned.
        if let ([_, _, _, _], Ok(offset)) = (&*data, u32::try_from(offset)) {
            data.copy_from_slice(&self.registers.read::<D>(offset).to_le_bytes());
        }
    }

    fn mmio_write(&mut self, offset: u64, data: &[u8]) {
        if offset >= CONFIGURATION {
            if offset < WINDOW_BYTES && data.len() <= 8 {
                self.device.write_config(offset - CONFIGURATION, data);
            }
            return;
        }
        if let (Ok(value), Ok(offset)) = (<[u8; 4]>::try_from(data), u32::try_from(offset)) {
            let effect = self.registers.write::<D>(offset, u32::from_le_bytes(value));
            self.carry_out(effect);
        }
    }
}
