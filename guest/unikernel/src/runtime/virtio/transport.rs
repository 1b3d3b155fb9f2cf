//! One virtio-mmio transport: its registers and the steps that bring a device up.

use ramet_abi::layout::{PAGE_BYTES, VIRTIO_MMIO_BASE, VIRTIO_MMIO_COUNT};

use super::queue::QueueMemory;
use crate::runtime::mmio;

const MAGIC: u32 = 0x7472_6976;
const MODERN: u32 = 2;
/// Bytes of registers before the device's configuration.
pub const REGISTER_BYTES: u64 = 0x100;

mod register {
    pub(super) const MAGIC_VALUE: u64 = 0x000;
    pub(super) const VERSION: u64 = 0x004;
    pub(super) const DEVICE_ID: u64 = 0x008;
    pub(super) const DEVICE_FEATURES: u64 = 0x010;
    pub(super) const DEVICE_FEATURES_SELECT: u64 = 0x014;
    pub(super) const DRIVER_FEATURES: u64 = 0x020;
    pub(super) const DRIVER_FEATURES_SELECT: u64 = 0x024;
    pub(super) const QUEUE_SELECT: u64 = 0x030;
    pub(super) const QUEUE_SIZE_MAX: u64 = 0x034;
    pub(super) const QUEUE_SIZE: u64 = 0x038;
    pub(super) const QUEUE_READY: u64 = 0x044;
    pub(super) const QUEUE_NOTIFY: u64 = 0x050;
    pub(super) const STATUS: u64 = 0x070;
    pub(super) const QUEUE_DESCRIPTORS: u64 = 0x080;
    pub(super) const QUEUE_DRIVER: u64 = 0x090;
    pub(super) const QUEUE_DEVICE: u64 = 0x0A0;
}

mod status {
    pub(super) const ACKNOWLEDGE: u32 = 1;
    pub(super) const DRIVER: u32 = 2;
    pub(super) const DRIVER_OK: u32 = 4;
    pub(super) const FEATURES_OK: u32 = 8;
}

/// VIRTIO_F_VERSION_1 (bit 32), in the second word of the features.
const VERSION_1: u32 = 1;

/// A transport that is there.
#[derive(Clone, Copy)]
pub struct Transport {
    base: u64,
}

impl Transport {
    /// The transports of this machine, up to the first address that has none.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..VIRTIO_MMIO_COUNT)
            .map(|number| Self { base: VIRTIO_MMIO_BASE + number * PAGE_BYTES })
            .take_while(|transport| transport.read(register::MAGIC_VALUE) == MAGIC)
            .filter(|transport| transport.read(register::VERSION) == MODERN)
    }

    /// The address of its first register.
    pub fn base(self) -> u64 {
        self.base
    }

    /// The type of the device; 0 for none.
    pub fn device_id(self) -> u32 {
        self.read(register::DEVICE_ID)
    }

    /// Resets the device and brings it up with one queue, of this number, and no features but VERSION_1 (virtio 1.2,
    /// section 3.1.1). `None` if the device refuses.
    pub fn start(self, number: u32, queue: &QueueMemory) -> Option<()> {
        self.write(register::STATUS, 0);
        queue.clear();
        let mut state = status::ACKNOWLEDGE | status::DRIVER;
        self.write(register::STATUS, state);
        self.write(register::DEVICE_FEATURES_SELECT, 1);
        if self.read(register::DEVICE_FEATURES) & VERSION_1 == 0 {
            return None;
        }
        for (word, features) in [(0, 0), (1, VERSION_1)] {
            self.write(register::DRIVER_FEATURES_SELECT, word);
            self.write(register::DRIVER_FEATURES, features);
        }
        state |= status::FEATURES_OK;
        self.write(register::STATUS, state);
        if self.read(register::STATUS) & status::FEATURES_OK == 0 {
            return None;
        }
        self.start_queue(number, queue)?;
        self.write(register::STATUS, state | status::DRIVER_OK);
        Some(())
    }

    fn start_queue(self, number: u32, queue: &QueueMemory) -> Option<()> {
        self.write(register::QUEUE_SELECT, number);
        if self.read(register::QUEUE_SIZE_MAX) < QueueMemory::SIZE {
            return None;
        }
        self.write(register::QUEUE_SIZE, QueueMemory::SIZE);
        let addresses = [
            (register::QUEUE_DESCRIPTORS, queue.descriptors_address()),
            (register::QUEUE_DRIVER, queue.available_address()),
            (register::QUEUE_DEVICE, queue.used_address()),
        ];
        for (low, address) in addresses {
            self.write(low, address as u32);
            self.write(low + 4, (address >> 32) as u32);
        }
        self.write(register::QUEUE_READY, 1);
        Some(())
    }

    /// Tells the device that a queue has a new buffer.
    pub fn notify(self, queue: u32) {
        self.write(register::QUEUE_NOTIFY, queue);
    }

    fn read(self, register: u64) -> u32 {
        mmio::read(self.base + register)
    }

    fn write(self, register: u64, value: u32) {
        mmio::write(self.base + register, value);
    }
}
