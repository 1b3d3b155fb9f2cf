//! State of the serial port.

use super::Serial;
use super::registers::Line;
use super::worker::Output;
use crate::backend::Backend;
use crate::resources::{Taken, handles, role};
use crate::{BuildPartError, PartResources, codec};
use ramet_state::{CloneRule, PartState};
use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};

pub(crate) const KIND: &str = "serial-8250";
pub(crate) const VERSION: u16 = 1;

const HANDLES: &[(&str, CloneRule)] = &[(role::INTERRUPT, CloneRule::Recreate), (role::CONSOLE, CloneRule::Recreate)];

/// Bytes that the receiver's FIFO holds.
const FIFO_BYTES: usize = 64;

const LSR_DATA_READY: u8 = 0x01;
const LSR_TRANSMITTER_EMPTY: u8 = 0x60;

/// The registers, as `vm_superio` names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registers {
    baud_divisor: [u8; 2],
    pub(super) interrupt_enable: u8,
    pub(super) interrupt_identification: u8,
    pub(super) line_control: u8,
    pub(super) line_status: u8,
    pub(super) modem_control: u8,
    pub(super) modem_status: u8,
    pub(super) scratch: u8,
    #[serde(with = "serde_bytes")]
    pub(super) fifo: Vec<u8>,
}

impl From<&SerialState> for Registers {
    fn from(state: &SerialState) -> Self {
        Self {
            baud_divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            fifo: state.in_buffer.clone(),
        }
    }
}

impl Registers {
    /// The first register with a value that no traffic leads to.
    pub(super) fn invalid(&self) -> Option<(&'static str, u64, &'static str)> {
        let ready = if self.fifo.is_empty() { 0 } else { LSR_DATA_READY };
        if self.fifo.len() > FIFO_BYTES {
            Some(("the FIFO's length in bytes", self.fifo.len() as u64, "the FIFO holds 64"))
        } else if self.interrupt_enable > 0x0F {
            Some(("interrupt enable", self.interrupt_enable.into(), "only the low 4 bits exist"))
        } else if !matches!(self.interrupt_identification, 1 | 2 | 4 | 6) {
            let rule = "it names none (1), transmitter empty (2), data (4) or both of these (6)";
            Some(("interrupt identification", self.interrupt_identification.into(), rule))
        } else if self.line_status != LSR_TRANSMITTER_EMPTY | ready {
            let rule = "the transmitter is always empty, and data is ready exactly when the FIFO holds some";
            Some(("line status", self.line_status.into(), rule))
        } else {
            None
        }
    }

    fn into_state(self) -> SerialState {
        SerialState {
            baud_divisor_low: self.baud_divisor[0],
            baud_divisor_high: self.baud_divisor[1],
            interrupt_enable: self.interrupt_enable,
            interrupt_identification: self.interrupt_identification,
            line_control: self.line_control,
            line_status: self.line_status,
            modem_control: self.modem_control,
            modem_status: self.modem_status,
            scratch: self.scratch,
            in_buffer: self.fifo,
        }
    }
}

pub(super) fn save(id: &str, state: &SerialState) -> PartState {
    PartState {
        id: id.to_owned(),
        kind: KIND.to_owned(),
        version: VERSION,
        registers: codec::encode(&Registers::from(state)),
        handles: handles(HANDLES),
    }
}

impl Serial {
    /// The state at power-on.
    pub(crate) fn initial_state(id: &str) -> PartState {
        save(id, &SerialState::default())
    }

    /// Builds the part, quiesced.
    ///
    /// # Errors
    /// [`BuildPartError`] if the state is invalid or a resource is missing.
    pub(crate) fn from_state(state: &PartState, resources: PartResources) -> Result<Self, BuildPartError> {
        let id = state.id.clone();
        let mut taken = Taken::new(state, HANDLES, resources)?;
        let registers: Registers =
            codec::decode(&state.registers).map_err(|source| BuildPartError::Registers { id: id.clone(), source })?;
        if let Some((field, value, rule)) = registers.invalid() {
            return Err(BuildPartError::Field { id, field, value, rule });
        }
        let line = Line::new(taken.interrupt()?);
        let output = Output::new(Backend::new(taken.console()?));
        let fifo_bytes = registers.fifo.len() as u64;
        let uart = vm_superio::Serial::from_state(&registers.into_state(), line, NoEvents, output);
        let refused = |_| BuildPartError::Field {
            id: id.clone(),
            field: "the FIFO's length in bytes",
            value: fifo_bytes,
            rule: "the FIFO holds 64",
        };
        let uart = uart.map_err(refused)?;
        Ok(Self::new(id, uart))
    }
}
