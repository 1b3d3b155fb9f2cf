//! virtio-console.

use ramet_devices::initial_state;
use ramet_state::PartState;
use testkit::conformance::Subject;
use testkit::rig::Rig;
use testkit::ring::Buffer;
use testkit::virtio::{BUFFERS, EVENT_IDX, VERSION_1, VirtioDriver, register};
use vm_memory::{Bytes, GuestAddress};

const DEVICE_ID: u32 = 3;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Where the tests keep received bytes; transmitted ones are from [`BUFFERS`] on.
const INPUT: u64 = BUFFERS + 0x8000;

struct Console {
    features: u64,
}

const PLAIN: Console = Console { features: VERSION_1 };

fn transmit(driver: &mut VirtioDriver, rig: &mut Rig, bytes: &[u8]) {
    rig.memory.write_slice(bytes, GuestAddress(BUFFERS)).unwrap();
    let (first, second) = (bytes.len() as u32 / 2, bytes.len() as u32 - bytes.len() as u32 / 2);
    let pieces = [(BUFFERS, first), (BUFFERS + u64::from(first), second)];
    let pieces = pieces.map(|(address, bytes)| Buffer { address, bytes, writable: false });
    driver.rings[TRANSMIT].push(&rig.memory, &pieces);
    rig.write_u32(register::QUEUE_NOTIFY, 1);
}

fn text(round: u8) -> Vec<u8> {
    (0..40).map(|byte| byte ^ round).collect()
}

impl Subject for Console {
    type Driver = VirtioDriver;

    fn initial_state(&self) -> PartState {
        initial_state::virtio_console("console")
    }

    fn attach(&self, rig: &mut Rig) -> VirtioDriver {
        VirtioDriver::attach(rig, DEVICE_ID, self.features, &[16, 16])
    }

    fn exercise(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        VirtioDriver::acknowledge(rig);
        self.begin(driver, rig, round);
        rig.rest();
        self.complete(driver, rig, round);

        driver.rings[RECEIVE].push(&rig.memory, &[Buffer { address: INPUT, bytes: 64, writable: true }]);
        rig.write_u32(register::QUEUE_NOTIFY, 0);
        rig.rest();
        assert_eq!(driver.rings[RECEIVE].pop(&rig.memory), None, "nothing has come yet");
        rig.send_input(&text(!round));
        rig.rest();
        let (_, bytes) = driver.rings[RECEIVE].pop(&rig.memory).expect("input was received");
        assert_eq!(bytes, 40);
        let mut received = [0; 40];
        rig.memory.read_slice(&mut received, GuestAddress(INPUT)).unwrap();
        assert_eq!(received[..], text(!round));
        assert_eq!(VirtioDriver::acknowledge(rig), 1);
    }

    fn begin(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        transmit(driver, rig, &text(round));
    }

    fn complete(&self, driver: &mut VirtioDriver, rig: &mut Rig, round: u8) {
        let (_, bytes) = driver.rings[TRANSMIT].pop(&rig.memory).expect("output was sent");
        assert_eq!(bytes, 0, "a device writes nothing into what it only reads");
        assert_eq!(rig.take_output(), text(round));
        assert_eq!(VirtioDriver::acknowledge(rig), 1);
    }
}

testkit::conformance!(PLAIN);

mod with_event_index {
    use super::*;
    testkit::conformance!(Console { features: VERSION_1 | EVENT_IDX });
}

fn running() -> (Rig, VirtioDriver) {
    let mut rig = Rig::boot(&PLAIN.initial_state());
    let driver = PLAIN.attach(&mut rig);
    (rig, driver)
}

/// 12 buffers of 64 KiB each, all of the same bytes: more than a socket holds.
fn flood(driver: &mut VirtioDriver, rig: &mut Rig) -> Vec<u8> {
    let once: Vec<u8> = (0..0x8000u32).map(|byte| (byte % 253) as u8).collect();
    rig.memory.write_slice(&once, GuestAddress(BUFFERS)).unwrap();
    let twice = [Buffer { address: BUFFERS, bytes: 0x8000, writable: false }; 2];
    for _ in 0..6 {
        driver.rings[TRANSMIT].push(&rig.memory, &twice);
    }
    rig.write_u32(register::QUEUE_NOTIFY, 1);
    rig.rest();
    once.repeat(12)
}

fn drain(rig: &mut Rig) -> Vec<u8> {
    let mut output = Vec::new();
    loop {
        let more = rig.take_output();
        if more.is_empty() {
            return output;
        }
        output.extend(more);
        rig.rest();
    }
}

#[test]
fn a_full_socket_holds_the_guest_back_and_loses_nothing() {
    let (mut rig, mut driver) = running();
    let sent = flood(&mut driver, &mut rig);
    let mut used = std::iter::from_fn(|| driver.rings[TRANSMIT].pop(&rig.memory)).count();
    assert!(used < 6, "the socket cannot have taken all of it");
    let output = drain(&mut rig);
    assert!(output == sent, "{} of {} bytes arrived, or not in order", output.len(), sent.len());
    used += std::iter::from_fn(|| driver.rings[TRANSMIT].pop(&rig.memory)).count();
    assert_eq!(used, 6);
    assert_eq!(rig.counter("output_dropped_bytes"), 0);
}

#[test]
fn output_under_way_is_neither_lost_nor_doubled_by_a_fork() {
    let (mut parent, mut driver) = running();
    let sent = flood(&mut driver, &mut parent);
    parent.part.part_mut().quiesce();
    let taken_before = parent.observe().output.len();
    let mut child = parent.fork();
    parent.part.part_mut().resume();
    parent.rest();
    let output = drain(&mut parent);
    assert!(output == sent, "parent: {} of {} bytes", output.len(), sent.len());
    child.part.part_mut().resume();
    child.rest();
    let output = drain(&mut child);
    // What the parent's host had taken was the parent's; the rest was still in the queue that both have.
    assert!(output == sent[taken_before..], "child: {} of {} bytes", output.len(), sent.len() - taken_before);
}

#[test]
fn output_after_the_host_hung_up_is_taken_and_counted() {
    let (mut rig, mut driver) = running();
    rig.hang_up();
    let sent = flood(&mut driver, &mut rig);
    assert_eq!(std::iter::from_fn(|| driver.rings[TRANSMIT].pop(&rig.memory)).count(), 6);
    assert_eq!(rig.counter("output_dropped_bytes"), sent.len() as u64);
}

#[test]
fn input_waits_in_the_socket_until_there_is_a_buffer() {
    let (mut rig, mut driver) = running();
    rig.send_input(b"early");
    rig.rest();
    assert_eq!(rig.observe().interrupts, 0);
    for (address, bytes, expected) in [(INPUT, 2, "ea"), (INPUT + 16, 8, "rly")] {
        driver.rings[RECEIVE].push(&rig.memory, &[Buffer { address, bytes, writable: true }]);
        rig.ring_doorbell();
        rig.rest();
        let (_, bytes) = driver.rings[RECEIVE].pop(&rig.memory).expect("input was received");
        let mut received = vec![0; bytes as usize];
        rig.memory.read_slice(&mut received, GuestAddress(address)).unwrap();
        assert_eq!(received, expected.as_bytes());
    }
}

#[test]
fn an_emergency_write_needs_no_queues() {
    let mut rig = Rig::boot(&PLAIN.initial_state());
    rig.write_u32(register::CONFIG + 8, u32::from(b'!'));
    rig.write_u8(register::CONFIG + 8, b'?');
    rig.write_u8(register::CONFIG + 9, b'x');
    assert_eq!(rig.take_output(), b"!?");
}

#[test]
fn configuration_says_the_size() {
    let mut rig = Rig::boot(&PLAIN.initial_state());
    let mut size = [0; 4];
    rig.read_bytes(register::CONFIG, &mut size);
    assert_eq!(size, [80, 0, 25, 0]);
    assert_eq!(rig.read_u32(register::CONFIG + 4), 1);
    assert_eq!(rig.read_u32(register::CONFIG + 12), 0);
    assert_eq!(rig.read_u32(register::CONFIG + 10), 0);
    rig.write_u32(register::CONFIG, 0);
    rig.read_bytes(register::CONFIG, &mut size);
    assert_eq!(size, [80, 0, 25, 0]);
}

#[test]
fn a_buffer_of_no_bytes_is_given_back() {
    let (mut rig, mut driver) = running();
    let empty = |writable| Buffer { address: BUFFERS, bytes: 0, writable };
    driver.rings[TRANSMIT].push(&rig.memory, &[empty(false)]);
    driver.rings[RECEIVE].push(&rig.memory, &[empty(true)]);
    rig.ring_doorbell();
    rig.rest();
    assert_eq!(driver.rings[TRANSMIT].pop(&rig.memory), Some((0, 0)));
    assert_eq!(driver.rings[RECEIVE].pop(&rig.memory), Some((0, 0)));
}
