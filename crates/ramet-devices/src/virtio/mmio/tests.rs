//! The registers alone, and states that no driver leads to. Drivers are tested in `tests/conformance`.

use super::VirtioMmio;
use super::registers::{Effect, QueueRegisters, Registers};
use super::state::{QueuePosition, Saved};
use crate::virtio::console::Console;
use crate::virtio::device::VirtioDevice;
use crate::virtio::rng::Rng;
use crate::{BuildPartError, Interrupt, PartResources, Resource, codec, role};
use proptest::prelude::*;
use ramet_state::PartState;
use std::sync::Arc;
use virtio_bindings::virtio_config::{VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_NEEDS_RESET};
use virtio_bindings::virtio_mmio as mmio;
use vm_memory::{GuestAddress, GuestMemoryMmap};

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
                    let stopped = QueueRegisters { ready: is.ready, ..was.clone() };
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

#[test]
fn impossible_registers_are_named() {
    type Change = fn(&mut Registers);
    let changes: [(&str, Change); 10] = [
        ("device status", |registers| registers.status = 0x10),
        ("device status", |registers| registers.status = VIRTIO_CONFIG_S_DRIVER_OK),
        ("driver features", |registers| registers.status = 0xB),
        ("driver features", |registers| (registers.status, registers.driver_features) = (0xB, u64::MAX)),
        ("interrupt status", |registers| registers.interrupt_status = 4),
        ("number of queues", |registers| registers.queues.truncate(1)),
        ("number of queues", |registers| registers.queues.push(registers.queues[0].clone())),
        ("queue size", |registers| registers.queues[1].size = 3),
        ("queue size", |registers| registers.queues[1].size = 256),
        ("queue size", |registers| (registers.queues[0].size, registers.queues[0].ready) = (0, true)),
    ];
    assert_eq!(Registers::initial::<Console>().invalid::<Console>(), None);
    for (field, change) in changes {
        let mut registers = Registers::initial::<Console>();
        change(&mut registers);
        assert_eq!(registers.invalid::<Console>().map(|(field, ..)| field), Some(field));
    }
}

type SavedRng = Saved<<Rng as VirtioDevice>::Registers>;

struct Silent;

impl Interrupt for Silent {
    fn raise(&self) {}
}

fn build(saved: &SavedRng) -> Result<VirtioMmio<Rng>, BuildPartError> {
    let state = PartState { registers: codec::encode(saved), ..VirtioMmio::<Rng>::initial_state("rng") };
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
    let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let resources = PartResources::new(memory)
        .with(role::INTERRUPT, Resource::Interrupt(Arc::new(Silent)))
        .with(role::DOORBELL, Resource::Doorbell(Arc::new(doorbell)));
    VirtioMmio::from_state(&state, resources)
}

/// An entropy source whose driver is ready, with a ring at 0x1000.
fn active() -> SavedRng {
    let mut transport = Registers::initial::<Rng>();
    transport.status = 15;
    transport.driver_features = 1 << 32;
    transport.queues[0] =
        QueueRegisters { size: 8, ready: true, descriptor_area: 0x1000, driver_area: 0x2000, device_area: 0x3000 };
    let position = QueuePosition { next_available: 5, next_used: 4 };
    Saved { transport, positions: vec![Some(position)], device: Rng::initial_registers() }
}

#[test]
fn impossible_states_are_refused_by_field() {
    type Change = fn(&mut SavedRng);
    let changes: [(&str, Change); 9] = [
        ("number of queues", |saved| saved.transport.queues.clear()),
        ("number of queue positions", |saved| saved.positions.clear()),
        ("number of queue positions", |saved| saved.positions[0] = None),
        ("number of queue positions", |saved| saved.positions.push(None)),
        ("number of queue positions", |saved| saved.transport.queues[0].ready = false),
        ("number of queue positions", |saved| saved.transport.status = 11),
        ("queue", |saved| saved.transport.queues[0].descriptor_area = 0x1001),
        ("queue", |saved| saved.transport.queues[0].device_area = 0x4000),
        ("queue", |saved| saved.transport.queues[0].driver_area = 0),
    ];
    assert!(build(&active()).is_ok());
    for (expected, change) in changes {
        let mut saved = active();
        change(&mut saved);
        match build(&saved) {
            Err(BuildPartError::Field { field, .. }) => assert_eq!(field, expected),
            Err(other) => panic!("{expected}: {other}"),
            Ok(_) => panic!("{expected}: built"),
        }
    }
}
