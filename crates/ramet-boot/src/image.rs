//! Reading the ELF file.

use crate::Write;
use elf::ElfBytes;
use elf::abi::{EM_X86_64, ET_EXEC, PT_LOAD, PT_NOTE};
use elf::endian::LittleEndian;
use elf::note::Note;
use elf::segment::ProgramHeader;
use ramet_abi::layout::split_ram;
use ramet_abi::note;

/// Longest kernel file that is accepted.
pub const MAX_KERNEL_BYTES: u64 = 512 << 20;
/// Segments must not lie below this: boot tables are there.
pub(crate) const FIRST_FREE_ADDRESS: u64 = 0x10_0000;
/// XEN_ELFNOTE_PHYS32_ENTRY: the PVH entry.
const XEN_PHYS32_ENTRY: u64 = 18;
/// Most program headers that are looked at.
const MAX_HEADERS: usize = 128;

/// How a kernel wants to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// 64-bit mode at the address; the other vCPUs too, or waiting for INIT and SIPI.
    Long { entry: u64, all_vcpus: bool },
    /// PVH: 32-bit protected mode at the address.
    Pvh { entry: u32 },
}

pub(crate) struct Image {
    pub(crate) start: Start,
    pub(crate) segments: Vec<Write>,
}

/// Why a kernel cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file is too long.
    #[error("Kernel of {bytes} bytes exceeds the limit of {MAX_KERNEL_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// Not ELF.
    #[error("Kernel is not an ELF file: it begins with {found:02x?}; give an uncompressed 64-bit ELF")]
    NotElf {
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// ELF, but not for this machine.
    #[error("Kernel is ELF of machine {machine}, type {kind}; an x86-64 executable (machine 62, type 2) is needed")]
    Foreign {
        /// e_machine.
        machine: u16,
        /// e_type.
        kind: u16,
    },
    /// ELF, but damaged or cut off.
    #[error("Kernel file is damaged or cut off: {reason}")]
    Damaged {
        /// In the parser's words.
        reason: String,
    },
    /// A segment's bytes lie beyond the end of the file.
    #[error("Segment {index} takes {bytes} bytes at offset {offset}, beyond the file's end at {length}")]
    Truncated {
        /// Which program header.
        index: usize,
        /// Offset in the file.
        offset: u64,
        /// Bytes in the file.
        bytes: u64,
        /// Length of the file.
        length: u64,
    },
    /// Nothing to load.
    #[error("Kernel has no segment to load")]
    Empty,
    /// More program headers than are looked at.
    #[error("Kernel has {count} program headers; at most {MAX_HEADERS} are accepted")]
    TooManyHeaders {
        /// How many.
        count: usize,
    },
    /// A segment lies outside of RAM.
    #[error(
        "Segment {index} at {start:#x}, {bytes} bytes, lies outside of RAM ({FIRST_FREE_ADDRESS:#x} to {end:#x}): \
         give the machine more memory or link the kernel elsewhere"
    )]
    OutsideMemory {
        /// Which program header.
        index: usize,
        /// Guest-physical address.
        start: u64,
        /// Length in memory.
        bytes: u64,
        /// End of RAM below the device hole.
        end: u64,
    },
    /// Two segments overlap.
    #[error("Segments {first} and {second} overlap at {address:#x}")]
    Overlap {
        /// One program header.
        first: usize,
        /// The other.
        second: usize,
        /// Where the second begins.
        address: u64,
    },
    /// The entry is not in a segment.
    #[error("Entry {entry:#x} is not within any segment")]
    Entry {
        /// The address.
        entry: u64,
    },
}

fn damaged(error: elf::ParseError) -> LoadError {
    LoadError::Damaged { reason: error.to_string() }
}

type File<'a> = ElfBytes<'a, LittleEndian>;

fn open(kernel: &[u8]) -> Result<File<'_>, LoadError> {
    if kernel.len() as u64 > MAX_KERNEL_BYTES {
        return Err(LoadError::TooLarge { bytes: kernel.len() as u64 });
    }
    if !kernel.starts_with(b"\x7fELF") {
        return Err(LoadError::NotElf { found: kernel.iter().take(4).copied().collect() });
    }
    let file = File::minimal_parse(kernel).map_err(damaged)?;
    let header = file.ehdr;
    if header.e_machine != EM_X86_64 || header.e_type != ET_EXEC || header.class != elf::file::Class::ELF64 {
        return Err(LoadError::Foreign { machine: header.e_machine, kind: header.e_type });
    }
    Ok(file)
}

/// Copies out one segment, checked against the file's length and RAM below the hole.
fn segment(kernel: &[u8], index: usize, header: &ProgramHeader, ram_end: u64) -> Result<Write, LoadError> {
    let length = kernel.len() as u64;
    let (offset, bytes) = (header.p_offset, header.p_filesz);
    if offset.checked_add(bytes).is_none_or(|end| end > length) {
        return Err(LoadError::Truncated { index, offset, bytes, length });
    }
    let in_memory = header.p_memsz.max(bytes);
    let end = header.p_paddr.checked_add(in_memory);
    if header.p_paddr < FIRST_FREE_ADDRESS || end.is_none_or(|end| end > ram_end) {
        return Err(LoadError::OutsideMemory { index, start: header.p_paddr, bytes: in_memory, end: ram_end });
    }
    // Bounds were checked against the slice's length above, so both fit into usize.
    let range = usize::try_from(offset).unwrap_or(usize::MAX)..usize::try_from(offset + bytes).unwrap_or(usize::MAX);
    let bytes = kernel.get(range).unwrap_or_default().to_vec();
    Ok(Write { address: header.p_paddr, bytes })
}

/// The extent in memory of each loaded segment, sorted, must be disjoint.
fn check_overlap(headers: &[(usize, ProgramHeader)]) -> Result<(), LoadError> {
    let mut sorted: Vec<_> = headers.iter().collect();
    sorted.sort_by_key(|(_, header)| header.p_paddr);
    for pair in sorted.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if a.p_paddr + a.p_memsz.max(a.p_filesz) > b.p_paddr {
            return Err(LoadError::Overlap { first: *first, second: *second, address: b.p_paddr });
        }
    }
    Ok(())
}

fn little_endian(bytes: &[u8]) -> Option<u64> {
    match bytes.len() {
        4 => Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?))),
        8 => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// Looks for the notes that say how to start.
fn start(file: &File<'_>, headers: &[(usize, ProgramHeader)]) -> Result<Start, LoadError> {
    let mut start = Start::Long { entry: file.ehdr.e_entry, all_vcpus: false };
    for (_, header) in headers.iter().filter(|(_, header)| header.p_type == PT_NOTE) {
        for note in file.segment_data_as_notes(header).map_err(damaged)? {
            let Note::Unknown(found) = note else { continue };
            let name = found.name;
            let value = little_endian(found.desc);
            if name == note::NAME && found.n_type == u64::from(note::TYPE_START) {
                let flags = value.unwrap_or(0);
                let all_vcpus = flags & u64::from(note::START_ALL_VCPUS) != 0;
                return Ok(Start::Long { entry: file.ehdr.e_entry, all_vcpus });
            }
            if name == b"Xen\0"
                && found.n_type == XEN_PHYS32_ENTRY
                && let Some(entry) = value.and_then(|value| u32::try_from(value).ok())
            {
                start = Start::Pvh { entry };
            }
        }
    }
    Ok(start)
}

pub(crate) fn parse(kernel: &[u8], memory_bytes: u64) -> Result<Image, LoadError> {
    let file = open(kernel)?;
    let table = file.segments().ok_or(LoadError::Empty)?;
    if table.len() > MAX_HEADERS {
        return Err(LoadError::TooManyHeaders { count: table.len() });
    }
    let headers: Vec<(usize, ProgramHeader)> = table.iter().enumerate().collect();
    let loads: Vec<_> =
        headers.iter().filter(|(_, header)| header.p_type == PT_LOAD && header.p_memsz > 0).copied().collect();
    if loads.is_empty() {
        return Err(LoadError::Empty);
    }
    let (ram_end, _) = split_ram(memory_bytes);
    let segments: Vec<Write> =
        loads.iter().map(|(index, header)| segment(kernel, *index, header, ram_end)).collect::<Result<_, _>>()?;
    check_overlap(&loads)?;
    let start = start(&file, &headers)?;
    let entry = match start {
        Start::Long { entry, .. } => entry,
        Start::Pvh { entry } => u64::from(entry),
    };
    let within = |header: &ProgramHeader| (header.p_paddr..header.p_paddr + header.p_memsz).contains(&entry);
    if !loads.iter().any(|(_, header)| within(header)) {
        return Err(LoadError::Entry { entry });
    }
    Ok(Image { start, segments })
}
