//! Descriptor chains. Broken rings are tested in `tests/conformance`, with a device behind them.

use super::chain::{Chain, ChainError, Direction};
use super::device::{Budget, QueueAccess, ServeError};
use proptest::prelude::*;
use testkit::ring::{Buffer, Ring};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 16;
const MEMORY_BYTES: usize = 0x10000;
const BUFFERS: u64 = 0x2000;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap()
}

fn queue(ring: &Ring) -> Queue {
    let mut queue = Queue::new(SIZE).unwrap();
    queue.set_desc_table_address(Some(ring.descriptors as u32), None);
    queue.set_avail_ring_address(Some(ring.driver as u32), None);
    queue.set_used_ring_address(Some(ring.device as u32), None);
    queue.set_ready(true);
    queue
}

/// Peeks at the next buffer of `queue`, and shows what was found to `look`.
fn peek<T>(
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
    direction: Direction,
    look: impl FnOnce(&mut QueueAccess<'_>, bool) -> T,
) -> Result<T, ServeError> {
    let (mut chain, mut budget, mut used) = (Chain::with_capacity(SIZE), Budget::new(), false);
    let (chain, budget, used) = (&mut chain, &mut budget, &mut used);
    let mut access = QueueAccess { index: 0, queue, memory, chain, budget, used };
    let found = access.peek(direction)?;
    Ok(look(&mut access, found))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However a buffer is cut into descriptors, it reads and writes as one.
    #[test]
    fn a_chain_is_one_buffer(
        pieces in prop::collection::vec(0u32..40, 1..usize::from(SIZE)),
        offset in 0u32..400,
        wanted in 0usize..400,
    ) {
        let memory = memory();
        let mut ring = Ring::new(0x1000, SIZE);
        let total: u32 = pieces.iter().sum();
        let content: Vec<u8> = (0..total).map(|byte| byte as u8).collect();
        let mut at = 0;
        let mut buffers = Vec::new();
        for (index, bytes) in pieces.iter().enumerate() {
            let address = BUFFERS + 0x100 * index as u64;
            let piece = &content[at as usize..(at + bytes) as usize];
            memory.write_slice(piece, GuestAddress(address)).unwrap();
            buffers.push(Buffer { address, bytes: *bytes, writable: false });
            at += bytes;
        }
        ring.push(&memory, &buffers);
        let mut queue = queue(&ring);
        let read = peek(&mut queue, &memory, Direction::DeviceReadable, |access, found| {
            assert!(found && access.chain.bytes() == total);
            let mut data = vec![0; wanted];
            let count = access.chain.read(&memory, offset, &mut data).unwrap();
            data.truncate(count);
            data
        }).unwrap();
        let expected: Vec<u8> = content.iter().skip(offset as usize).take(wanted).copied().collect();
        prop_assert_eq!(read, expected);

        for buffer in &mut buffers {
            buffer.writable = true;
        }
        let mut ring = Ring::new(0x1000, SIZE);
        ring.push(&memory, &buffers);
        let fresh: Vec<u8> = (0..wanted).map(|byte| !(byte as u8)).collect();
        let written = peek(&mut queue, &memory, Direction::DeviceWritable, |access, _| {
            access.chain.write(&memory, &fresh).unwrap()
        }).unwrap();
        prop_assert_eq!(written, wanted.min(total as usize));
        let mut seen = Vec::new();
        for buffer in &buffers {
            let mut piece = vec![0; buffer.bytes as usize];
            memory.read_slice(&mut piece, GuestAddress(buffer.address)).unwrap();
            seen.extend(piece);
        }
        prop_assert_eq!(&seen[..written], &fresh[..written]);
        prop_assert_eq!(&seen[written..], &content[written..], "what found no bytes is left alone");
    }
}

#[test]
fn a_peek_takes_nothing_and_a_finish_takes_one() {
    let memory = memory();
    let mut ring = Ring::new(0x1000, SIZE);
    let head = ring.push(&memory, &[Buffer { address: BUFFERS, bytes: 4, writable: true }]);
    let mut queue = queue(&ring);
    for _ in 0..3 {
        assert!(peek(&mut queue, &memory, Direction::DeviceWritable, |_, found| found).unwrap());
        assert_eq!(queue.next_avail(), 0);
    }
    peek(&mut queue, &memory, Direction::DeviceWritable, |access, _| access.finish(4).unwrap()).unwrap();
    assert_eq!(ring.pop(&memory), Some((u32::from(head), 4)));
    assert!(!peek(&mut queue, &memory, Direction::DeviceWritable, |_, found| found).unwrap());
}

#[test]
fn the_longest_chain_is_as_long_as_the_ring() {
    let memory = memory();
    let mut ring = Ring::new(0x1000, SIZE);
    ring.push(&memory, &[Buffer { address: BUFFERS, bytes: 1, writable: true }; SIZE as usize]);
    let bytes = peek(&mut queue(&ring), &memory, Direction::DeviceWritable, |access, _| access.chain.bytes()).unwrap();
    assert_eq!(bytes, u32::from(SIZE));
}

#[test]
fn a_mixed_chain_is_refused() {
    let memory = memory();
    for writable in [true, false] {
        let mut ring = Ring::new(0x1000, SIZE);
        let buffers = [writable, !writable].map(|writable| Buffer { address: BUFFERS, bytes: 1, writable });
        ring.push(&memory, &buffers);
        let direction = if writable { Direction::DeviceWritable } else { Direction::DeviceReadable };
        let Err(ServeError::Chain(error)) = peek(&mut queue(&ring), &memory, direction, |_, _| ()) else {
            panic!("taken")
        };
        assert_eq!(error, ChainError::Direction { head: 0, address: BUFFERS });
    }
}
