//! Requests that the embedded unikernel answers through its clone page.
//!
//! A request is a u32 operation and u64 arguments; an answer is a u32 status and what the operation gives back. All
//! integers are little endian and packed without padding.

/// Status: done.
pub const OK: u32 = 0;
/// Status: no such operation.
pub const UNKNOWN_OPERATION: u32 = 1;
/// Status: an argument is missing or out of range.
pub const BAD_ARGUMENT: u32 = 2;

/// Who are you? Answers an [`identity`].
pub const IDENTITY: u32 = 1;
/// (index) -> u64: reads one of the [`CELLS`] private words.
pub const PEEK: u32 = 2;
/// (index, value): writes one of the [`CELLS`] private words.
pub const POKE: u32 = 3;
/// (first page, pages, stride in pages, seed): writes a pattern into heap pages, one u64 at the start of each.
pub const DIRTY: u32 = 4;
/// (first page, pages, stride in pages, seed) -> u64: how many heap pages do not hold the pattern.
pub const CHECK: u32 = 5;
/// (0 or 1): whether vCPU 0 counts in a loop between requests instead of halting.
pub const SPIN: u32 = 6;
/// (children, flags) -> u64: calls fork() through the guest port; the parent's answer is what fork() returned.
pub const FORK: u32 = 7;
/// (): becomes a frozen template through the guest port. Only children answer again, to their own requests.
pub const READY: u32 = 8;
/// (status): says done through the guest port.
pub const DONE: u32 = 9;
/// (value): a mark through the guest port.
pub const MARK: u32 = 10;
/// (status): exits through the guest port.
pub const EXIT: u32 = 11;
/// (kind): misbehaves; see the `CRASH_*` constants.
pub const CRASH: u32 = 12;
/// (seed, rounds, mask of `EXACT_*`) -> u64 digest: runs the register-exactness workload to its end. It is
/// deterministic: the same arguments give the same digest on any machine, however often it was forked meanwhile.
pub const EXACT: u32 = 13;
/// () -> (u64 finished, u64 digest, u64 rounds done): the outcome of the newest EXACT, also in a child that was
/// forked in the middle of one.
pub const EXACT_RESULT: u32 = 14;
/// (bytes): writes the request's remaining bytes to the virtio console.
pub const CONSOLE: u32 = 15;
/// () -> 32 bytes straight from virtio-rng.
pub const RANDOM: u32 = 16;
/// (mode, argument): what the other vCPUs do; see the `WORK_*` constants.
pub const WORK: u32 = 17;
/// () -> (u64 rounds of vCPU 1's work, u64 digest or mismatches).
pub const WORK_RESULT: u32 = 18;
/// (index) -> u64: reads a word of family memory.
pub const FAMILY_PEEK: u32 = 19;
/// (index, value): writes a word of family memory.
pub const FAMILY_POKE: u32 = 20;
/// () -> (u64 monotonic ns, u64 wall ns, u64 tsc).
pub const TIME: u32 = 21;
/// () -> u64: pages in the heap that DIRTY and CHECK reach.
pub const HEAP_PAGES: u32 = 22;
/// () -> u64: how many clone-page interrupts arrived (requests, doorbells, generations).
pub const DOORBELLS: u32 = 23;
/// (machine number): rings the family doorbell of another machine.
pub const RING: u32 = 24;

/// How many private words PEEK and POKE reach.
pub const CELLS: u64 = 512;

/// What IDENTITY answers, after the status; byte offsets.
pub mod identity {
    /// u64 number in the family.
    pub const NUMBER_AT: usize = 0;
    /// u64 number of the parent.
    pub const PARENT_AT: usize = 8;
    /// 16 bytes of generation.
    pub const GENERATION_AT: usize = 16;
    /// 32 bytes from the guest's own generator.
    pub const RANDOM_AT: usize = 32;
    /// u64 wall clock in ns since 1970.
    pub const WALL_NS_AT: usize = 64;
    /// u64 monotonic clock in ns.
    pub const MONOTONIC_NS_AT: usize = 72;
    /// u64: what the guest has counted since it was booted, through all forks.
    pub const COUNTER_AT: usize = 80;
    /// u64: vCPUs that have come up.
    pub const VCPUS_AT: usize = 88;
    /// Length.
    pub const BYTES: usize = 96;
}

/// Triple fault.
pub const CRASH_TRIPLE_FAULT: u64 = 0;
/// Spin in ring 0 with interrupts off.
pub const CRASH_SPIN: u64 = 1;
/// Write garbage to every port and to every page of the MMIO hole, then answer.
pub const CRASH_GARBAGE: u64 = 2;
/// Panic in ring 3.
pub const CRASH_PANIC: u64 = 3;

/// EXACT: general-purpose registers and flags. Always on.
pub const EXACT_INTEGER: u64 = 1;
/// EXACT: x87.
pub const EXACT_X87: u64 = 2;
/// EXACT: SSE.
pub const EXACT_SSE: u64 = 4;
/// EXACT: AVX, 16 registers of 256 bits.
pub const EXACT_AVX: u64 = 8;
/// EXACT: AVX-512, 32 registers of 512 bits and the mask registers.
pub const EXACT_AVX512: u64 = 16;
/// EXACT: enter ring 0 in every round by #PF and by ud2.
pub const EXACT_RING0: u64 = 32;

/// WORK: halt.
pub const WORK_NONE: u64 = 0;
/// WORK: write a counter into (argument) heap pages of vCPU 1's own, over and over, and check that it reads back.
pub const WORK_DIRTY: u64 = 1;
/// WORK: run EXACT rounds for ever with (argument) as mask, and compare each digest with the first.
pub const WORK_EXACT: u64 = 2;
