//! States at power-on. Boot is one more producer of states: a fresh machine's parts are built from these.

use crate::serial::Serial;
use crate::virtio::{VirtioConsole, VirtioRng};
use crate::{ClonePage, GuestPort};
use ramet_state::PartState;

/// An 8250 serial port: port bus, [`crate::role::INTERRUPT`], [`crate::role::CONSOLE`].
pub fn serial(id: &str) -> PartState {
    Serial::initial_state(id)
}

/// A virtio console behind virtio-mmio: memory bus, [`crate::role::INTERRUPT`], [`crate::role::DOORBELL`],
/// [`crate::role::CONSOLE`].
pub fn virtio_console(id: &str) -> PartState {
    VirtioConsole::initial_state(id)
}

/// A virtio entropy source behind virtio-mmio: memory bus, [`crate::role::INTERRUPT`], [`crate::role::DOORBELL`].
pub fn virtio_rng(id: &str) -> PartState {
    VirtioRng::initial_state(id)
}

/// The clone page: memory, [`crate::role::INTERRUPT`], [`crate::role::IDENTITY`].
pub fn clone_page(id: &str) -> PartState {
    ClonePage::initial_state(id)
}

/// The guest port: port bus, no handles.
pub fn guest_port(id: &str) -> PartState {
    GuestPort::initial_state(id)
}
