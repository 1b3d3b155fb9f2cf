//! Tiny guests in assembly. All of them take the address of their results in RDI and a number of iterations in RSI,
//! and end with an OUT to port 0x10.
#![allow(unsafe_code)]

use std::arch::global_asm;

/// A guest's code.
#[derive(Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    pub code: &'static [u8],
    /// A vector, and the offset in `code` of its handler in ring 0.
    pub handler: Option<(u8, u64)>,
}

macro_rules! program {
    ($constructor:ident, $symbol:literal, $($line:literal,)*) => {
        global_asm!(
            concat!(".pushsection .rodata.", $symbol, ", \"a\""),
            concat!("program_", $symbol, ":"),
            $($line,)*
            concat!("program_", $symbol, "_end:"),
            ".popsection",
            options(att_syntax)
        );

        pub fn $constructor() -> Program {
            unsafe extern "C" {
                #[link_name = concat!("program_", $symbol)]
                static START: u8;
                #[link_name = concat!("program_", $symbol, "_end")]
                static END: u8;
            }
            // SAFETY: the symbols enclose the assembled bytes, which are read-only data of this program.
            let code = unsafe {
                let start = &raw const START;
                std::slice::from_raw_parts(start, (&raw const END).offset_from_unsigned(start))
            };
            Program { name: stringify!($constructor), code, handler: None }
        }
    };
}

// One loop over a linear congruential generator, a ring of memory, and SSE2.
program!(
    integer_and_sse,
    "sse",
    "movabs $6364136223846793005, %r8",
    "movabs $1442695040888963407, %r9",
    "mov $1, %rax",
    "xor %ebx, %ebx",
    "movq %r8, %xmm1",
    "punpcklqdq %xmm1, %xmm1",
    "pxor %xmm0, %xmm0",
    "pxor %xmm15, %xmm15",
    "1: imul %r8, %rax",
    "add %r9, %rax",
    "inc %rbx",
    "paddq %xmm1, %xmm0",
    "movq %rax, %xmm5",
    "pshufd $0x39, %xmm15, %xmm15",
    "pxor %xmm5, %xmm15",
    "paddq %xmm0, %xmm15",
    "mov %rbx, %rcx",
    "and $4095, %ecx",
    "xor %rax, 0x1000(%rdi, %rcx, 8)",
    "push %rax",
    "pop 8(%rdi)",
    "mov %rbx, (%rdi)",
    "dec %rsi",
    "jnz 1b",
    "movdqu %xmm15, 32(%rdi)",
    "movdqu %xmm0, 48(%rdi)",
    "2: out %al, $0x10",
    "jmp 2b",
);

// The same with AVX2 and x87.
program!(
    avx2_and_x87,
    "avx2",
    "movabs $6364136223846793005, %r8",
    "movabs $1442695040888963407, %r9",
    "mov $1, %rax",
    "xor %ebx, %ebx",
    "vmovq %r8, %xmm1",
    "vpbroadcastq %xmm1, %ymm1",
    "vmovq %r9, %xmm2",
    "vpbroadcastq %xmm2, %ymm2",
    "vpxor %ymm0, %ymm0, %ymm0",
    "vpxor %ymm15, %ymm15, %ymm15",
    "fninit",
    "fld1",
    "fldpi",
    "1: imul %r8, %rax",
    "add %r9, %rax",
    "inc %rbx",
    "vpaddq %ymm1, %ymm0, %ymm0",
    "vpxor %ymm2, %ymm0, %ymm4",
    "vpaddq %ymm4, %ymm15, %ymm15",
    "vpshufd $0x39, %ymm15, %ymm15",
    "vmovq %rax, %xmm5",
    "vinserti128 $1, %xmm5, %ymm5, %ymm5",
    "vpxor %ymm5, %ymm15, %ymm15",
    "fadd %st(1), %st",
    "mov %rbx, %rcx",
    "and $4095, %ecx",
    "xor %rax, 0x1000(%rdi, %rcx, 8)",
    "mov %rbx, (%rdi)",
    "dec %rsi",
    "jnz 1b",
    "vmovdqu %ymm15, 32(%rdi)",
    "vmovdqu %ymm0, 64(%rdi)",
    "fstpl 96(%rdi)",
    "fstpl 104(%rdi)",
    "stmxcsr 112(%rdi)",
    "2: out %al, $0x10",
    "jmp 2b",
);

// The upper registers and a mask of AVX-512.
program!(
    avx512,
    "avx512",
    "xor %ebx, %ebx",
    "vpxorq %zmm16, %zmm16, %zmm16",
    "vpxorq %zmm31, %zmm31, %zmm31",
    "vpternlogd $0xff, %zmm17, %zmm17, %zmm17",
    "mov $0x5a5a, %eax",
    "kmovw %eax, %k1",
    "1: vpsubq %zmm17, %zmm16, %zmm16",
    "vpaddq %zmm16, %zmm31, %zmm31{{%k1}}",
    "inc %rbx",
    "mov %rbx, (%rdi)",
    "dec %rsi",
    "jnz 1b",
    "vmovdqu64 %zmm16, 128(%rdi)",
    "vmovdqu64 %zmm31, 192(%rdi)",
    "kmovw %k1, %eax",
    "mov %rax, 16(%rdi)",
    "2: out %al, $0x10",
    "jmp 2b",
);

// Ring 3 enters ring 0 by ud2 in each iteration; the handler is at 0x80.
program!(
    rings_by_ud2,
    "ud2",
    "movabs $6364136223846793005, %r8",
    "movabs $1442695040888963407, %r9",
    "mov $1, %rax",
    "xor %ebx, %ebx",
    "1: imul %r8, %rax",
    "add %r9, %rax",
    "inc %rbx",
    "ud2",
    "mov %rbx, (%rdi)",
    "mov %rax, 8(%rdi)",
    "dec %rsi",
    "jnz 1b",
    "2: out %al, $0x10",
    "jmp 2b",
    ".balign 0x80",
    "incq 16(%rdi)",
    "xor %rbx, %rax",
    "addq $2, (%rsp)",
    "iretq",
);

// Never ends.
program!(spin, "spin", "1: pause", "jmp 1b",);

// Reads 4 bytes from port 0x20 into (rdi), then makes an 8-byte access across a page boundary of memory that is not
// there, then ends.
program!(
    accesses,
    "accesses",
    "mov $0x20, %dx",
    "in (%dx), %eax",
    "mov %eax, (%rdi)",
    "movabs $0x700ffc, %rbx",
    "mov (%rbx), %rax",
    "mov %rax, 8(%rdi)",
    "2: out %al, $0x10",
    "jmp 2b",
);

// Waits for an interrupt: in ring 0 halted, with interrupts on. The handler is at 0x80.
program!(
    wait_for_interrupt,
    "wait",
    "1: sti",
    "hlt",
    "jmp 1b",
    ".balign 0x80",
    "movq $1, (%rdi)",
    "2: out %al, $0x10",
    "jmp 2b",
);

// Halts with interrupts on, forever.
program!(halt, "halt", "1: sti", "hlt", "jmp 1b",);

impl Program {
    /// With the handler that lies at 0x80 for a vector.
    pub fn with_handler(self, vector: u8) -> Self {
        Self { handler: Some((vector, 0x80)), ..self }
    }
}
