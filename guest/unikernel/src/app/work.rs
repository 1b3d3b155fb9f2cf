//! What vCPUs from 1 on do: nothing, halted, until vCPU 0 gives them work and wakes them.

use core::sync::atomic::{AtomicU64, Ordering};

use ramet_abi::request::{WORK_DIRTY, WORK_EXACT, WORK_NONE};

use super::{exact, pattern};
use crate::ring0;
use crate::runtime::memory::Heap;
use crate::runtime::registers::Classes;
use crate::runtime::{cpu, local_apic};

/// The newest order. An order is complete when `number` is; a worker that sees it change while reading reads again.
static ORDER: Order = Order { number: AtomicU64::new(0), mode: AtomicU64::new(WORK_NONE), argument: AtomicU64::new(0) };

struct Order {
    number: AtomicU64,
    mode: AtomicU64,
    argument: AtomicU64,
}

/// What vCPU 1 reports of its newest work.
static REPORT: Report = Report { rounds: AtomicU64::new(0), mismatches: AtomicU64::new(0) };

struct Report {
    rounds: AtomicU64,
    mismatches: AtomicU64,
}

/// Rounds of registers per digest: well under a millisecond.
const EXACT_ROUNDS: u64 = 64;

/// Gives all other vCPUs an order; `None` if it is not one, or there are no other vCPUs to do it.
pub fn order(mode: u64, argument: u64, vcpus: usize, heap: Heap) -> Option<()> {
    let possible = match mode {
        WORK_NONE => true,
        WORK_DIRTY => vcpus > 1 && (1..=pages_each(heap, vcpus)).contains(&argument),
        WORK_EXACT => vcpus > 1 && Classes::checked(argument, cpu::Features::detect()).is_some(),
        _ => false,
    };
    if !possible {
        return None;
    }
    ORDER.mode.store(mode, Ordering::Relaxed);
    ORDER.argument.store(argument, Ordering::Relaxed);
    ORDER.number.fetch_add(1, Ordering::Release);
    for vcpu in 1..vcpus.min(ring0::MAX_VCPUS) {
        local_apic::wake(vcpu as u8);
    }
    Some(())
}

/// Rounds of vCPU 1's newest work, and how many mismatches it found.
pub fn report() -> (u64, u64) {
    (REPORT.rounds.load(Ordering::Relaxed), REPORT.mismatches.load(Ordering::Relaxed))
}

/// The life of a vCPU from 1 on.
pub fn run(vcpu: usize, vcpus: usize, heap: Heap) -> ! {
    let Some(wakes) = ring0::wakes(vcpu) else { unreachable!("ring 0 keeps vCPU {vcpu} from coming up") };
    local_apic::enable();
    loop {
        let seen = wakes.load(Ordering::Relaxed);
        let number = ORDER.number.load(Ordering::Acquire);
        let mode = ORDER.mode.load(Ordering::Relaxed);
        let argument = ORDER.argument.load(Ordering::Acquire);
        if ORDER.number.load(Ordering::Relaxed) != number {
            continue;
        }
        let worker = Worker { vcpu, number };
        match mode {
            WORK_DIRTY => worker.dirty(heap, vcpus, argument),
            WORK_EXACT => worker.exact(argument),
            _ => ring0::wait(wakes, seen),
        }
    }
}

/// Pages of the heap's reserve for each worker.
fn pages_each(heap: Heap, vcpus: usize) -> u64 {
    heap.work_pages() / (vcpus.max(2) as u64 - 1)
}

struct Worker {
    vcpu: usize,
    number: u64,
}

impl Worker {
    fn goes_on(&self) -> bool {
        ORDER.number.load(Ordering::Relaxed) == self.number
    }

    fn report(&self, rounds: u64, mismatches: u64) {
        if self.vcpu == 1 {
            REPORT.rounds.store(rounds, Ordering::Relaxed);
            REPORT.mismatches.store(mismatches, Ordering::Relaxed);
        }
    }

    /// Each round checks what the round before left in every page before writing the next: a page that another
    /// machine writes as well is found, as is one that lost its contents.
    fn dirty(&self, heap: Heap, vcpus: usize, pages: u64) {
        let first = heap.pages() + (self.vcpu as u64 - 1) * pages_each(heap, vcpus);
        let words = || (first..first + pages).filter_map(|page| Some((page, heap.word(page)?)));
        let mut mismatches = 0;
        let mut round = 0;
        self.report(0, 0);
        while self.goes_on() {
            for (page, word) in words() {
                if round > 0 && word.load(Ordering::Relaxed) != pattern::expected(round, page) {
                    mismatches += 1;
                }
                word.store(pattern::expected(round + 1, page), Ordering::Relaxed);
                if word.load(Ordering::Relaxed) != pattern::expected(round + 1, page) {
                    mismatches += 1;
                }
            }
            round += 1;
            self.report(round, mismatches);
        }
    }

    fn exact(&self, mask: u64) {
        let Some(classes) = Classes::checked(mask, cpu::Features::detect()) else { return };
        let seed = self.vcpu as u64;
        let first = exact::run(seed, EXACT_ROUNDS, classes).digest;
        let mut mismatches = 0;
        let mut rounds = 1;
        self.report(rounds, mismatches);
        while self.goes_on() {
            if exact::run(seed, EXACT_ROUNDS, classes).digest != first {
                mismatches += 1;
            }
            rounds += 1;
            self.report(rounds, mismatches);
        }
    }
}
