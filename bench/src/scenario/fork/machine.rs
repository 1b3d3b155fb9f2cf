//! A parent to fork from, in a family of its own, and one fork of it with all of its times.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ramet_abi::request as abi;
use ramet_family::{BootSpec, BuildStamps, Config, Family, FamilyEvent, Terminal};
use ramet_memory::Backing;
use ramet_state::InterruptMode;
use ramet_unikernel::{ELF, Identity, payload, request, words};

use crate::ticks::Ticks;

/// How long a guest may take for an answer: writing 2 GiB takes it seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a killed machine may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a guest that has answered may take to note its first instruction.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);
/// A vCPU that has slept is owed time by the host's scheduler, which lets it run on before whoever wants its processor;
/// after this it has had it, as one that has been busy for long.
const SETTLE: Duration = Duration::from_millis(10);
/// The founder's number.
pub(super) const FOUNDER: u64 = 0;

/// Where the layers of families are kept.
pub(super) fn backing() -> Result<&'static str> {
    let family = Family::start(&Config::default()).context("A family cannot be started")?;
    Ok(match family.backing() {
        Backing::HugeTmpfs { .. } => "tmpfs in huge pages",
        Backing::Memfd { .. } => "memory files in pages of 4 KiB",
    })
}

/// Size and shape of a machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Memory slot, in MiB.
    pub(super) slot_mib: u64,
    /// vCPUs. All but the first are halted.
    pub(super) vcpus: u8,
}

/// A family whose founder is up, has started its devices and is halted.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) family: Family,
    ticks: Ticks,
}

/// A child that has answered, and when what was done for it, as the host's time-stamp counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    pub(super) number: u64,
    pub(super) requested: u64,
    pub(super) stamps: BuildStamps,
    /// In a child of a halted parent, which executes nothing until it is asked something: after that.
    pub(super) first_instruction: u64,
    /// The fork returned to its caller.
    pub(super) returned: u64,
    pub(super) answered: u64,
    pub(super) pause_us: f64,
    pub(super) identity: Identity,
}

impl Machine {
    /// Boots. The zygote is this program: supervisor and machines are then of one build.
    pub(super) fn boot(shape: Shape, ticks: Ticks) -> Result<Self> {
        let family = Family::start(&Config::default()).context("The family cannot be started")?;
        let mut machine = Self { family, ticks };
        let spec = BootSpec {
            kernel: ELF,
            memory_bytes: shape.slot_mib << 20,
            family_bytes: 0,
            vcpus: shape.vcpus,
            interrupts: InterruptMode::Split,
        };
        machine.family.boot(&spec).with_context(|| format!("{shape:?} cannot be booted"))?;
        // With this line it says that its devices are started: nothing of its boot is left to be forked.
        machine.await_console(FOUNDER)?;
        Ok(machine)
    }

    /// Puts a request with numbers, and returns what follows the status.
    pub(super) fn ask(&mut self, number: u64, operation: u32, arguments: &[u64]) -> Result<Vec<u8>> {
        let answer = self.family.request(number, &request(operation, arguments), ANSWER_TIMEOUT)?;
        let rest = payload(&answer).with_context(|| format!("Machine {number}, operation {operation}"))?;
        Ok(rest.to_vec())
    }

    /// Puts a request that a number answers.
    pub(super) fn ask_word(&mut self, number: u64, operation: u32, arguments: &[u64]) -> Result<u64> {
        let answer = self.family.request(number, &request(operation, arguments), ANSWER_TIMEOUT)?;
        let [word] = words(&answer).with_context(|| format!("Machine {number}, operation {operation}"))?;
        Ok(word)
    }

    /// Lets the founder count in a loop, or halt, when it has nothing to answer.
    pub(super) fn spin(&mut self, on: bool) -> Result<()> {
        self.ask(FOUNDER, abi::SPIN, &[u64::from(on)])?;
        if on {
            std::thread::sleep(SETTLE);
        }
        Ok(())
    }

    /// Lets the founder write `count` pages of its heap, evenly scattered from page `first` on.
    pub(super) fn dirty(&mut self, first: u64, count: u64, seed: u64) -> Result<()> {
        let pages = self.ask_word(FOUNDER, abi::HEAP_PAGES, &[])?;
        let stride = pages.checked_sub(first).and_then(|pages| pages.checked_div(count)).unwrap_or(1);
        ensure!(stride > 0, "{count} pages from page {first} on do not fit the {pages} pages of the guest's heap");
        self.ask(FOUNDER, abi::DIRTY, &[first, count, stride, seed]).map(drop)
    }

    /// Forks the founder once and lets the child say who it is.
    pub(super) fn fork(&mut self) -> Result<Child> {
        let outcome = self.family.fork(FOUNDER, 1, false)?;
        let returned = Ticks::now();
        let child = outcome.children.first().context("The fork made no child")?;
        let number = child.number;
        let stamps = child.result.clone().map_err(anyhow::Error::msg)?;
        let answer = self.family.request(number, &Identity::request(), ANSWER_TIMEOUT)?;
        let answered = Ticks::now();
        let first_instruction = self.await_first_instruction(number)?;
        let identity = Identity::parse(&answer).with_context(|| format!("Machine {number}"))?;
        ensure!(
            (identity.number, identity.parent) == (number, FOUNDER),
            "Machine {number} says that it is machine {}, child of {}",
            identity.number,
            identity.parent
        );
        Ok(Child {
            number,
            requested: outcome.requested_tsc,
            stamps,
            first_instruction,
            returned,
            answered,
            pause_us: outcome.pause_ns as f64 / 1e3,
            identity,
        })
    }

    /// A child that was forked in the middle of its loop, and asked before it ran, answers before it notes.
    fn await_first_instruction(&self, number: u64) -> Result<u64> {
        let deadline = Instant::now() + NOTE_TIMEOUT;
        loop {
            if let Some(stamp) = self.family.first_instruction_tsc(number) {
                return Ok(stamp);
            }
            ensure!(
                Instant::now() < deadline,
                "Machine {number} did not note its first instruction, or its counter's offset is not known on this host"
            );
            std::thread::yield_now();
        }
    }

    /// Forks the founder once, has the child write to its console at once, and returns when the fork was requested and
    /// when the first byte was there.
    pub(super) fn fork_to_console(&mut self) -> Result<(u64, u64, u64)> {
        while self.family.next_event().is_some() {}
        let outcome = self.family.fork(FOUNDER, 1, false)?;
        let child = outcome.children.first().context("The fork made no child")?;
        child.result.clone().map_err(anyhow::Error::msg)?;
        let number = child.number;
        self.family.post(number, &ramet_unikernel::request_with_bytes(abi::CONSOLE, b"clone\n"))?;
        self.await_console(number)?;
        Ok((number, outcome.requested_tsc, Ticks::now()))
    }

    /// Waits for the next bytes on a machine's console.
    fn await_console(&mut self, wanted: u64) -> Result<()> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            while let Some(event) = self.family.next_event() {
                match event {
                    FamilyEvent::Output { number, terminal: Terminal::Console, .. } if number == wanted => {
                        return Ok(());
                    }
                    FamilyEvent::Ended { number, failure, exit, .. } if number == wanted => {
                        anyhow::bail!("Machine {number} ended: {failure:?}, {exit:?}")
                    }
                    _ => {}
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "Machine {wanted} wrote nothing to its console within {ANSWER_TIMEOUT:?}");
            self.family.step(left);
        }
    }

    /// Kills a machine and waits until it is gone and reaped; how long that took, in microseconds.
    pub(super) fn end(&mut self, number: u64) -> Result<f64> {
        self.await_process(number)?;
        let began = Ticks::now();
        self.family.kill(number);
        ensure!(self.family.await_death(number, END_TIMEOUT), "Machine {number} was not gone within {END_TIMEOUT:?}");
        let gone = Ticks::now();
        self.family.forget(number);
        // Nobody reads them.
        while self.family.next_event().is_some() {}
        Ok(self.us(began, gone))
    }

    /// A child can answer before its supervisor has heard of its process, and cannot be killed until then.
    fn await_process(&mut self, number: u64) -> Result<()> {
        let deadline = Instant::now() + END_TIMEOUT;
        while self.family.members().any(|member| member.number == number && member.pid.is_none()) {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "The process of machine {number} was not reported within {END_TIMEOUT:?}");
            self.family.step(left);
        }
        Ok(())
    }

    pub(super) fn us(&self, from: u64, to: u64) -> f64 {
        self.ticks.us(from, to)
    }
}
