//! What the end-to-end tests share: families of the embedded unikernel, and how to talk to its machines.
//!
//! Every test starts families of its own, so that tests can run side by side; one that looks at its own process calls
//! [`alone`].
// Each test program uses a part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod elf;
pub mod hosts;
pub mod processes;

use ramet_abi::request;
use ramet_family::{BootSpec, Config, Family, FamilyEvent, ForkOutcome, GuestForks, Limits, Phase};
use ramet_state::InterruptMode;
use ramet_unikernel::{AnswerError, ELF, Identity};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take; hosts that are emulated are slow.
pub const PATIENCE: Duration = Duration::from_secs(50);
/// Memory of a machine that has no special needs.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// The command under test.
pub fn program() -> PathBuf {
    std::env::var_os("RAMET").map_or_else(|| env!("CARGO_BIN_EXE_ramet").into(), PathBuf::from)
}

/// The command under test, to be given arguments.
pub fn ramet() -> Command {
    Command::new(program())
}

/// Keeps other tests of this program out: for those that look at what the whole process holds.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a family and its founder are like.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub memory_bytes: u64,
    pub family_bytes: u64,
    pub vcpus: u8,
    pub limits: Limits,
    pub layer_limit_bytes: Option<u64>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            family_bytes: 0,
            vcpus: 1,
            limits: Limits::default(),
            layer_limit_bytes: None,
        }
    }
}

/// Guests may fork as fast as they like, up to so many machines.
pub fn granted(machines: u32) -> Limits {
    Limits { machines, guest_forks: Some(GuestForks { per_second: 1_000_000, burst: 1_000_000 }) }
}

impl Spec {
    pub fn with_vcpus(vcpus: u8) -> Self {
        Self { vcpus, ..Self::default() }
    }

    pub fn config(&self) -> Config {
        Config { program: program(), limits: self.limits, layer_limit_bytes: self.layer_limit_bytes }
    }

    pub fn boot_spec<'a>(&self, kernel: &'a [u8]) -> BootSpec<'a> {
        let Self { memory_bytes, family_bytes, vcpus, .. } = *self;
        BootSpec { kernel, memory_bytes, family_bytes, vcpus, interrupts: InterruptMode::Split }
    }

    /// A family whose founder runs `kernel`.
    pub fn boot_kernel(self, kernel: &[u8]) -> Machines {
        let mut family = Family::start(&self.config()).unwrap();
        assert_eq!(family.boot(&self.boot_spec(kernel)).unwrap(), 0, "the founder is machine 0");
        Machines { family, events: Vec::new() }
    }

    /// A family whose founder is the embedded unikernel and has answered; all of its vCPUs are up.
    pub fn boot(self) -> Machines {
        let mut machines = self.boot_kernel(ELF);
        let vcpus = u64::from(self.vcpus);
        wait_for("all vCPUs to come up", || machines.identity(0).vcpus == vcpus);
        machines
    }
}

/// A family of ordinary machines.
pub fn boot() -> Machines {
    Spec::default().boot()
}

/// Asks again and again until it is so.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A family, with shorter ways to say what tests want of it; anything that should work and does not fails the test.
pub struct Machines {
    pub family: Family,
    /// Events that were taken while another was waited for.
    pub events: Vec<FamilyEvent>,
}

impl Deref for Machines {
    type Target = Family;

    fn deref(&self) -> &Family {
        &self.family
    }
}

impl DerefMut for Machines {
    fn deref_mut(&mut self) -> &mut Family {
        &mut self.family
    }
}

impl Machines {
    /// Puts a request; the guest's refusal is an error.
    pub fn try_ask<const N: usize>(
        &mut self,
        number: u64,
        operation: u32,
        arguments: &[u64],
    ) -> Result<[u64; N], AnswerError> {
        let request = ramet_unikernel::request(operation, arguments);
        let answer = self.family.request(number, &request, PATIENCE);
        let answer = answer.unwrap_or_else(|error| panic!("request {operation} to machine {number}: {error}"));
        ramet_unikernel::words(&answer)
    }

    /// Puts a request that must be granted; the first words of its answer.
    pub fn ask<const N: usize>(&mut self, number: u64, operation: u32, arguments: &[u64]) -> [u64; N] {
        let answer = self.try_ask(number, operation, arguments);
        answer.unwrap_or_else(|error| panic!("request {operation} {arguments:?} to machine {number}: {error}"))
    }

    /// Puts a request whose answer is nothing but "done".
    pub fn tell(&mut self, number: u64, operation: u32, arguments: &[u64]) {
        let [] = self.ask(number, operation, arguments);
    }

    /// Puts a request and does not wait; its sequence number.
    pub fn post(&mut self, number: u64, operation: u32, arguments: &[u64]) -> u32 {
        self.family.post(number, &ramet_unikernel::request(operation, arguments)).unwrap()
    }

    pub fn identity(&mut self, number: u64) -> Identity {
        let answer = self.family.request(number, &Identity::request(), PATIENCE).unwrap();
        Identity::parse(&answer).unwrap()
    }

    /// A machine answers, and as itself.
    pub fn assert_well(&mut self, number: u64) {
        assert_eq!(self.identity(number).number, number);
    }

    /// Forks; all children must come to life.
    pub fn fork_many(&mut self, parent: u64, children: u32) -> Vec<u64> {
        numbers(&self.family.fork(parent, children, false).unwrap())
    }

    pub fn fork_one(&mut self, parent: u64) -> u64 {
        self.fork_many(parent, 1)[0]
    }

    pub fn peek(&mut self, number: u64, cell: u64) -> u64 {
        let [value] = self.ask(number, request::PEEK, &[cell]);
        value
    }

    pub fn poke(&mut self, number: u64, cell: u64, value: u64) {
        self.tell(number, request::POKE, &[cell, value]);
    }

    /// How many of the pages do not hold the pattern.
    pub fn check(&mut self, number: u64, first: u64, pages: u64, stride: u64, seed: u64) -> u64 {
        let [wrong] = self.ask(number, request::CHECK, &[first, pages, stride, seed]);
        wrong
    }

    pub fn dirty(&mut self, number: u64, first: u64, pages: u64, stride: u64, seed: u64) {
        self.tell(number, request::DIRTY, &[first, pages, stride, seed]);
    }

    pub fn phase(&self, number: u64) -> Option<Phase> {
        self.family.members().find(|member| member.number == number).map(|member| member.phase)
    }

    pub fn pid(&self, number: u64) -> u32 {
        self.family.members().find(|member| member.number == number).and_then(|member| member.pid).unwrap()
    }

    /// Machines that are not dead.
    pub fn alive(&self) -> Vec<u64> {
        self.family.members().filter(|member| member.phase != Phase::Dead).map(|member| member.number).collect()
    }

    /// Takes the events that there are.
    pub fn gather(&mut self) {
        self.family.step(Duration::from_millis(10));
        while let Some(event) = self.family.next_event() {
            self.events.push(event);
        }
    }

    /// Waits for an event, and takes it out of those that came.
    pub fn await_event<T>(&mut self, what: &str, mut wanted: impl FnMut(&FamilyEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.events.iter().position(|event| wanted(event).is_some()) {
                return wanted(&self.events.remove(at)).unwrap();
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}; there were {:?}", self.events);
            self.gather();
        }
    }

    /// Waits until a machine has ended, and says how: status and failure.
    pub fn await_end(&mut self, machine: u64) -> (Option<u32>, Option<String>) {
        self.await_event(&format!("the end of machine {machine}"), |event| match event {
            FamilyEvent::Ended { number, status, failure, .. } if *number == machine => {
                Some((*status, failure.clone()))
            }
            _ => None,
        })
    }

    pub fn shut_down(self) {
        self.family.shut_down();
    }
}

/// The children's numbers; all must have come to life.
pub fn numbers(outcome: &ForkOutcome) -> Vec<u64> {
    let number = |child: &ramet_family::ChildOutcome| {
        assert!(child.result.is_ok(), "child {}: {:?}", child.number, child.result);
        child.number
    };
    outcome.children.iter().map(number).collect()
}

/// An error with all of its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Numbers that differ from run to run; a test that fails shows where they began.
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let start = now.as_nanos() as u64 | 1;
        println!("dice begin at {start:#x}");
        Self(start)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 up to and without `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
