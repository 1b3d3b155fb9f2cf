//! virtio over MMIO (virtio 1.2, section 4.2), for drivers that have one buffer in flight and poll for it.
//!
//! Deliberately absent: interrupts, indirect descriptors, the event index, devices that configure themselves anew.

pub mod console;
pub mod entropy;
pub mod queue;
pub mod transport;

use transport::Transport;

/// The virtio devices of this machine.
pub struct Devices {
    /// The console.
    pub console: Option<console::Console>,
    /// The entropy device.
    pub entropy: Option<entropy::Entropy>,
}

impl Devices {
    /// Looks at every transport and starts the devices that there are drivers for. Each register access may be an
    /// exit to the monitor, so this takes a millisecond on some hosts.
    pub fn start() -> Self {
        let mut devices = Self { console: None, entropy: None };
        for transport in Transport::all() {
            match transport.device_id() {
                console::DEVICE_ID if devices.console.is_none() => {
                    devices.console = console::Console::start(transport);
                }
                entropy::DEVICE_ID if devices.entropy.is_none() => {
                    devices.entropy = entropy::Entropy::start(transport);
                }
                _ => {}
            }
        }
        devices
    }
}
