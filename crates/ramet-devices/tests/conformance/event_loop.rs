//! Parts in a real event loop: registered once, edge-triggered, and woken by nothing else.
//!
//! The rig of the other tests makes spurious events; here a part that misses an edge hangs, and the test fails when
//! the loop has nothing to wait for any more.

use ramet_devices::{Interest, initial_state};
use rustix::event::Timespec;
use rustix::event::epoll;
use std::os::fd::OwnedFd;
use testkit::rig::Rig;
use testkit::ring::Buffer;
use testkit::virtio::{BUFFERS, VERSION_1, VirtioDriver, register};
use vm_memory::{Bytes, GuestAddress};

fn register(rig: &Rig) -> OwnedFd {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for source in rig.part.part().event_sources() {
        let mut flags = epoll::EventFlags::ET | epoll::EventFlags::IN;
        if source.interest == Interest::ReadableAndWritable {
            flags |= epoll::EventFlags::OUT;
        }
        epoll::add(&epoll, source.fd, epoll::EventData::new_u64(source.token.into()), flags).unwrap();
    }
    epoll
}

/// Runs the loop until no event is left.
fn run(epoll: &OwnedFd, rig: &mut Rig) {
    loop {
        let mut events = Vec::with_capacity(8);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_once)).unwrap();
        if events.is_empty() {
            return;
        }
        for event in events {
            rig.part.part_mut().on_event(event.data.u64() as u32);
        }
    }
}

#[test]
fn console_output_needs_no_other_wake_up_than_its_edges() {
    let mut rig = Rig::boot(&initial_state::virtio_console("console"));
    let epoll = register(&rig);
    let mut driver = VirtioDriver::attach(&mut rig, 3, VERSION_1, &[16, 16]);
    let once: Vec<u8> = (0..0x8000u32).map(|byte| (byte % 253) as u8).collect();
    rig.memory.write_slice(&once, GuestAddress(BUFFERS)).unwrap();
    for _ in 0..14 {
        driver.rings[1].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 0x8000, writable: false }]);
    }
    rig.ring_doorbell();
    let mut output = Vec::new();
    loop {
        run(&epoll, &mut rig);
        let more = rig.take_output();
        if more.is_empty() {
            break;
        }
        output.extend(more);
    }
    assert!(output == once.repeat(14), "{} bytes arrived", output.len());
}

#[test]
fn console_input_needs_no_other_wake_up_than_its_edges() {
    let mut rig = Rig::boot(&initial_state::virtio_console("console"));
    let epoll = register(&rig);
    let mut driver = VirtioDriver::attach(&mut rig, 3, VERSION_1, &[16, 16]);
    let mut received = Vec::new();
    let sent: Vec<u8> = (0..40_000u32).map(|byte| (byte % 249) as u8).collect();
    let mut unsent = &sent[..];
    while received.len() < sent.len() {
        let before = received.len();
        driver.rings[0].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 3000, writable: true }]);
        rig.write_u32(register::QUEUE_NOTIFY, 0);
        if !unsent.is_empty() {
            let count = rig.send_input(&unsent[..unsent.len().min(7000)]);
            unsent = &unsent[count..];
        }
        run(&epoll, &mut rig);
        while let Some((_, bytes)) = driver.rings[0].pop(&rig.memory) {
            let mut data = vec![0; bytes as usize];
            rig.memory.read_slice(&mut data, GuestAddress(BUFFERS)).unwrap();
            received.extend(data);
        }
        assert!(received.len() > before, "input stalls after {before} bytes");
    }
    assert!(received == sent);
}

#[test]
fn serial_needs_no_other_wake_up_than_its_edges() {
    let mut rig = Rig::boot(&initial_state::serial("serial"));
    let epoll = register(&rig);
    run(&epoll, &mut rig);
    let mut sent: u64 = 0;
    let mut output = Vec::new();
    // Until the socket and the buffer are both in use, but nothing is dropped.
    for _ in 0..150_000 {
        rig.write_u8(0, (sent % 241) as u8);
        sent += 1;
    }
    let dropped = rig.counter("output_dropped_bytes");
    loop {
        let more = rig.take_output();
        if more.is_empty() {
            break;
        }
        output.extend(more);
        run(&epoll, &mut rig);
    }
    assert_eq!(output.len() as u64 + dropped, sent);
    assert_eq!(rig.send_input(&[5; 300]), 300);
    run(&epoll, &mut rig);
    let mut received = 0;
    while rig.read_u8(5) & 1 != 0 {
        assert_eq!(rig.read_u8(0), 5);
        received += 1;
    }
    assert_eq!(received, 300);
}

/// What happens while a part is quiesced reaches it as edges that it has to ignore; resuming makes up for them.
#[test]
fn edges_that_came_while_quiesced_are_not_missed() {
    for (state, device) in [(initial_state::virtio_console("console"), 3), (initial_state::serial("serial"), 0)] {
        let mut rig = Rig::boot(&state);
        let epoll = register(&rig);
        let mut driver = VirtioDriver { rings: Vec::new() };
        if device == 3 {
            driver = VirtioDriver::attach(&mut rig, 3, VERSION_1, &[16, 16]);
            driver.rings[0].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 64, writable: true }]);
            // More than the socket takes, so that the console waits for room.
            for _ in 0..14 {
                driver.rings[1].push(&rig.memory, &[Buffer { address: 0x20000, bytes: 0x8000, writable: false }]);
            }
            rig.ring_doorbell();
        }
        run(&epoll, &mut rig);
        rig.part.part_mut().quiesce();
        let before = rig.take_output().len();
        assert_eq!(rig.send_input(b"meanwhile"), 9);
        run(&epoll, &mut rig);
        rig.part.part_mut().resume();
        run(&epoll, &mut rig);
        if device == 3 {
            assert_eq!(driver.rings[0].pop(&rig.memory), Some((0, 9)));
            assert!(before > 0 && !rig.take_output().is_empty());
        } else {
            assert_eq!(rig.read_u8(0), b'm');
        }
    }
}

#[test]
fn a_busy_part_calls_itself() {
    let mut rig = Rig::boot(&initial_state::virtio_rng("rng"));
    let epoll = register(&rig);
    let mut driver = VirtioDriver::attach(&mut rig, 4, VERSION_1, &[64]);
    for _ in 0..64 {
        driver.rings[0].push(&rig.memory, &[Buffer { address: BUFFERS, bytes: 0x10000, writable: true }]);
    }
    rig.ring_doorbell();
    run(&epoll, &mut rig);
    assert_eq!(std::iter::from_fn(|| driver.rings[0].pop(&rig.memory)).count(), 64);
}
