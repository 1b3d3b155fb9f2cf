use super::registers::{Effect, Registers};
use crate::virtio::console::Console;
use proptest::prelude::*;
use virtio_bindings::virtio_config::{VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_NEEDS_RESET};
use virtio_bindings::virtio_mmio as mmio;

/// Steps of a driver that keeps to the order of section 3.1.1, to be mixed with ones that do not.
fn write() -> impl Strategy<Value = (u32, u32)> {
    let status = prop_oneof![Just(1), Just(3), Just(11), Just(15), Just(0), Just(143), any::<u32>()];
    let features = [(mmio::VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1), (mmio::VIRTIO_MMIO_DRIVER_FEATURES, 1)];
    prop_oneof![
        4 => status.prop_map(|value| (mmio::VIRTIO_MMIO_STATUS, value)),
        4 => prop::sample::select(features.to_vec()),
        2 => (0u32..3).prop_map(|value| (mmio::VIRTIO_MMIO_QUEUE_SEL, value)),
        2 => (0u32..2).prop_map(|value| (mmio::VIRTIO_MMIO_QUEUE_READY, value)),
        8 => (0u32..0x40, prop_oneof![0u32..300, any::<u32>()]).prop_map(|(word, value)| (word * 4, value)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    /// No sequence of writes leads to registers that a restore would refuse, and a queue in use never changes.
    #[test]
    fn registers_stay_valid(writes in prop::collection::vec(write(), 0..200)) {
        let mut registers = Registers::initial::<Console>();
        for (offset, value) in writes {
            let before = registers.clone();
            let effect = registers.write::<Console>(offset, value);
            if let Effect::QueueReady(index) = effect {
                // The transport does this if the rings are in memory; sizes are its check, too.
                registers.queues[index].ready = registers.queues[index].size != 0;
            }
            prop_assert_eq!(registers.invalid::<Console>(), None);
            if effect == Effect::Reset {
                continue;
            }
            let status = registers.status;
            prop_assert_eq!(status & before.status, before.status, "status bits are only added");
            prop_assert_eq!(status & VIRTIO_CONFIG_S_NEEDS_RESET, 0, "which is the device's to set");
            let active = before.status & VIRTIO_CONFIG_S_DRIVER_OK != 0;
            for (was, is) in before.queues.iter().zip(&registers.queues) {
                if was.ready || active {
                    let stopped = super::registers::QueueRegisters { ready: is.ready, ..was.clone() };
                    prop_assert_eq!(is, &stopped, "only ready may change, of a queue that was ready");
                    prop_assert!(was.ready || !is.ready, "and only to not ready");
                }
            }
        }
    }

    #[test]
    fn reads_have_no_side_effects(writes in prop::collection::vec(write(), 0..50), offset: u32) {
        let mut registers = Registers::initial::<Console>();
        for (at, value) in writes {
            registers.write::<Console>(at, value);
        }
        let before = registers.clone();
        let offsets = (0..0x110).chain([offset]);
        let values: Vec<u32> = offsets.clone().map(|at| registers.read::<Console>(at)).collect();
        prop_assert_eq!(values, offsets.map(|at| registers.read::<Console>(at)).collect::<Vec<_>>());
        prop_assert_eq!(registers, before);
    }
}

#[test]
fn a_reset_keeps_nothing() {
    let mut registers = Registers::initial::<Console>();
    for (offset, value) in [(mmio::VIRTIO_MMIO_QUEUE_SEL, 1), (mmio::VIRTIO_MMIO_STATUS, 3)] {
        registers.write::<Console>(offset, value);
    }
    registers.interrupt_status = 3;
    registers.set_needs_reset();
    assert_eq!(registers.write::<Console>(mmio::VIRTIO_MMIO_STATUS, 0), Effect::Reset);
    assert_eq!(registers, Registers::initial::<Console>());
}
