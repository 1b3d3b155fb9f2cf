//! A driver that brings up a virtio-mmio device as section 3.1.1 of virtio 1.2 says.

use crate::rig::Rig;
use crate::ring::Ring;

/// Register offsets (section 4.2.2).
#[expect(missing_docs, reason = "the specification's names")]
pub mod register {
    pub const MAGIC: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SEL: u64 = 0x030;
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    pub const QUEUE_SIZE: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC: u64 = 0x080;
    pub const QUEUE_DRIVER: u64 = 0x090;
    pub const QUEUE_DEVICE: u64 = 0x0A0;
    pub const SHM_LEN_LOW: u64 = 0x0B0;
    pub const CONFIG: u64 = 0x100;
}

/// Device status bits (section 2.1).
#[expect(missing_docs, reason = "the specification's names")]
pub mod status {
    pub const ACKNOWLEDGE: u32 = 1;
    pub const DRIVER: u32 = 2;
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const NEEDS_RESET: u32 = 64;
    pub const FAILED: u32 = 128;
}

/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_EVENT_IDX.
pub const EVENT_IDX: u64 = 1 << 29;

/// Where a driver's rings begin; they stay below [`BUFFERS`].
pub const RINGS: u64 = 0x1000;
/// First address for buffers.
pub const BUFFERS: u64 = 0x10000;

/// A driver's knowledge.
#[derive(Clone, Debug)]
pub struct VirtioDriver {
    /// One per queue.
    pub rings: Vec<Ring>,
}

impl VirtioDriver {
    /// Resets the device, agrees on `features`, sets up one ring of each of the `sizes`, and says DRIVER_OK.
    ///
    /// # Panics
    /// If the device does not go along.
    pub fn attach(rig: &mut Rig, device_id: u32, features: u64, sizes: &[u16]) -> Self {
        let mut driver = Self::prepare(rig, device_id, features);
        let mut base = RINGS;
        for (index, size) in sizes.iter().enumerate() {
            let ring = Ring::new(base, *size);
            base = ring.end().next_multiple_of(16);
            driver.set_up(rig, u32::try_from(index).unwrap(), &ring);
            assert_eq!(rig.read_u32(register::QUEUE_READY), 1, "queue {index} is ready");
            driver.rings.push(ring);
        }
        Self::add_status(rig, status::DRIVER_OK);
        let all = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK;
        assert_eq!(rig.read_u32(register::STATUS), all);
        rig.rest();
        driver
    }

    /// The steps up to FEATURES_OK.
    ///
    /// # Panics
    /// If the device does not go along.
    pub fn prepare(rig: &mut Rig, device_id: u32, features: u64) -> Self {
        assert_eq!(rig.read_u32(register::MAGIC), 0x7472_6976);
        assert_eq!(rig.read_u32(register::VERSION), 2);
        assert_eq!(rig.read_u32(register::DEVICE_ID), device_id);
        rig.write_u32(register::STATUS, 0);
        assert_eq!(rig.read_u32(register::STATUS), 0);
        Self::add_status(rig, status::ACKNOWLEDGE);
        Self::add_status(rig, status::DRIVER);
        let mut offered = 0;
        for select in 0..2 {
            rig.write_u32(register::DEVICE_FEATURES_SEL, select);
            offered |= u64::from(rig.read_u32(register::DEVICE_FEATURES)) << (32 * select);
            rig.write_u32(register::DRIVER_FEATURES_SEL, select);
            rig.write_u32(register::DRIVER_FEATURES, (features >> (32 * select) & 0xFFFF_FFFF) as u32);
        }
        assert_eq!(offered & features, features, "the device offers what the test wants");
        Self::add_status(rig, status::FEATURES_OK);
        assert_ne!(rig.read_u32(register::STATUS) & status::FEATURES_OK, 0, "the features are accepted");
        Self { rings: Vec::new() }
    }

    /// Writes a queue's registers and asks for it to be ready.
    pub fn set_up(&self, rig: &mut Rig, index: u32, ring: &Ring) {
        rig.write_u32(register::QUEUE_SEL, index);
        rig.write_u32(register::QUEUE_SIZE, ring.size.into());
        let areas = [
            (register::QUEUE_DESC, ring.descriptors),
            (register::QUEUE_DRIVER, ring.driver),
            (register::QUEUE_DEVICE, ring.device),
        ];
        for (offset, address) in areas {
            rig.write_u32(offset, (address & 0xFFFF_FFFF) as u32);
            rig.write_u32(offset + 4, (address >> 32) as u32);
        }
        rig.write_u32(register::QUEUE_READY, 1);
    }

    /// Adds a bit to the device's status.
    pub fn add_status(rig: &mut Rig, bit: u32) {
        let before = rig.read_u32(register::STATUS);
        rig.write_u32(register::STATUS, before | bit);
    }

    /// Reads and acknowledges the interrupt status.
    pub fn acknowledge(rig: &mut Rig) -> u32 {
        let pending = rig.read_u32(register::INTERRUPT_STATUS);
        rig.write_u32(register::INTERRUPT_ACK, pending);
        pending
    }
}
