//! How long a live fork stops its parent: over the pages that the parent wrote since its last fork, and over the
//! number of forks that it has had.

use anyhow::Result;

use super::machine::{Machine, Shape};
use super::settings::Settings;
use super::single::essence;
use crate::interleave::{Interleave, Measure};
use crate::report::{Row, params};
use crate::ticks::Ticks;

/// Memory slot of the parents here, in MiB.
const SLOT_MIB: u64 = 128;
/// From so many written pages on, a fork is measured in few rounds only: the child takes long to be filled.
const RARE_PAGES: u64 = 5000;
/// In one of so many.
const RARE_EVERY: u32 = 4;
/// Pages written before each of the forks in a row.
const FLAT_DIRTY_PAGES: u64 = 64;

/// Adds the pauses over written pages, of a parent that is halted when it is stopped and of one that counts.
pub(super) fn add(interleave: &mut Interleave<'_>, settings: &Settings, ticks: Ticks) -> Result<()> {
    for &dirty in &settings.dirty {
        for (parent, spinning) in [("halted", false), ("spinning", true)] {
            let mut machine = Machine::boot(Shape { slot_mib: SLOT_MIB, vcpus: 1 }, ticks)?;
            let names = [
                ("slot_mib", SLOT_MIB.into()),
                ("vcpus", 1.into()),
                ("parent", parent.into()),
                ("dirty_pages", dirty.into()),
            ];
            let mut seed = 0;
            let every = if dirty >= RARE_PAGES { RARE_EVERY } else { 1 };
            interleave.add_rare(params(names), every, move || {
                seed += 1;
                machine.spin(spinning)?;
                machine.dirty(0, dirty, seed)?;
                let child = machine.fork()?;
                machine.spin(false)?;
                let measures = if spinning {
                    essence(&machine, &child)
                } else {
                    vec![Measure { name: "parent_pause", value: child.pause_us, unit: "us" }]
                };
                machine.end(child.number)?;
                Ok(measures)
            });
        }
    }
    Ok(())
}

/// The pauses of the first, ... hundredth fork in a row of a parent with 2 vCPUs that writes between them: always the
/// same pages, or always others.
pub(super) fn in_a_row(settings: &Settings, ticks: Ticks) -> Result<Vec<Row>> {
    let last = settings.forks.iter().copied().max().unwrap_or(0);
    let mut rows = Vec::new();
    let mut pauses = [("same", false), ("moving", true)].map(|kind| (kind, vec![Vec::new(); settings.forks.len()]));
    for repeat in 0..settings.repeats {
        eprintln!("  {last} forks in a row, {} of {}", repeat + 1, settings.repeats);
        for ((_, moving), pauses) in &mut pauses {
            let mut machine = Machine::boot(Shape { slot_mib: SLOT_MIB, vcpus: 2 }, ticks)?;
            machine.spin(true)?;
            for fork in 1..=last {
                let first = if *moving { u64::from(fork) } else { 0 };
                machine.dirty(first, FLAT_DIRTY_PAGES, fork.into())?;
                let child = machine.fork()?;
                machine.end(child.number)?;
                for (wanted, pauses) in settings.forks.iter().zip(pauses.iter_mut()) {
                    if *wanted == fork {
                        pauses.push(child.pause_us);
                    }
                }
            }
        }
    }
    for ((pages, _), pauses) in pauses {
        for (fork, pauses) in settings.forks.iter().zip(pauses) {
            let names = [
                ("fork", (*fork).into()),
                ("pages", pages.into()),
                ("dirty_pages", FLAT_DIRTY_PAGES.into()),
                ("slot_mib", SLOT_MIB.into()),
                ("vcpus", 2.into()),
                ("parent", "spinning".into()),
            ];
            rows.extend(Row::of("freeze_flat", params(names), pauses, "us"));
        }
    }
    Ok(rows)
}
