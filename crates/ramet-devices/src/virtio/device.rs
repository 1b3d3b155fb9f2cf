//! What a device is to its transport.

use super::chain::{Chain, ChainError};
use crate::resources::Taken;
use crate::{BuildPartError, Counter, EventSource};
use ramet_state::CloneRule;
use serde::Serialize;
use serde::de::DeserializeOwned;
use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

/// How far [`VirtioDevice::serve`] came with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The driver has made nothing more available.
    Drained,
    /// There are buffers, but nothing to do with them until an event of the host.
    Waiting,
    /// The budget is used up, and there may be more to do.
    Exhausted,
}

/// Why a device cannot go on with its queues; it then needs a reset by its driver (virtio 1.2, section 2.1.2).
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The driver broke the rules of a ring.
    #[error("Ring is broken")]
    Queue(#[source] virtio_queue::Error),
    /// The driver broke the rules of a buffer.
    #[error("Buffer is broken")]
    Chain(#[source] ChainError),
    /// The host failed.
    #[error("Host gave no entropy")]
    Entropy(#[source] rustix::io::Errno),
}

/// How much may still be done in one event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    chains: u32,
    bytes: u64,
}

impl Budget {
    /// Most buffers of one queue in one event.
    pub(crate) const CHAINS: u32 = 64;
    /// Most bytes of one queue in one event, give or take one copy.
    pub(crate) const BYTES: u64 = 256 << 10;

    pub(crate) fn new() -> Self {
        Self { chains: Self::CHAINS, bytes: Self::BYTES }
    }

    /// Takes from the budget, and says whether anything is left.
    pub(crate) fn spend(&mut self, chains: u32, bytes: usize) -> bool {
        self.chains = self.chains.saturating_sub(chains);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        self.chains > 0 && self.bytes > 0
    }
}

/// A queue while it is being served.
pub(crate) struct QueueAccess<'a> {
    pub(crate) index: usize,
    pub(crate) queue: &'a mut Queue,
    pub(crate) memory: &'a GuestMemoryMmap,
    /// Room for the buffer at hand; kept by the worker so that serving does not allocate.
    pub(crate) chain: &'a mut Chain,
    pub(crate) budget: &'a mut Budget,
    /// Set when the device has used a buffer.
    pub(crate) used: &'a mut bool,
}

/// A device behind a transport.
pub(crate) trait VirtioDevice: Send + Sized + 'static {
    /// What the guest can see of it, besides what the transport holds.
    type Registers: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;
    /// Device type (virtio 1.2, section 5).
    const DEVICE_ID: u32;
    /// Kind of its part states.
    const KIND: &'static str;
    /// Version of its part states.
    const VERSION: u16;
    /// Feature bits of its own that it offers (0 to 23).
    const FEATURES: u64;
    /// Greatest size of each of its queues.
    const QUEUE_SIZES: &'static [u16];
    /// Handles of its own, besides the transport's.
    const HANDLES: &'static [(&'static str, CloneRule)];

    /// Registers at power-on.
    fn initial_registers() -> Self::Registers;
    /// Builds the device; its registers are untrusted.
    fn from_registers(registers: &Self::Registers, taken: &mut Taken) -> Result<Self, BuildPartError>;
    /// Its registers.
    fn registers(&self) -> Self::Registers;
    /// Back to power-on, as far as the driver can tell.
    fn reset(&mut self);
    /// Treats everything of the host as ready.
    fn resume(&mut self);
    /// Reads configuration space. `data` is zero, and stays so where there is nothing.
    fn read_config(&self, offset: u64, data: &mut [u8]);
    /// Writes configuration space.
    fn write_config(&mut self, offset: u64, data: &[u8]);
    /// Event sources besides the doorbell; their tokens start at [`super::mmio::TOKEN_DEVICE`].
    fn event_sources(&self) -> Vec<EventSource<'_>>;
    /// One of these has become ready; the queues are served afterwards.
    fn on_event(&mut self, token: u32);
    /// Serves a queue within its budget.
    fn serve(&mut self, access: &mut QueueAccess<'_>) -> Result<Served, ServeError>;
    /// What it counts.
    fn counters(&self) -> Vec<Counter>;
}
