//! The main loop of vCPU 0: notice forks, answer requests, count.

use core::fmt::Write;
use core::sync::atomic::Ordering;

use ramet_abi::request::{self as abi, BAD_ARGUMENT, OK, UNKNOWN_OPERATION};

use super::exact::{self, Outcome};
use super::pattern::Pages;
use super::request::{Answer, Request};
use super::{VCPUS_UP, cells, crash, work};
use crate::ring0;
use crate::runtime::clone_page::ClonePage;
use crate::runtime::cpu::{self, Features};
use crate::runtime::memory::Heap;
use crate::runtime::random::Random;
use crate::runtime::registers::Classes;
use crate::runtime::time::Clock;
use crate::runtime::virtio::Devices;
use crate::runtime::{family, guest_port, local_apic, time};

/// A fresh machine starts its devices when no request has come for this long, in ticks of the time-stamp counter:
/// around a millisecond. Each access to a device may be an exit, so that starting them can take several milliseconds,
/// which the first requests should not wait for.
const IDLE_TICKS: u64 = 3_000_000;
/// It starts them anyway this long after its boot.
const STARTING_MAX_TICKS: u64 = 20 * IDLE_TICKS;

/// The state of vCPU 0, on its stack, which is in the one page that every clone writes.
struct Application {
    page: ClonePage,
    heap: Heap,
    ram_bytes: u64,
    vcpus: usize,
    clock: Clock,
    random: Random,
    /// Started at the first use.
    devices: Option<Devices>,
    generation: u32,
    number: u64,
    counter: u64,
    /// SPIN is on.
    spinning: bool,
    /// While the machine is fresh.
    starting: Option<Starting>,
    exact: Outcome,
}

/// Since when, by the time-stamp counter.
struct Starting {
    booted: u64,
    idle: u64,
}

/// The life of vCPU 0.
pub fn run(heap: Heap, ram_bytes: u64, vcpus: usize) -> ! {
    let Some(page) = ClonePage::find() else { panic!("there is no clone page of this version") };
    let now = cpu::time_stamp();
    let mut application = Application {
        page,
        heap,
        ram_bytes,
        vcpus,
        clock: Clock::of_vcpu0(),
        generation: page.generation_counter(),
        random: Random::new(page),
        devices: None,
        number: page.number(),
        counter: 0,
        spinning: false,
        starting: Some(Starting { booted: now, idle: now }),
        exact: Outcome::default(),
    };
    // A request that is there already comes before anything that takes long.
    if let Some(sequence) = page.pending() {
        application.answer(sequence);
    }
    local_apic::enable();
    loop {
        application.turn();
    }
}

impl Application {
    /// One turn. A child that was forked in the middle of the wait, or of an earlier turn, comes by here first.
    #[inline]
    fn turn(&mut self) {
        self.page.note_first_instruction();
        let interrupts = ring0::clone_page_interrupts();
        let seen = interrupts.load(Ordering::Relaxed);
        self.counter = self.counter.wrapping_add(1);
        if self.page.generation_counter() != self.generation {
            self.follow_generation();
        }
        if let Some(sequence) = self.page.pending() {
            self.answer(sequence);
        } else if self.starting.is_some() {
            self.start_when_idle();
        } else if !self.spinning {
            ring0::wait(interrupts, seen);
        }
    }

    /// Until nobody has asked for a while: keeps looking. Then: does what takes long.
    #[cold]
    fn start_when_idle(&mut self) {
        let now = cpu::time_stamp();
        let due = |starting: &Starting| {
            now.wrapping_sub(starting.idle) >= IDLE_TICKS || now.wrapping_sub(starting.booted) >= STARTING_MAX_TICKS
        };
        if !self.starting.as_ref().is_some_and(due) {
            core::hint::spin_loop();
            return;
        }
        self.starting = None;
        self.random.use_hardware(Features::detect());
        let (vcpus, mib) = (self.vcpus, self.ram_bytes >> 20);
        let devices = self.devices();
        if let Some(console) = &mut devices.console {
            // The console takes every byte: writing cannot fail.
            let _ = writeln!(console, "ramet unikernel: {vcpus} vCPUs, {mib} MiB");
        }
        if let Some(words) = devices.entropy.as_mut().and_then(|entropy| entropy.words()) {
            self.random.absorb(&words);
        }
    }

    /// The machine was forked, or turned back: a child stops spinning, has no boot to finish, and its secrets
    /// become its own.
    #[cold]
    fn follow_generation(&mut self) {
        // A child that was forked between the two looks of a turn comes by here before the first of them.
        self.page.note_first_instruction();
        self.generation = self.page.generation_counter();
        let number = self.page.number();
        if number != self.number {
            self.number = number;
            self.spinning = false;
            self.starting = None;
        }
        self.random.follow(self.page);
    }

    /// Handles the pending request. If the machine was forked meanwhile, the request was the parent's: it is not
    /// started if that is known in time, and its answer is dropped.
    #[inline(never)]
    fn answer(&mut self, sequence: u32) {
        let generation = self.page.generation_counter();
        let request = Request::read(self.page);
        if generation != self.generation || self.page.generation_counter() != generation {
            return;
        }
        let mut answer = Answer::new(self.page);
        let status = self.handle(&request, &mut answer);
        let bytes = answer.finish(status);
        self.page.publish_answer(generation, sequence, bytes);
        if let Some(starting) = &mut self.starting {
            starting.idle = cpu::time_stamp();
        }
    }

    fn devices(&mut self) -> &mut Devices {
        self.devices.get_or_insert_with(Devices::start)
    }

    fn handle(&mut self, request: &Request, answer: &mut Answer) -> u32 {
        let done = match request.operation {
            abi::IDENTITY => self.identity(answer),
            abi::PEEK | abi::POKE | abi::DIRTY | abi::CHECK | abi::HEAP_PAGES | abi::FAMILY_PEEK | abi::FAMILY_POKE => {
                self.memory(request, answer)
            }
            abi::FORK | abi::READY | abi::DONE | abi::MARK | abi::EXIT | abi::RING => self.family(request, answer),
            abi::EXACT | abi::EXACT_RESULT | abi::WORK | abi::WORK_RESULT => self.workload(request, answer),
            abi::SPIN | abi::CRASH | abi::CONSOLE | abi::RANDOM | abi::TIME | abi::DOORBELLS => {
                self.machine(request, answer)
            }
            _ => return UNKNOWN_OPERATION,
        };
        if done.is_some() { OK } else { BAD_ARGUMENT }
    }

    fn identity(&mut self, answer: &mut Answer) -> Option<()> {
        let page = self.page;
        answer.put_u64(page.number());
        answer.put_u64(page.parent());
        for word in page.generation() {
            answer.put_u64(word);
        }
        answer.put(&self.random.bytes32(page));
        let monotonic = self.clock.monotonic_ns();
        answer.put_u64(time::wall_ns(page, monotonic));
        answer.put_u64(monotonic);
        answer.put_u64(self.counter);
        answer.put_u64(VCPUS_UP.load(Ordering::Relaxed));
        Some(())
    }

    /// Requests about memory.
    fn memory(&mut self, request: &Request, answer: &mut Answer) -> Option<()> {
        match request.operation {
            abi::PEEK => answer.put_u64(cells::peek(request.arguments::<1>()?[0])?),
            abi::POKE => {
                let [index, value] = request.arguments()?;
                cells::poke(index, value)?;
            }
            abi::DIRTY => {
                let [first, count, stride, seed] = request.arguments()?;
                Pages::checked(self.heap, first, count, stride)?.write(self.heap, seed);
            }
            abi::CHECK => {
                let [first, count, stride, seed] = request.arguments()?;
                answer.put_u64(Pages::checked(self.heap, first, count, stride)?.count_wrong(self.heap, seed));
            }
            abi::FAMILY_PEEK => {
                let [index] = request.arguments()?;
                answer.put_u64(family::word(self.page, index)?.load(Ordering::Relaxed));
            }
            abi::FAMILY_POKE => {
                let [index, value] = request.arguments()?;
                family::word(self.page, index)?.store(value, Ordering::Relaxed);
            }
            _ => answer.put_u64(self.heap.pages()),
        }
        Some(())
    }

    /// Requests that go on to the monitor through the guest port.
    fn family(&mut self, request: &Request, answer: &mut Answer) -> Option<()> {
        let argument = |index: usize| -> Option<u32> {
            let value = if index == 0 { request.arguments::<1>()?[0] } else { request.arguments::<2>()?[1] };
            u32::try_from(value).ok()
        };
        match request.operation {
            abi::FORK => answer.put_u64(u64::from(guest_port::fork(self.page, argument(0)?, argument(1)?))),
            abi::READY => answer.put_u64(u64::from(guest_port::ready(self.page))),
            abi::DONE => guest_port::done(argument(0)?),
            abi::MARK => guest_port::mark(argument(0)?),
            abi::RING => guest_port::ring(argument(0)?),
            _ => guest_port::exit(u8::try_from(argument(0)?).ok()?),
        }
        Some(())
    }

    /// Requests that make vCPUs busy.
    fn workload(&mut self, request: &Request, answer: &mut Answer) -> Option<()> {
        match request.operation {
            abi::EXACT => {
                let [seed, rounds, mask] = request.arguments()?;
                self.exact = exact::run(seed, rounds, Classes::checked(mask, Features::detect())?);
                answer.put_u64(self.exact.digest);
            }
            abi::EXACT_RESULT => {
                let Outcome { finished, digest, rounds } = self.exact;
                for number in [u64::from(finished), digest, rounds] {
                    answer.put_u64(number);
                }
            }
            abi::WORK => {
                let [mode, argument] = request.arguments()?;
                work::order(mode, argument, self.vcpus, self.heap)?;
            }
            _ => {
                let (rounds, mismatches) = work::report();
                answer.put_u64(rounds);
                answer.put_u64(mismatches);
            }
        }
        Some(())
    }

    /// The remaining requests.
    fn machine(&mut self, request: &Request, answer: &mut Answer) -> Option<()> {
        match request.operation {
            abi::SPIN => match request.arguments()? {
                [0] => self.spinning = false,
                [1] => self.spinning = true,
                [_] => return None,
            },
            abi::CRASH => self.devices = Some(crash::crash(request.arguments::<1>()?[0])?),
            abi::CONSOLE => self.devices().console.as_mut()?.write(request.bytes()),
            abi::RANDOM => {
                for word in self.devices().entropy.as_mut()?.words()? {
                    answer.put_u64(word);
                }
            }
            abi::TIME => {
                let monotonic = self.clock.monotonic_ns();
                answer.put_u64(monotonic);
                answer.put_u64(time::wall_ns(self.page, monotonic));
                answer.put_u64(cpu::time_stamp());
            }
            _ => answer.put_u64(ring0::clone_page_interrupts().load(Ordering::Relaxed)),
        }
        Some(())
    }
}
