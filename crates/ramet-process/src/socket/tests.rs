//! Messages and descriptors over a socket within one process; between processes: tests/processes.

use std::fs::File;
use std::io::{Read, Seek, Write};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};

use super::*;

fn message(socket: &SeqPacket, limits: Limits) -> Message {
    match socket.recv(limits).unwrap() {
        Received::Message(message) => message,
        Received::EndOfStream => panic!("the stream ended"),
    }
}

fn send_raw(socket: &SeqPacket, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(KERNEL_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A pipe whose writing end reports EPIPE once every copy of the reading end is closed: a witness against leaks.
fn witness() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

fn all_copies_closed(write_end: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(write_end, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap();
    fds[0].revents().contains(rustix::event::PollFlags::ERR)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_as_sent(
        messages in prop::collection::vec((prop_oneof![0usize..300, 65_530usize..65_545, 100_000usize..600_000], 0usize..6), 1..6),
    ) {
        let (a, b) = SeqPacket::pair().unwrap();
        for (number, &(length, count)) in messages.iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 31 + number) as u8).collect();
            let files: Vec<OwnedFd> = (0..count)
                .map(|i| {
                    let fd = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
                    File::from(fd.try_clone().unwrap()).write_all(&[i as u8]).unwrap();
                    fd
                })
                .collect();
            let borrowed: Vec<_> = files.iter().map(|fd| fd.as_fd()).collect();
            a.send(&bytes, &borrowed).unwrap();
            let received = message(&b, Limits::default());
            prop_assert!(received.bytes == bytes);
            prop_assert_eq!(received.descriptors.len(), count);
            for (i, fd) in received.descriptors.into_iter().enumerate() {
                prop_assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
                let mut file = File::from(fd);
                file.rewind().unwrap();
                let mut content = Vec::new();
                file.read_to_end(&mut content).unwrap();
                prop_assert_eq!(content, vec![i as u8]);
            }
        }
        drop(a);
        prop_assert!(matches!(b.recv(Limits::default()).unwrap(), Received::EndOfStream));
    }

    #[test]
    fn any_packet_is_either_a_message_or_a_typed_error(packet in prop::collection::vec(any::<u8>(), 1..40), count in 0usize..3) {
        let (a, b) = SeqPacket::pair().unwrap();
        let (read_end, write_end) = witness();
        send_raw(&a, &packet, &vec![read_end.as_fd(); count]);
        drop(read_end);
        if let Ok(Received::Message(message)) = b.recv(Limits::default()) {
            prop_assert_eq!(&message.bytes[..], &packet[8..]);
            prop_assert_eq!(message.descriptors.len(), count);
        }
        prop_assert!(all_copies_closed(&write_end));
    }

    #[test]
    fn a_header_survives_encoding(kind in prop_oneof![Just(Kind::Inline), Just(Kind::Payload)], descriptors in 0usize..=251, bytes in 0usize..=MESSAGE_BYTES_MAX) {
        let header = Header { kind, descriptors, bytes };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

#[test]
fn an_empty_message_is_not_the_end() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&[], &[]).unwrap();
    drop(a);
    assert!(message(&b, Limits::default()).bytes.is_empty());
    assert!(matches!(b.recv(Limits::default()).unwrap(), Received::EndOfStream));
    assert!(matches!(b.recv(Limits::default()).unwrap(), Received::EndOfStream));
}

#[test]
fn as_many_descriptors_as_allowed_arrive_with_a_large_payload() {
    let (a, b) = SeqPacket::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    let bytes = vec![7; INLINE_BYTES_MAX + 1];
    a.send(&bytes, &[null.as_fd(); DESCRIPTORS_MAX]).unwrap();
    let received = message(&b, Limits::default());
    assert_eq!((received.bytes, received.descriptors.len()), (bytes, DESCRIPTORS_MAX));
    let too_many = a.send(&[], &[null.as_fd(); DESCRIPTORS_MAX + 1]);
    assert!(matches!(too_many, Err(SendError::TooManyDescriptors(251))));
    assert!(matches!(a.send(&vec![0; MESSAGE_BYTES_MAX + 1], &[]), Err(SendError::TooLong(_))));
}

#[test]
fn what_exceeds_the_receivers_limits_is_refused_and_the_next_message_arrives() {
    let (a, b) = SeqPacket::pair().unwrap();
    let (read_end, write_end) = witness();
    let limits = Limits { bytes: 100, descriptors: 2 };
    a.send(&[1; 101], &[read_end.as_fd()]).unwrap();
    a.send(&vec![1; INLINE_BYTES_MAX + 1], &[read_end.as_fd()]).unwrap();
    a.send(&[1; 100], &[read_end.as_fd(); 3]).unwrap();
    a.send(&[1; 100], &[read_end.as_fd(); 2]).unwrap();
    drop(read_end);
    assert!(matches!(b.recv(limits), Err(RecvError::TooLong { limit: 100 })));
    assert!(matches!(b.recv(limits), Err(RecvError::TooLong { limit: 100 })));
    assert!(matches!(b.recv(limits), Err(RecvError::TooManyDescriptors { found: 3, limit: 2 })));
    assert!(!all_copies_closed(&write_end));
    drop(message(&b, limits));
    assert!(all_copies_closed(&write_end));
}

#[test]
fn a_payload_that_its_sender_could_change_is_refused() {
    let (a, b) = SeqPacket::pair().unwrap();
    let unsealed = memfd_create("file", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(unsealed.try_clone().unwrap()).write_all(&[1, 2, 3]).unwrap();
    let header = Header { kind: Kind::Payload, descriptors: 1, bytes: 3 }.encode();
    send_raw(&a, &header, &[unsealed.as_fd()]);
    assert!(matches!(b.recv(Limits::default()), Err(RecvError::Payload(UnsealError::NotSealed { .. }))));

    let sealed = sealed::sealed_memfd("file", &[1, 2, 3]).unwrap();
    let longer = Header { kind: Kind::Payload, descriptors: 1, bytes: 4 }.encode();
    send_raw(&a, &longer, &[sealed.as_fd()]);
    assert!(matches!(b.recv(Limits::default()), Err(RecvError::Payload(UnsealError::Size { expected: 4, found: 3 }))));

    send_raw(&a, &header, &[]);
    assert!(matches!(b.recv(Limits::default()), Err(RecvError::Malformed(_))));
}

#[test]
fn what_a_peer_sent_before_it_went_arrives_although_it_left_our_messages_unread() {
    let (a, b) = SeqPacket::pair().unwrap();
    b.send(b"never read", &[]).unwrap();
    a.send(b"last words", &[]).unwrap();
    drop(a);
    assert_eq!(message(&b, Limits::default()).bytes, b"last words");
    assert!(matches!(b.recv(Limits::default()).unwrap(), Received::EndOfStream));
    assert!(matches!(b.send(b"anyone?", &[]), Err(SendError::PeerGone(_))));
}

#[test]
fn nothing_to_read_and_no_room_to_write_are_told_apart_from_errors() {
    let (a, b) = SeqPacket::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    assert!(matches!(b.recv(Limits::default()), Err(RecvError::NotReady)));
    a.set_nonblocking(true).unwrap();
    let refused = (0..10_000).map(|_| a.send(&[0; 4096], &[])).find_map(Result::err);
    assert!(matches!(refused, Some(SendError::NotReady)));
    let (a, b) = SeqPacket::pair().unwrap();
    b.set_timeouts(None, Some(Duration::from_millis(1))).unwrap();
    assert!(matches!(b.recv(Limits::default()), Err(RecvError::NotReady)));
    a.send(b"x", &[]).unwrap();
    assert_eq!(message(&b, Limits::default()).bytes, b"x");
}

#[test]
fn other_descriptors_are_not_taken_for_sockets() {
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(SeqPacket::from_fd(null.into()), Err(SocketError::NotSeqPacket)));
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(matches!(SeqPacket::from_fd(stream.into()), Err(SocketError::NotSeqPacket)));
    let (a, _b) = SeqPacket::pair().unwrap();
    assert!(SeqPacket::from_fd(a.into_fd()).is_ok());
}
