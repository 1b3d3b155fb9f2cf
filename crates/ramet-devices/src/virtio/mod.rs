//! virtio 1.2: transports, and the devices behind them.
//!
//! ```text
//!   VirtioMmio<D>  registers (pure), Worker (owns the queues), state
//!        | config, serve(queue), registers
//!        v
//!   D: VirtioDevice   Console | Rng
//! ```
//!
//! A device knows neither the transport's registers nor interrupts, status bits or eventfds; a transport knows
//! nothing of what a device's buffers mean. Queues are `virtio_queue`'s.
//!
//! Deliberately absent: legacy (0.9) devices, packed rings, indirect descriptors (not offered), queue reset,
//! shared-memory regions.

pub(crate) mod chain;
pub(crate) mod console;
pub(crate) mod device;
pub(crate) mod mmio;
pub(crate) mod rng;
#[cfg(test)]
mod tests;

pub(crate) use console::Console;
pub(crate) use mmio::VirtioMmio;
pub(crate) use rng::Rng;

/// A virtio console behind virtio-mmio.
pub(crate) type VirtioConsole = VirtioMmio<Console>;
/// A virtio entropy source behind virtio-mmio.
pub(crate) type VirtioRng = VirtioMmio<Rng>;
