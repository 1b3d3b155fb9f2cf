//! virtio-mmio, with the entropy source behind it: what drivers that break the rules get.

use ramet_devices::initial_state;
use testkit::rig::{RAM_BYTES, Rig};
use testkit::ring::{Buffer, Ring};
use testkit::virtio::{BUFFERS, EVENT_IDX, RINGS, VERSION_1, VirtioDriver, register, status};
use vm_memory::{Bytes, GuestAddress};

const RNG: u32 = 4;
const NEEDS_RESET_AND_ALL: u32 =
    status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK | status::NEEDS_RESET;

fn boot() -> Rig {
    Rig::boot(&initial_state::virtio_rng("rng"))
}

fn running() -> (Rig, VirtioDriver) {
    let mut rig = boot();
    let driver = VirtioDriver::attach(&mut rig, RNG, VERSION_1, &[8]);
    (rig, driver)
}

fn request(address: u64) -> Buffer {
    Buffer { address, bytes: 16, writable: true }
}

/// The device works: a request is answered.
fn assert_works(rig: &mut Rig, driver: &mut VirtioDriver) {
    driver.rings[0].push(&rig.memory, &[request(BUFFERS)]);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
    assert!(driver.rings[0].pop(&rig.memory).is_some());
}

/// The device has given up until a reset, said so, and works after one.
fn assert_needs_reset(rig: &mut Rig) {
    assert_eq!(rig.read_u32(register::STATUS), NEEDS_RESET_AND_ALL);
    assert_eq!(rig.read_u32(register::INTERRUPT_STATUS) & 2, 2, "a configuration interrupt is pending");
    assert!(rig.interrupt.count() > 0);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
    rig.part.part_mut().quiesce();
    let mut child = rig.fork();
    child.part.part_mut().resume();
    assert!(child.interrupt.count() > 0, "the interrupt is raised again");
    // The rings will be where the broken ones were.
    child.memory.write_slice(&vec![0; 0x1000], GuestAddress(RINGS)).unwrap();
    let mut driver = VirtioDriver::attach(&mut child, RNG, VERSION_1, &[8]);
    assert_works(&mut child, &mut driver);
}

fn kick(rig: &mut Rig) {
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.rest();
}

#[test]
fn features_that_are_not_on_offer_are_refused() {
    for wanted in [0, EVENT_IDX, VERSION_1 | 1 << 34, VERSION_1 | 1 << 28, u64::MAX] {
        let mut rig = boot();
        VirtioDriver::add_status(&mut rig, status::ACKNOWLEDGE);
        VirtioDriver::add_status(&mut rig, status::DRIVER);
        for select in 0..2 {
            rig.write_u32(register::DRIVER_FEATURES_SEL, select);
            rig.write_u32(register::DRIVER_FEATURES, (wanted >> (32 * select) & 0xFFFF_FFFF) as u32);
        }
        VirtioDriver::add_status(&mut rig, status::FEATURES_OK);
        VirtioDriver::add_status(&mut rig, status::DRIVER_OK);
        assert_eq!(rig.read_u32(register::STATUS), status::ACKNOWLEDGE | status::DRIVER, "{wanted:#x}");
    }
}

#[test]
fn features_are_fixed_once_agreed_on() {
    let (mut rig, mut driver) = running();
    rig.write_u32(register::DRIVER_FEATURES_SEL, 0);
    rig.write_u32(register::DRIVER_FEATURES, u32::MAX);
    let state = rig.part.part().save();
    assert!(Rig::build(&state, rig.fork().memory, testkit::rig::identity(1)).is_ok());
    assert_works(&mut rig, &mut driver);
}

#[test]
fn impossible_queues_never_become_ready() {
    let ram = RAM_BYTES as u64;
    let good = Ring::new(RINGS, 8);
    let with = |change: &dyn Fn(&mut Ring)| {
        let mut ring = good.clone();
        change(&mut ring);
        ring
    };
    let bad = [
        with(&|ring| ring.size = 0),
        with(&|ring| ring.size = 3),
        with(&|ring| ring.size = 128),
        with(&|ring| ring.size = 0x8000),
        with(&|ring| ring.descriptors += 8),
        with(&|ring| ring.driver += 1),
        with(&|ring| ring.device += 2),
        with(&|ring| ring.descriptors = ram),
        with(&|ring| ring.descriptors = ram - 0x70),
        with(&|ring| ring.driver = ram - 4),
        with(&|ring| ring.device = ram - 4),
        with(&|ring| ring.driver = u64::MAX - 1),
        with(&|ring| ring.device = u64::MAX - 3),
        with(&|ring| ring.descriptors = !15),
        with(&|ring| ring.driver = 0),
    ];
    for ring in bad {
        let mut rig = boot();
        let driver = VirtioDriver::prepare(&mut rig, RNG, VERSION_1);
        driver.set_up(&mut rig, 0, &ring);
        assert_eq!(rig.read_u32(register::QUEUE_READY), 0, "{ring:?}");
        VirtioDriver::add_status(&mut rig, status::DRIVER_OK);
        kick(&mut rig);
        assert_eq!(rig.read_u32(register::STATUS) & status::NEEDS_RESET, 0, "a queue that is not ready is no fault");
    }
    let mut rig = boot();
    let driver = VirtioDriver::prepare(&mut rig, RNG, VERSION_1);
    rig.write_u32(register::QUEUE_SEL, 0);
    rig.write_u32(register::QUEUE_SIZE, 0x1_0008);
    rig.write_u32(register::QUEUE_READY, 1);
    assert_eq!(rig.read_u32(register::QUEUE_READY), 0);
    driver.set_up(&mut rig, 0, &good);
    assert_eq!(rig.read_u32(register::QUEUE_READY), 1, "a driver may try again");
}

#[test]
fn queues_that_do_not_exist_read_as_zero() {
    let mut rig = boot();
    let driver = VirtioDriver::prepare(&mut rig, RNG, VERSION_1);
    for index in [1, 2, u32::MAX] {
        driver.set_up(&mut rig, index, &Ring::new(RINGS, 8));
        assert_eq!(rig.read_u32(register::QUEUE_SIZE_MAX), 0);
        assert_eq!(rig.read_u32(register::QUEUE_READY), 0);
    }
    rig.write_u32(register::QUEUE_NOTIFY, u32::MAX);
    rig.rest();
}

#[test]
fn a_queue_cannot_be_set_up_before_its_time() {
    let mut rig = boot();
    let ring = Ring::new(RINGS, 8);
    let driver = VirtioDriver { rings: Vec::new() };
    driver.set_up(&mut rig, 0, &ring);
    assert_eq!(rig.read_u32(register::QUEUE_READY), 0);
    rig.write_u32(register::STATUS, status::DRIVER_OK);
    assert_eq!(rig.read_u32(register::STATUS), 0);
}

#[test]
fn a_queue_in_use_is_deaf() {
    let (mut rig, mut driver) = running();
    let before = rig.part.part().save();
    for value in [0x8000, 0, u32::MAX] {
        for offset in [0x38, 0x80, 0x84, 0x90, 0x94, 0xA0, 0xA4] {
            rig.write_u32(offset, value);
        }
        rig.write_u32(register::QUEUE_READY, 1);
    }
    assert_eq!(rig.part.part().save(), before);
    assert_works(&mut rig, &mut driver);
}

#[test]
fn a_queue_that_was_set_up_is_deaf_before_driver_ok_too() {
    let mut rig = boot();
    let driver = VirtioDriver::prepare(&mut rig, RNG, VERSION_1);
    driver.set_up(&mut rig, 0, &Ring::new(RINGS, 8));
    let before = rig.part.part().save();
    driver.set_up(&mut rig, 0, &Ring::new(0x8000, 16));
    assert_eq!(rig.part.part().save(), before);
}

#[test]
fn a_stopped_queue_stays_stopped_until_a_reset() {
    let (mut rig, mut driver) = running();
    rig.write_u32(register::QUEUE_READY, 0);
    assert_eq!(rig.read_u32(register::QUEUE_READY), 0);
    driver.set_up(&mut rig, 0, &Ring::new(0x8000, 8));
    assert_eq!(rig.read_u32(register::QUEUE_READY), 0);
    driver.rings[0].push(&rig.memory, &[request(BUFFERS)]);
    kick(&mut rig);
    assert_eq!(driver.rings[0].pop(&rig.memory), None);
    let mut child = rig.fork();
    assert_eq!(child.part.part().save(), rig.part.part().save());
    child.memory.write_slice(&vec![0; 0x1000], GuestAddress(RINGS)).unwrap();
    child.part.part_mut().resume();
    let mut driver = VirtioDriver::attach(&mut child, RNG, VERSION_1, &[8]);
    assert_works(&mut child, &mut driver);
}

#[test]
fn a_reset_lets_go_of_work_in_flight() {
    let (mut rig, mut driver) = running();
    driver.rings[0].push(&rig.memory, &[request(BUFFERS)]);
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.write_u32(register::STATUS, 0);
    rig.rest();
    assert_eq!(driver.rings[0].pop(&rig.memory), None);
    let reset = rig.part.part().save();
    assert_eq!(reset, initial_state::virtio_rng("rng"));
    rig.memory.write_slice(&vec![0; 0x1000], GuestAddress(RINGS)).unwrap();
    let mut driver = VirtioDriver::attach(&mut rig, RNG, VERSION_1, &[4]);
    assert_works(&mut rig, &mut driver);
}

#[test]
fn status_bits_are_only_added() {
    let (mut rig, mut driver) = running();
    let before = rig.read_u32(register::STATUS);
    rig.write_u32(register::STATUS, status::ACKNOWLEDGE);
    rig.write_u32(register::STATUS, status::NEEDS_RESET | 0xFFFF_FF30);
    assert_eq!(rig.read_u32(register::STATUS), before);
    assert_works(&mut rig, &mut driver);
}

#[test]
fn only_pending_interrupts_are_acknowledged() {
    let (mut rig, mut driver) = running();
    assert_works(&mut rig, &mut driver);
    rig.write_u32(register::INTERRUPT_ACK, !1);
    assert_eq!(rig.read_u32(register::INTERRUPT_STATUS), 1);
    rig.write_u32(register::INTERRUPT_ACK, u32::MAX);
    assert_eq!(rig.read_u32(register::INTERRUPT_STATUS), 0);
}

#[test]
fn a_pending_interrupt_is_raised_again() {
    let (mut rig, mut driver) = running();
    assert_works(&mut rig, &mut driver);
    rig.part.part_mut().quiesce();
    let mut child = rig.fork();
    child.part.part_mut().resume();
    assert_eq!(child.interrupt.count(), 1);
    VirtioDriver::acknowledge(&mut child);
    child.part.part_mut().quiesce();
    let mut grandchild = child.fork();
    grandchild.part.part_mut().resume();
    assert_eq!(grandchild.interrupt.count(), 0);
}

#[test]
fn a_driver_that_wants_no_interrupts_gets_none() {
    let (mut rig, mut driver) = running();
    rig.memory.write_obj(1u16, GuestAddress(driver.rings[0].driver)).unwrap();
    assert_works(&mut rig, &mut driver);
    assert_eq!(rig.interrupt.count(), 0);
    assert_eq!(rig.read_u32(register::INTERRUPT_STATUS), 0);
}

#[test]
fn an_index_that_runs_away_needs_a_reset() {
    let (mut rig, driver) = running();
    driver.rings[0].set_available_index(&rig.memory, 9);
    kick(&mut rig);
    assert_needs_reset(&mut rig);
}

#[test]
fn a_head_out_of_range_needs_a_reset() {
    let (mut rig, mut driver) = running();
    driver.rings[0].offer(&rig.memory, 8);
    kick(&mut rig);
    assert_needs_reset(&mut rig);
}

#[test]
fn a_loop_of_descriptors_needs_a_reset() {
    let (mut rig, mut driver) = running();
    let ring = &mut driver.rings[0];
    ring.describe(&rig.memory, 0, request(BUFFERS), testkit::ring::NEXT, 1);
    ring.describe(&rig.memory, 1, request(BUFFERS), testkit::ring::NEXT, 0);
    ring.offer(&rig.memory, 0);
    kick(&mut rig);
    assert_needs_reset(&mut rig);
}

#[test]
fn a_chain_into_nowhere_needs_a_reset() {
    let (mut rig, mut driver) = running();
    let ring = &mut driver.rings[0];
    ring.describe(&rig.memory, 0, request(BUFFERS), testkit::ring::NEXT, 0xFFFF);
    ring.offer(&rig.memory, 0);
    kick(&mut rig);
    assert_needs_reset(&mut rig);
}

#[test]
fn buffers_outside_of_memory_need_a_reset() {
    let ram = RAM_BYTES as u64;
    for (address, bytes) in [(ram, 1), (ram - 8, 16), (u64::MAX, 2), (u64::MAX - 15, 16), (0, u32::MAX), (1 << 63, 16)]
    {
        let (mut rig, mut driver) = running();
        driver.rings[0].push(&rig.memory, &[Buffer { address, bytes, writable: true }]);
        kick(&mut rig);
        assert_needs_reset(&mut rig);
    }
}

#[test]
fn chains_of_four_gibibytes_need_a_reset() {
    let (mut rig, mut driver) = running();
    let piece = Buffer { address: 0, bytes: RAM_BYTES as u32, writable: true };
    let ring = &mut driver.rings[0];
    let table = 0x2000;
    // An indirect table, which is not on offer.
    let indirect = Buffer { address: table, bytes: 16 * 0x800, writable: false };
    ring.describe(&rig.memory, 0, indirect, testkit::ring::INDIRECT, 0);
    let mut far = ring.clone();
    far.descriptors = table;
    for index in 0..0x800 {
        far.describe(&rig.memory, index, piece, testkit::ring::NEXT, (index + 1) % 0x800);
    }
    ring.offer(&rig.memory, 0);
    kick(&mut rig);
    assert_needs_reset(&mut rig);
}

#[test]
fn a_queue_full_of_requests_is_served_in_bounded_steps() {
    let mut rig = boot();
    let mut driver = VirtioDriver::attach(&mut rig, RNG, VERSION_1, &[64]);
    for _ in 0..64 {
        driver.rings[0].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 0x10000, writable: true }]);
    }
    rig.write_u32(register::QUEUE_NOTIFY, 0);
    rig.step();
    let first = std::iter::from_fn(|| driver.rings[0].pop(&rig.memory)).count();
    assert!(rig.is_doorbell_rung(), "the device calls itself again");
    rig.rest();
    let later = std::iter::from_fn(|| driver.rings[0].pop(&rig.memory)).count();
    assert_eq!(first + later, 64);
}

#[test]
fn odd_accesses_read_as_zero_and_write_nothing() {
    let (mut rig, mut driver) = running();
    let before = rig.part.part().save();
    for offset in (0..0x120).chain([0x0FFC, 0x1000, u64::MAX]) {
        for bytes in [0, 1, 2, 3, 5, 8, 16] {
            let mut data = vec![0xA5; bytes];
            rig.read_bytes(offset, &mut data);
            if offset < 0x100 {
                assert!(data.iter().all(|byte| *byte == 0));
            }
            rig.write_bytes(offset, &vec![0xFF; bytes]);
        }
        if offset % 4 != 0 {
            assert_eq!(rig.read_u32(offset), 0);
            rig.write_u32(offset, u32::MAX);
        }
    }
    assert_eq!(rig.part.part().save(), before);
    assert_eq!(rig.read_u32(register::SHM_LEN_LOW), u32::MAX);
    assert_works(&mut rig, &mut driver);
}
