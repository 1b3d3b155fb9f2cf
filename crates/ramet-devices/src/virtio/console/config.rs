//! Configuration space (section 5.3.4).

/// VIRTIO_CONSOLE_F_SIZE: the size in configuration space is valid.
pub(super) const F_SIZE: u64 = 1 << 0;
/// VIRTIO_CONSOLE_F_EMERG_WRITE: a character can be written before the queues are up.
pub(super) const F_EMERG_WRITE: u64 = 1 << 2;

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// Offset of `emerg_wr`.
const EMERGENCY_WRITE_AT: u64 = 8;

/// Reads cols, rows, max_nr_ports (only with multiport: 1) and emerg_wr (write-only: 0).
pub(super) fn read(size: Size, offset: u64, data: &mut [u8]) {
    let mut space = [0; 12];
    space[0..2].copy_from_slice(&size.columns.to_le_bytes());
    space[2..4].copy_from_slice(&size.rows.to_le_bytes());
    space[4..8].copy_from_slice(&1u32.to_le_bytes());
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let found = space.get(start..).unwrap_or(&[]);
    let count = found.len().min(data.len());
    data[..count].copy_from_slice(&found[..count]);
}

/// The character of an emergency write (section 5.3.5.1: the low byte).
pub(super) fn emergency_character(offset: u64, data: &[u8]) -> Option<u8> {
    if offset == EMERGENCY_WRITE_AT { data.first().copied() } else { None }
}
