//! Kernels made by hand: a few instructions in an ELF file.

/// Where the code of these kernels is, and where they are entered.
pub const ENTRY: u64 = 0x20_0000;

/// (type, offset in the file, physical address, bytes in the file, bytes in memory)
pub type Header = (u32, u64, u64, u64, u64);

const LOAD: u32 = 1;
const NOTE: u32 = 4;

/// An ELF file; `body` begins at offset 4096.
pub fn file(entry: u64, headers: &[Header], body: &[u8]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, u16::try_from(headers.len()).unwrap(), 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for (kind, offset, address, in_file, in_memory) in headers {
        file.extend(kind.to_le_bytes());
        file.extend(7u32.to_le_bytes());
        for word in [*offset, *address, *address, *in_file, *in_memory, if *kind == NOTE { 4 } else { 4096 }] {
            file.extend(word.to_le_bytes());
        }
    }
    file.resize(4096, 0);
    file.extend(body);
    file
}

fn note(name: &[u8], kind: u32, descriptor: u32) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [u32::try_from(name.len()).unwrap(), 4, kind] {
        note.extend(word.to_le_bytes());
    }
    note.extend(name);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(descriptor.to_le_bytes());
    note
}

fn with_note(code: &[u8], note: &[u8]) -> Vec<u8> {
    let (code_bytes, note_bytes) = (code.len() as u64, note.len() as u64);
    let headers = [(LOAD, 4096, ENTRY, code_bytes, code_bytes), (NOTE, 4096 + code_bytes, 0, note_bytes, note_bytes)];
    file(ENTRY, &headers, &[code, note].concat())
}

/// A kernel that is entered in 64-bit mode.
pub fn kernel(code: &[u8]) -> Vec<u8> {
    let bytes = code.len() as u64;
    file(ENTRY, &[(LOAD, 4096, ENTRY, bytes, bytes)], code)
}

/// One that asks for all vCPUs to be entered, with their index in RDI.
pub fn kernel_on_all_vcpus(code: &[u8]) -> Vec<u8> {
    with_note(code, &note(b"RAMET\0", 1, 1))
}

/// One that has a PVH note, and so is entered in 32-bit mode.
pub fn pvh_kernel(code: &[u8]) -> Vec<u8> {
    with_note(code, &note(b"Xen\0", 18, u32::try_from(ENTRY).unwrap()))
}

/// Instructions that mean the same in 32-bit and 64-bit mode.
#[derive(Default)]
pub struct Code(pub Vec<u8>);

impl Code {
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn port(self, port: u16) -> Self {
        // mov edx, imm32
        self.raw(&[0xBA]).raw(&u32::from(port).to_le_bytes())
    }

    /// Writes the lowest byte.
    pub fn write_byte(self, port: u16, value: u8) -> Self {
        // mov al, imm8; out dx, al
        self.port(port).raw(&[0xB0, value, 0xEE])
    }

    pub fn write_long(self, port: u16, value: u32) -> Self {
        // mov eax, imm32; out dx, eax
        self.port(port).raw(&[0xB8]).raw(&value.to_le_bytes()).raw(&[0xEF])
    }

    /// Reads into EAX.
    pub fn read_long(self, port: u16) -> Self {
        // in eax, dx
        self.port(port).raw(&[0xED])
    }

    /// Writes EAX.
    pub fn write_eax(self, port: u16) -> Self {
        // out dx, eax
        self.port(port).raw(&[0xEF])
    }

    pub fn text(self, port: u16, text: &str) -> Self {
        text.bytes().fold(self, |code, byte| code.write_byte(port, byte))
    }

    /// From here on for ever.
    pub fn halt(self) -> Self {
        // cli; hlt; jmp back to hlt
        self.raw(&[0xFA, 0xF4, 0xEB, 0xFD])
    }

    /// Back to the first instruction.
    pub fn again(self) -> Self {
        // jmp rel32
        let back = -(i32::try_from(self.0.len()).unwrap() + 5);
        self.raw(&[0xE9]).raw(&back.to_le_bytes())
    }
}
