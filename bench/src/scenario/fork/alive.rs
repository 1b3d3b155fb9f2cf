//! Many clones alive at once: each verified, what they take, and whether the last is made as fast as the first.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ramet_abi::request as abi;
use ramet_family::Phase;
use ramet_memory::account::memory_use;

use super::machine::{Child, FOUNDER, Machine, Shape};
use super::settings::Settings;
use crate::report::{Params, Row, params};
use crate::ticks::Ticks;

/// Memory slot of the machines here, in MiB.
const SLOT_MIB: u64 = 128;
/// The private word that each clone writes its own value to.
const CELL: u64 = 7;
/// Heap pages that each clone writes its own pattern to.
const OWN_PAGES: u64 = 8;
/// Largest group of clones whose times are put together.
const GROUP_MAX: usize = 100;

/// What a clone writes.
fn own_value(number: u64) -> u64 {
    0x0052_414D_4554_0000 ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Memory before or after, in KiB.
struct Memory {
    available: f64,
    charged: Option<f64>,
}

impl Memory {
    fn now(machine: &Machine) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/meminfo").context("Could not read /proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let available = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        Ok(Self {
            available: available.context("/proc/meminfo does not say MemAvailable")?,
            charged: machine.family.charged_bytes().map(|bytes| bytes as f64 / 1024.0),
        })
    }
}

/// The rows.
pub(super) fn rows(settings: &Settings, ticks: Ticks) -> Result<Vec<Row>> {
    let mut machine = Machine::boot(Shape { slot_mib: SLOT_MIB, vcpus: 1 }, ticks)?;
    if let Err(error) = machine.family.join_cgroup() {
        eprintln!("  no row clone_cgroup_memory: the machines cannot have a cgroup here ({error})");
    }
    machine.spin(true)?;
    let before = Memory::now(&machine)?;
    let began = Ticks::now();
    let mut children = Vec::new();
    for made in 1..=settings.clones {
        let child = machine.fork().with_context(|| format!("Clone {made} of {}", settings.clones))?;
        write_own(&mut machine, child.number)?;
        children.push(child);
        if made % 250 == 0 {
            eprintln!("  {made} of {} clones alive", settings.clones);
        }
    }
    let seconds = machine.us(began, Ticks::now()) / 1e6;
    verify(&mut machine, &children)?;
    let after = Memory::now(&machine)?;
    let mut rows = times(&machine, &children);
    rows.extend(memory(&machine, &children, &before, &after)?);
    let all = names(children.len());
    rows.extend(Row::of("clones_alive", all.clone(), vec![children.len() as f64], "clones"));
    rows.extend(Row::of("clones_per_second", all, vec![children.len() as f64 / seconds], "1/s"));
    machine.family.shut_down();
    Ok(rows)
}

fn names(clones: usize) -> Params {
    params([
        ("clones", clones.into()),
        ("slot_mib", SLOT_MIB.into()),
        ("vcpus", 1.into()),
        ("own_pages", OWN_PAGES.into()),
    ])
}

fn write_own(machine: &mut Machine, number: u64) -> Result<()> {
    let value = own_value(number);
    machine.ask(number, abi::POKE, &[CELL, value])?;
    machine.ask(number, abi::DIRTY, &[0, OWN_PAGES, 1, value]).map(drop)
}

/// All run, are who they are, have random bytes that nobody else has, and hold what they wrote.
fn verify(machine: &mut Machine, children: &[Child]) -> Result<()> {
    let running = machine.family.members().filter(|member| member.phase == Phase::Running).count();
    ensure!(running == children.len() + 1, "{running} machines run, not {} and their parent", children.len());
    let random: BTreeSet<_> = children.iter().map(|child| child.identity.random).collect();
    let generations: BTreeSet<_> = children.iter().map(|child| child.identity.generation).collect();
    let expected = (children.len(), children.len());
    ensure!((random.len(), generations.len()) == expected, "Two clones have the same random bytes or generation");
    for child in children {
        let (number, value) = (child.number, own_value(child.number));
        let cell = machine.ask_word(number, abi::PEEK, &[CELL])?;
        ensure!(cell == value, "Clone {number} holds {cell:#x}, not its own value {value:#x}");
        let wrong = machine.ask_word(number, abi::CHECK, &[0, OWN_PAGES, 1, value])?;
        ensure!(wrong == 0, "{wrong} pages of clone {number} do not hold what it wrote");
    }
    machine.ask(FOUNDER, abi::IDENTITY, &[]).map(drop)
}

/// The first and the last of them: as many as there are, but no clone is in both groups.
fn times(machine: &Machine, children: &[Child]) -> Vec<Row> {
    let group = GROUP_MAX.min(children.len() / 2).max(1);
    let ranges = [0..group, children.len() - group..children.len()];
    let mut rows = Vec::new();
    for range in ranges {
        let mut names = names(children.len());
        names.extend(params([("forks", format!("{}..{}", range.start + 1, range.end).into())]));
        let group = &children[range];
        let since = |stamp: &dyn Fn(&Child) -> u64| {
            group.iter().map(|child| machine.us(child.requested, stamp(child))).collect()
        };
        rows.extend(Row::of("clones_first_instruction", names.clone(), since(&|child| child.first_instruction), "us"));
        rows.extend(Row::of("clones_first_answer", names.clone(), since(&|child| child.answered), "us"));
        let pauses = group.iter().map(|child| child.pause_us).collect();
        rows.extend(Row::of("clones_parent_pause", names, pauses, "us"));
    }
    rows
}

fn memory(machine: &Machine, children: &[Child], before: &Memory, after: &Memory) -> Result<Vec<Row>> {
    let names = names(children.len());
    let mut proportional = Vec::new();
    for member in machine.family.members().filter(|member| member.number != FOUNDER) {
        let pid = member.pid.with_context(|| format!("Clone {} has no process", member.number))?;
        proportional.push(memory_use(pid)?.proportional_kib as f64);
    }
    let each = |sum: f64| vec![sum / children.len() as f64];
    let mean = each(proportional.iter().sum());
    let mut rows = Vec::new();
    rows.extend(Row::of("clone_pss", names.clone(), proportional, "KiB"));
    rows.extend(Row::of("clone_pss_mean", names.clone(), mean, "KiB"));
    rows.extend(Row::of("clone_memory", names.clone(), each(before.available - after.available), "KiB"));
    if let (Some(before), Some(after)) = (before.charged, after.charged) {
        rows.extend(Row::of("clone_cgroup_memory", names, each(after - before), "KiB"));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_values_differ() {
        let values: BTreeSet<u64> = (0..10_000).map(own_value).collect();
        assert_eq!(values.len(), 10_000);
    }
}
