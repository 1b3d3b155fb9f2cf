//! virtio-rng.

use ramet_devices::initial_state;
use ramet_state::PartState;
use testkit::conformance::Subject;
use testkit::rig::Rig;
use testkit::ring::Buffer;
use testkit::virtio::{BUFFERS, EVENT_IDX, VERSION_1, VirtioDriver, register, status};
use vm_memory::{Bytes, GuestAddress};

const DEVICE_ID: u32 = 4;
const BYTES: u32 = 32;

struct Rng {
    features: u64,
}

fn buffer(round: u8) -> Buffer {
    Buffer { address: BUFFERS + 0x100 * u64::from(round), bytes: BYTES, writable: true }
}

impl Subject for Rng {
    type Driver = VirtioDriver;

    fn initial_state(&self) -> PartState {
        initial_state::virtio_rng("rng")
    }

    fn attach(&self, rig: &mut Rig) -> VirtioDriver {
        VirtioDriver::attach(rig, DEVICE_ID, self.features, &[8])
    }

    fn exercise(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        VirtioDriver::acknowledge(rig);
        self.begin(driver, rig, round);
        rig.rest();
        self.complete(driver, rig, round);
    }

    fn begin(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        driver.rings[0].push(&rig.memory, &[buffer(round)]);
        rig.write_u32(register::QUEUE_NOTIFY, 0);
    }

    fn complete(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        let (_, written) = driver.rings[0].pop(&rig.memory).expect("the request was answered");
        assert_eq!(written, BYTES);
        let bytes: [u8; BYTES as usize] = rig.memory.read_obj(GuestAddress(buffer(round).address)).unwrap();
        assert_ne!(bytes, [0; BYTES as usize]);
        assert_eq!(VirtioDriver::acknowledge(rig), 1);
        assert!(rig.interrupt.count() > 0);
    }
}

testkit::conformance!(Rng { features: VERSION_1 });

mod with_event_index {
    use super::*;
    testkit::conformance!(Rng { features: VERSION_1 | EVENT_IDX });
}

fn running() -> (Rig, VirtioDriver) {
    let subject = Rng { features: VERSION_1 };
    let mut rig = Rig::boot(&subject.initial_state());
    let driver = subject.attach(&mut rig);
    (rig, driver)
}

#[test]
fn a_clone_draws_other_bytes() {
    let (mut parent, mut driver) = running();
    let subject = Rng { features: VERSION_1 };
    subject.begin(&mut driver, &mut parent, 1);
    parent.part.part_mut().quiesce();
    let mut child = parent.fork();
    for rig in [&mut parent, &mut child] {
        rig.part.part_mut().resume();
        rig.rest();
    }
    let drawn = |rig: &Rig| -> [u8; 32] { rig.memory.read_obj(GuestAddress(buffer(1).address)).unwrap() };
    assert_ne!(drawn(&parent), drawn(&child));
}

#[test]
fn a_large_request_is_answered_in_part() {
    let (mut rig, mut driver) = running();
    let large = Buffer { address: BUFFERS, bytes: 64 << 10, writable: true };
    driver.rings[0].push(&rig.memory, &[large]);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
    assert_eq!(driver.rings[0].pop(&rig.memory), Some((0, 4096)));
    let untouched: u64 = rig.memory.read_obj(GuestAddress(BUFFERS + 4096)).unwrap();
    assert_eq!(untouched, 0);
}

#[test]
fn a_request_may_be_scattered() {
    let (mut rig, mut driver) = running();
    let pieces = [(0, 3), (0x100, 0), (0x200, 5)];
    let pieces = pieces.map(|(at, bytes)| Buffer { address: BUFFERS + at, bytes, writable: true });
    driver.rings[0].push(&rig.memory, &pieces);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
    assert_eq!(driver.rings[0].pop(&rig.memory), Some((0, 8)));
}

#[test]
fn a_buffer_to_read_from_breaks_the_ring() {
    let (mut rig, mut driver) = running();
    driver.rings[0].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 8, writable: false }]);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
    assert_ne!(rig.read_u32(register::STATUS) & status::NEEDS_RESET, 0);
}
