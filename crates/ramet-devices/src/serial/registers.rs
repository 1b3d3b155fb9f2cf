//! The 8250's registers: `vm_superio`'s UART and what is needed around it.

use super::worker::Output;
use crate::Interrupt;
use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};

/// The UART.
pub(crate) type Uart = Serial<Line, NoEvents, Output>;

/// The interrupt identification register's "nothing is pending".
const IIR_NONE: u8 = 1;

/// Offset of the modem control register; reading it changes nothing.
pub(super) const MCR_OFFSET: u8 = 4;
/// Modem control: loopback.
pub(super) const MCR_LOOP: u8 = 0x10;

/// The UART's interrupt, which stays silent until armed: `vm_superio` triggers while it is being built, when the
/// vCPUs may not have been restored yet.
pub(crate) struct Line {
    interrupt: Arc<dyn Interrupt>,
    armed: Cell<bool>,
}

impl Line {
    pub(super) fn new(interrupt: Arc<dyn Interrupt>) -> Self {
        Self { interrupt, armed: Cell::new(false) }
    }

    pub(super) fn set_armed(&self, armed: bool) {
        self.armed.set(armed);
    }

    pub(super) fn raise(&self) {
        if self.armed.get() {
            self.interrupt.raise();
        }
    }
}

impl Trigger for Line {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.raise();
        Ok(())
    }
}

/// Whether the guest has been, or should have been, interrupted and has not looked yet.
pub(super) fn is_interrupt_pending(state: &SerialState) -> bool {
    state.interrupt_identification & IIR_NONE == 0
}

/// An offset as `vm_superio` counts them.
pub(super) fn offset(offset: u16) -> Option<u8> {
    u8::try_from(offset).ok().filter(|offset| *offset < 8)
}
