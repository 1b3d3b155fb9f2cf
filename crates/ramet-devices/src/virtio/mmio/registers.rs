//! The transport's registers (virtio 1.2, section 4.2.2): what they hold, and what a write asks for.
//!
//! Pure: no memory, no queues, no interrupt. A driver that does not keep to the order of section 3.1.1 is not told
//! off; what it writes out of order does not take.

use crate::virtio::device::VirtioDevice;
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as mmio;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// "virt".
const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
/// "RAMT".
const VENDOR: u32 = u32::from_le_bytes(*b"RAMT");

/// InterruptStatus: a buffer was used.
pub(super) const INTERRUPT_USED: u32 = mmio::VIRTIO_MMIO_INT_VRING;
/// InterruptStatus: the configuration, or the device's status, has changed.
pub(super) const INTERRUPT_CONFIGURATION: u32 = mmio::VIRTIO_MMIO_INT_CONFIG;

const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

const DRIVER_BITS: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE
    | VIRTIO_CONFIG_S_DRIVER
    | VIRTIO_CONFIG_S_FEATURES_OK
    | VIRTIO_CONFIG_S_DRIVER_OK
    | VIRTIO_CONFIG_S_FAILED;

/// What a write asks of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// There may be work in a queue.
    Notify,
    /// The driver wants this queue to be ready, which its addresses have to allow.
    QueueReady(usize),
    /// This queue is not to be served any more.
    StopQueue(usize),
    /// The driver is ready.
    Activate,
    /// The registers are back at power-on.
    Reset,
}

/// One queue's registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueRegisters {
    /// Size in descriptors; 0 after a size that is impossible.
    pub(super) size: u16,
    pub(super) ready: bool,
    pub(super) descriptor_area: u64,
    pub(super) driver_area: u64,
    pub(super) device_area: u64,
}

/// All registers of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registers {
    pub(super) device_features_select: u32,
    pub(super) driver_features_select: u32,
    pub(super) driver_features: u64,
    pub(super) queue_select: u32,
    pub(super) interrupt_status: u32,
    pub(super) status: u32,
    pub(super) configuration_generation: u32,
    pub(super) queues: Vec<QueueRegisters>,
}

/// All features that a device and its transport offer.
pub(super) fn offered<D: VirtioDevice>() -> u64 {
    D::FEATURES | VERSION_1 | EVENT_IDX
}

fn half(value: u64, select: u32) -> u32 {
    match select {
        0 => (value & 0xFFFF_FFFF) as u32,
        1 => (value >> 32) as u32,
        _ => 0,
    }
}

fn with_half(value: u64, select: u32, half: u32) -> u64 {
    match select {
        0 => value & !0xFFFF_FFFF | u64::from(half),
        1 => value & 0xFFFF_FFFF | u64::from(half) << 32,
        _ => value,
    }
}

impl Registers {
    /// At power-on.
    pub(super) fn initial<D: VirtioDevice>() -> Self {
        let queues = D::QUEUE_SIZES.iter().map(|&size| QueueRegisters {
            size,
            ready: false,
            descriptor_area: 0,
            driver_area: 0,
            device_area: 0,
        });
        Self {
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            interrupt_status: 0,
            status: 0,
            configuration_generation: 0,
            queues: queues.collect(),
        }
    }

    pub(super) fn has(&self, status: u32) -> bool {
        self.status & status == status
    }

    /// Whether the driver is ready and the device has not given up.
    pub(super) fn is_active(&self) -> bool {
        self.has(VIRTIO_CONFIG_S_DRIVER_OK) && !self.has(VIRTIO_CONFIG_S_NEEDS_RESET)
    }

    /// Whether suppression by index was negotiated.
    pub(super) fn has_event_index(&self) -> bool {
        self.driver_features & EVENT_IDX != 0
    }

    /// Whether the driver may set up its queues.
    fn is_setting_up(&self) -> bool {
        self.has(VIRTIO_CONFIG_S_FEATURES_OK)
            && self.status & (VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_NEEDS_RESET) == 0
    }

    /// Section 2.1.2.
    pub(super) fn set_needs_reset(&mut self) {
        self.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
    }

    fn queue_index(&self) -> Option<usize> {
        usize::try_from(self.queue_select).ok().filter(|index| *index < self.queues.len())
    }

    /// Reads the register at `offset`; what is not there, or only written, is 0.
    pub(super) fn read<D: VirtioDevice>(&self, offset: u32) -> u32 {
        let queue = self.queue_index();
        match offset {
            mmio::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            mmio::VIRTIO_MMIO_VERSION => VERSION,
            mmio::VIRTIO_MMIO_DEVICE_ID => D::DEVICE_ID,
            mmio::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            mmio::VIRTIO_MMIO_DEVICE_FEATURES => half(offered::<D>(), self.device_features_select),
            mmio::VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |index| D::QUEUE_SIZES[index].into()),
            mmio::VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |index| self.queues[index].ready.into()),
            mmio::VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt_status,
            mmio::VIRTIO_MMIO_STATUS => self.status,
            // No shared-memory region: all ones (section 4.2.2).
            mmio::VIRTIO_MMIO_SHM_LEN_LOW..=mmio::VIRTIO_MMIO_SHM_BASE_HIGH if offset.is_multiple_of(4) => u32::MAX,
            mmio::VIRTIO_MMIO_CONFIG_GENERATION => self.configuration_generation,
            _ => 0,
        }
    }

    /// Writes the register at `offset`.
    pub(super) fn write<D: VirtioDevice>(&mut self, offset: u32, value: u32) -> Effect {
        match offset {
            mmio::VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_select = value,
            mmio::VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            mmio::VIRTIO_MMIO_DRIVER_FEATURES => {
                if self.has(VIRTIO_CONFIG_S_DRIVER) && !self.has(VIRTIO_CONFIG_S_FEATURES_OK) {
                    self.driver_features = with_half(self.driver_features, self.driver_features_select, value);
                }
            }
            mmio::VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value,
            mmio::VIRTIO_MMIO_QUEUE_NOTIFY => return Effect::Notify,
            mmio::VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt_status &= !value,
            mmio::VIRTIO_MMIO_STATUS => return self.write_status::<D>(value),
            _ => return self.write_queue::<D>(offset, value),
        }
        Effect::None
    }

    fn write_queue<D: VirtioDevice>(&mut self, offset: u32, value: u32) -> Effect {
        let Some(index) = self.queue_index() else { return Effect::None };
        let (setting_up, active) = (self.is_setting_up(), self.is_active());
        let queue = &mut self.queues[index];
        if offset == mmio::VIRTIO_MMIO_QUEUE_READY {
            return match (value, queue.ready) {
                (1, false) if setting_up => Effect::QueueReady(index),
                (0, true) if setting_up || active => {
                    queue.ready = false;
                    Effect::StopQueue(index)
                }
                _ => Effect::None,
            };
        }
        if !setting_up || queue.ready {
            return Effect::None;
        }
        match offset {
            mmio::VIRTIO_MMIO_QUEUE_NUM => {
                let possible = |size: &u16| size.is_power_of_two() && *size <= D::QUEUE_SIZES[index];
                queue.size = u16::try_from(value).ok().filter(possible).unwrap_or(0);
            }
            mmio::VIRTIO_MMIO_QUEUE_DESC_LOW => queue.descriptor_area = with_half(queue.descriptor_area, 0, value),
            mmio::VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.descriptor_area = with_half(queue.descriptor_area, 1, value),
            mmio::VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.driver_area = with_half(queue.driver_area, 0, value),
            mmio::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.driver_area = with_half(queue.driver_area, 1, value),
            mmio::VIRTIO_MMIO_QUEUE_USED_LOW => queue.device_area = with_half(queue.device_area, 0, value),
            mmio::VIRTIO_MMIO_QUEUE_USED_HIGH => queue.device_area = with_half(queue.device_area, 1, value),
            _ => {}
        }
        Effect::None
    }

    /// Section 2.1: bits are only ever added; 0 resets.
    fn write_status<D: VirtioDevice>(&mut self, value: u32) -> Effect {
        if value == 0 {
            let generation = self.configuration_generation;
            *self = Self { configuration_generation: generation, ..Self::initial::<D>() };
            return Effect::Reset;
        }
        let before = self.status;
        let mut added = value & DRIVER_BITS & !before;
        if added & VIRTIO_CONFIG_S_FEATURES_OK != 0 && !self.are_features_acceptable::<D>() {
            added &= !VIRTIO_CONFIG_S_FEATURES_OK;
        }
        if (before | added) & VIRTIO_CONFIG_S_FEATURES_OK == 0
            || before & (VIRTIO_CONFIG_S_NEEDS_RESET | VIRTIO_CONFIG_S_FAILED) != 0
        {
            added &= !VIRTIO_CONFIG_S_DRIVER_OK;
        }
        self.status |= added;
        if added & VIRTIO_CONFIG_S_DRIVER_OK != 0 { Effect::Activate } else { Effect::None }
    }

    fn are_features_acceptable<D: VirtioDevice>(&self) -> bool {
        let features = self.driver_features;
        features & !offered::<D>() == 0 && features & VERSION_1 != 0 && self.has(VIRTIO_CONFIG_S_DRIVER)
    }

    /// The first register with a value that no driver's accesses lead to.
    pub(super) fn invalid<D: VirtioDevice>(&self) -> Option<(&'static str, u64, &'static str)> {
        let status = self.status;
        if status & !(DRIVER_BITS | VIRTIO_CONFIG_S_NEEDS_RESET) != 0 {
            return Some(("device status", status.into(), "unknown bits are set"));
        }
        if status & VIRTIO_CONFIG_S_FEATURES_OK != 0 && !self.are_features_acceptable::<D>() {
            return Some(("driver features", self.driver_features, "they were agreed on but are not on offer"));
        }
        if status & VIRTIO_CONFIG_S_DRIVER_OK != 0 && status & VIRTIO_CONFIG_S_FEATURES_OK == 0 {
            return Some(("device status", status.into(), "the driver is ready without agreed features"));
        }
        if self.interrupt_status & !(INTERRUPT_USED | INTERRUPT_CONFIGURATION) != 0 {
            return Some(("interrupt status", self.interrupt_status.into(), "unknown bits are set"));
        }
        if self.queues.len() != D::QUEUE_SIZES.len() {
            return Some(("number of queues", self.queues.len() as u64, "the device has another number"));
        }
        let mut sizes = self.queues.iter().zip(D::QUEUE_SIZES);
        let odd = sizes.find(|(queue, max)| {
            queue.size > **max || !(queue.size.is_power_of_two() || (queue.size == 0 && !queue.ready))
        });
        odd.map(|(queue, _)| ("queue size", queue.size.into(), "it is a power of two up to the device's maximum"))
    }
}
