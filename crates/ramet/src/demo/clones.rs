//! Forking the clones, and asking each who it is.

use super::{ANSWER_TIMEOUT, Progress, ask};
use anyhow::{Context, Result, bail};
use ramet_abi::request;
use ramet_family::{BuildStamps, Family};
use ramet_kvm::read_tsc;
use ramet_unikernel::{Identity, request as make_request, words};
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The private word that every machine writes its own value to.
const CELL: u64 = 7;
/// Heap pages that every machine writes its own pattern to.
const PAGES: u64 = 8;
/// How far a clone's wall clock may be from the host's.
const WALL_TOLERANCE_NS: u64 = 1_000_000;

/// How many, and how deep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) clones: u32,
    pub(crate) generations: u32,
}

/// What is known of one clone.
#[derive(Clone, Debug)]
pub(crate) struct CloneRecord {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    pub(crate) pause_ns: u64,
    pub(crate) requested_tsc: u64,
    pub(crate) first_instruction_tsc: Option<u64>,
    pub(crate) answered_tsc: u64,
    pub(crate) stamps: BuildStamps,
    pub(crate) identity: Identity,
    pub(crate) wall_right: bool,
    pub(crate) isolated: bool,
}

/// All clones of the demo.
#[derive(Debug)]
pub(crate) struct Clones {
    settings: Settings,
    pub(crate) records: Vec<CloneRecord>,
    pub(crate) founder_isolated: bool,
    founder_random: [u8; 32],
    calibration: (u64, Instant),
}

fn wall_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// A value that no other machine writes.
fn own_value(number: u64) -> u64 {
    0x0052_414D_4554_0000 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Clones {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            records: Vec::new(),
            founder_isolated: false,
            founder_random: [0; 32],
            calibration: (read_tsc(), Instant::now()),
        }
    }

    /// Clones of generation `g` (from 1): as even as possible.
    fn of_generation(&self, generation: u32) -> u32 {
        let Settings { clones, generations } = self.settings;
        clones / generations + u32::from(generation <= clones % generations)
    }

    pub(crate) fn fork_all(&mut self, family: &mut Family, progress: &Progress) -> Result<()> {
        let answer = family.request(0, &Identity::request(), ANSWER_TIMEOUT)?;
        self.founder_random = Identity::parse(&answer)?.random;
        write_own(family, 0)?;
        let total = u64::from(self.settings.clones);
        let mut parent = 0;
        for generation in 1..=self.settings.generations {
            let mut first = None;
            for _ in 0..self.of_generation(generation) {
                let record = fork_one(family, parent, generation)?;
                first.get_or_insert(record.number);
                self.records.push(record);
                progress.count("forking", self.records.len() as u64, total);
            }
            parent = first.unwrap_or(parent);
        }
        Ok(())
    }

    /// Every machine still holds what it wrote, and nothing of what others wrote.
    pub(crate) fn check_all(&mut self, family: &mut Family, progress: &Progress) -> Result<()> {
        let total = self.records.len() as u64;
        for index in 0..self.records.len() {
            let number = self.records[index].number;
            self.records[index].isolated = holds_own(family, number)?;
            progress.count("checking", index as u64 + 1, total);
        }
        self.founder_isolated = holds_own(family, 0)?;
        Ok(())
    }

    pub(crate) fn answering(&self) -> usize {
        let own = |record: &&CloneRecord| record.identity.number == record.number && record.wall_right;
        self.records.iter().filter(own).count()
    }

    pub(crate) fn distinct_random(&self) -> usize {
        let mut seen: BTreeSet<[u8; 32]> = self.records.iter().map(|record| record.identity.random).collect();
        seen.remove(&self.founder_random);
        seen.len()
    }

    pub(crate) fn isolation_ok(&self) -> bool {
        self.founder_isolated && self.records.iter().all(|record| record.isolated)
    }

    pub(crate) fn all_well(&self) -> bool {
        let all = self.records.len();
        self.answering() == all && self.distinct_random() == all && self.isolation_ok()
    }

    /// Nanoseconds per tick of the host's time-stamp counter.
    pub(crate) fn ns_per_tick(&self) -> f64 {
        let (tsc, instant) = self.calibration;
        let ticks = read_tsc().wrapping_sub(tsc).max(1);
        instant.elapsed().as_nanos() as f64 / ticks as f64
    }
}

fn fork_one(family: &mut Family, parent: u64, generation: u32) -> Result<CloneRecord> {
    let outcome = family.fork(parent, 1, false).with_context(|| format!("Machine {parent} cannot be forked"))?;
    let Some(child) = outcome.children.first() else { bail!("Forking machine {parent} gave no child") };
    let number = child.number;
    let stamps = match &child.result {
        Ok(stamps) => *stamps,
        Err(reason) => bail!("Clone {number} could not be made: {reason}"),
    };
    let before = wall_ns();
    let answer = family.request(number, &Identity::request(), ANSWER_TIMEOUT)?;
    let answered_tsc = read_tsc();
    let after = wall_ns();
    let identity = Identity::parse(&answer).with_context(|| format!("Clone {number}"))?;
    let wall = before.saturating_sub(WALL_TOLERANCE_NS)..=after.saturating_add(WALL_TOLERANCE_NS);
    // Written at once, so that everything that is forked or written later could spoil it.
    write_own(family, number)?;
    // The parent goes on writing, too.
    if parent == 0 {
        write_own(family, 0)?;
    }
    Ok(CloneRecord {
        number,
        generation,
        pause_ns: outcome.pause_ns,
        requested_tsc: outcome.requested_tsc,
        first_instruction_tsc: family.first_instruction_tsc(number),
        answered_tsc,
        stamps,
        wall_right: wall.contains(&identity.wall_ns),
        identity,
        isolated: false,
    })
}

fn write_own(family: &mut Family, number: u64) -> Result<()> {
    ask(family, number, &make_request(request::POKE, &[CELL, own_value(number)]))?;
    ask(family, number, &make_request(request::DIRTY, &[0, PAGES, 1, own_value(number)]))?;
    Ok(())
}

fn holds_own(family: &mut Family, number: u64) -> Result<bool> {
    let answer = family.request(number, &make_request(request::PEEK, &[CELL]), ANSWER_TIMEOUT)?;
    let [cell] = words(&answer)?;
    let check = make_request(request::CHECK, &[0, PAGES, 1, own_value(number)]);
    let [wrong] = words(&family.request(number, &check, ANSWER_TIMEOUT)?)?;
    Ok(cell == own_value(number) && wrong == 0)
}
