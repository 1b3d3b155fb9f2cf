//! The 8250.

use ramet_devices::initial_state;
use ramet_state::PartState;
use testkit::conformance::Subject;
use testkit::rig::Rig;

const DATA: u64 = 0;
const IER: u64 = 1;
const IIR: u64 = 2;
const LCR: u64 = 3;
const MCR: u64 = 4;
const LSR: u64 = 5;
const SCRATCH: u64 = 7;

struct Serial;

impl Subject for Serial {
    type Driver = ();

    fn initial_state(&self) -> PartState {
        initial_state::serial("serial")
    }

    fn attach(&self, rig: &mut Rig) {
        rig.write_u8(LCR, 0x80);
        rig.write_u8(DATA, 1);
        rig.write_u8(LCR, 0x03);
        rig.write_u8(IER, 0x01);
        rig.write_u8(SCRATCH, 0x5A);
        assert_eq!(rig.read_u8(SCRATCH), 0x5A);
    }

    fn exercise(&self, (): &mut (), rig: &mut Rig, round: u8) {
        rig.write_u8(DATA, round);
        assert_eq!(rig.take_output(), [round]);
        let interrupts = rig.interrupt.count();
        rig.send_input(&[round, !round]);
        rig.rest();
        assert_eq!(rig.interrupt.count(), interrupts + 1);
        assert_eq!(rig.read_u8(IIR) & 0x0F, 4, "received data is the cause");
        assert_eq!(rig.read_u8(LSR) & 1, 1);
        assert_eq!([rig.read_u8(DATA), rig.read_u8(DATA)], [round, !round]);
        assert_eq!(rig.read_u8(LSR) & 1, 0);
        assert_eq!(rig.read_u8(SCRATCH), 0x5A);
    }

    fn begin(&self, (): &mut (), rig: &mut Rig, round: u8) {
        rig.send_input(&[round]);
        rig.rest();
    }

    fn complete(&self, (): &mut (), rig: &mut Rig, round: u8) {
        assert!(rig.interrupt.count() > 0);
        assert_eq!(rig.read_u8(IIR) & 0x0F, 4);
        assert_eq!(rig.read_u8(DATA), round);
    }
}

testkit::conformance!(Serial);

fn running() -> Rig {
    let mut rig = Rig::boot(&Serial.initial_state());
    Serial.attach(&mut rig);
    rig
}

#[test]
fn output_that_nobody_reads_is_bounded_and_counted() {
    let mut rig = running();
    let written = 1 << 20;
    for byte in 0..written {
        rig.write_u8(DATA, (byte % 251) as u8);
    }
    let dropped = rig.counter("output_dropped_bytes");
    assert!(dropped > 0);
    let mut output = Vec::new();
    loop {
        let more = rig.take_output();
        if more.is_empty() {
            break;
        }
        output.extend(more);
        rig.rest();
    }
    assert_eq!(output.len() as u64 + dropped, written);
    let expected: Vec<u8> = (0..output.len()).map(|byte| (byte % 251) as u8).collect();
    assert_eq!(output, expected, "what was not dropped arrives in order");
}

#[test]
fn input_waits_in_the_socket_until_the_fifo_has_room() {
    let mut rig = running();
    let sent: Vec<u8> = (0..200).collect();
    assert_eq!(rig.send_input(&sent), sent.len());
    rig.rest();
    // No further event comes: reading the FIFO is what refills it.
    let mut received = Vec::new();
    while rig.read_u8(LSR) & 1 != 0 {
        received.push(rig.read_u8(DATA));
    }
    assert_eq!(received, sent);
}

#[test]
fn output_after_the_host_hung_up_is_dropped() {
    let mut rig = running();
    rig.hang_up();
    for _ in 0..100 {
        rig.write_u8(DATA, b'x');
    }
    rig.rest();
    assert_eq!(rig.counter("output_dropped_bytes"), 100);
}

#[test]
fn a_pending_interrupt_is_raised_again() {
    let mut rig = running();
    rig.send_input(b"a");
    rig.rest();
    rig.part.part_mut().quiesce();
    let mut child = rig.fork();
    assert_eq!(child.interrupt.count(), 0);
    child.part.part_mut().resume();
    assert_eq!(child.interrupt.count(), 1);
}

#[test]
fn a_clone_does_not_repeat_what_its_parent_wrote() {
    let mut rig = running();
    for _ in 0..1 << 20 {
        rig.write_u8(DATA, b'p');
    }
    rig.part.part_mut().quiesce();
    let mut child = rig.fork();
    child.part.part_mut().resume();
    child.rest();
    assert!(child.take_output().is_empty());
    child.write_u8(DATA, b'c');
    assert_eq!(child.take_output(), b"c");
}

#[test]
fn loopback_input_waits() {
    let mut rig = running();
    rig.write_u8(MCR, 0x18);
    rig.send_input(b"later");
    rig.rest();
    rig.write_u8(DATA, b'l');
    assert_eq!(rig.read_u8(DATA), b'l');
    assert_eq!(rig.read_u8(LSR) & 1, 0);
    rig.write_u8(MCR, 0x08);
    assert_eq!(rig.read_u8(DATA), b'l');
}

#[test]
fn odd_accesses_read_as_ones() {
    let mut rig = running();
    let mut two = [0; 2];
    rig.read_bytes(DATA, &mut two);
    assert_eq!(two, [0xFF; 2]);
    assert_eq!(rig.read_u8(8), 0xFF);
    assert_eq!(rig.read_u32(DATA), u32::MAX);
    rig.write_u32(DATA, 0x6161_6161);
    assert!(rig.take_output().is_empty());
}
