//! One fork at a time of a parent that counts in a loop: how long until the child runs and answers, and where the time
//! goes.

use anyhow::{Context, Result, ensure};
use ramet_abi::request as abi;

use super::machine::{Child, FOUNDER, Machine, Shape};
use super::settings::Settings;
use crate::interleave::{Interleave, Measure};
use crate::report::{Params, Row, params};
use crate::ticks::Ticks;

/// Pages in a MiB.
const MIB_PAGES: u64 = 256;

/// Adds the forks over slot sizes and vCPUs, and those over resident memory.
pub(super) fn add(interleave: &mut Interleave<'_>, settings: &Settings, ticks: Ticks) -> Result<()> {
    for &slot_mib in &settings.slots {
        for &vcpus in &settings.vcpus {
            let mut machine = Machine::boot(Shape { slot_mib, vcpus }, ticks)?;
            let names = [("slot_mib", slot_mib.into()), ("vcpus", vcpus.into()), ("parent", "spinning".into())];
            interleave.add(params(names), move || {
                let child = sample(&mut machine)?;
                let stages = stages(&machine, &child)?;
                let end = machine.end(child.number)?;
                Ok([stages, vec![us("clone_end", end)]].concat())
            });
        }
    }
    for &resident_mib in &settings.resident {
        let (slot_mib, vcpus) = (settings.resident_slot, 1);
        let mut machine = Machine::boot(Shape { slot_mib, vcpus }, ticks)?;
        let pages = resident_mib * MIB_PAGES;
        machine
            .ask(FOUNDER, abi::DIRTY, &[0, pages, 1, 1])
            .with_context(|| format!("{resident_mib} MiB in a slot of {slot_mib} MiB"))?;
        let names = [
            ("slot_mib", slot_mib.into()),
            ("vcpus", vcpus.into()),
            ("parent", "spinning".into()),
            ("resident_mib", resident_mib.into()),
        ];
        interleave.add(params(names), move || {
            let child = sample(&mut machine)?;
            let measures = essence(&machine, &child);
            machine.end(child.number)?;
            Ok(measures)
        });
    }
    Ok(())
}

/// A fork of a parent that counts; it halts again afterwards, so that it takes no time from other measurements.
fn sample(machine: &mut Machine) -> Result<Child> {
    machine.spin(true)?;
    let child = machine.fork()?;
    machine.spin(false)?;
    Ok(child)
}

fn us(name: &'static str, value: f64) -> Measure {
    Measure { name, value, unit: "us" }
}

/// What everybody asks for.
pub(super) fn essence(machine: &Machine, child: &Child) -> Vec<Measure> {
    let since = |name, stamp| us(name, machine.us(child.requested, stamp));
    vec![
        since("fork_first_instruction", child.first_instruction),
        since("fork_first_answer", child.answered),
        us("parent_pause", child.pause_us),
    ]
}

/// Those, and what was done when, all since the request was received.
fn stages(machine: &Machine, child: &Child) -> Result<Vec<Measure>> {
    let stamps = child.stamps;
    let stages = [
        ("stage_born", stamps.born),
        ("stage_confined", stamps.confined),
        ("stage_created", stamps.created),
        ("stage_blank", stamps.blank),
        ("stage_ordered", stamps.ordered),
        ("stage_mapped", stamps.mapped),
        ("stage_restored", stamps.restored),
        ("stage_released", stamps.released),
        ("stage_returned", child.returned),
    ];
    let mut measures = essence(machine, child);
    for (name, stamp) in stages {
        let value = machine.us(child.requested, stamp);
        ensure!(value > 0.0, "{name} was {value} us after the request");
        measures.push(us(name, value));
    }
    Ok(measures)
}

/// How the time to the first instruction grows with resident memory: the largest over the smallest.
pub(super) fn resident_ratio(rows: &[Row]) -> Option<Row> {
    let resident = |row: &&Row| row.params.get("resident_mib").and_then(serde_json::Value::as_u64);
    let rows: Vec<&Row> = rows.iter().filter(|row| row.name == "fork_first_instruction").collect();
    let most = rows.iter().copied().max_by_key(resident).filter(|row| resident(row).is_some())?;
    let with = rows.iter().copied().filter(|row| resident(row).is_some());
    let least = with.min_by_key(resident).filter(|row| resident(row) != resident(&most))?;
    let mut names = Params::clone(&most.params);
    names.remove("resident_mib");
    names.extend(params([("resident_mib_of", resident(&most).into()), ("resident_mib_to", resident(&least).into())]));
    Some(Row {
        name: "fork_resident_ratio".to_owned(),
        params: names,
        n: most.n.min(least.n),
        min: most.min / least.min,
        p50: most.p50 / least.p50,
        p99: most.p99 / least.p99,
        unit: "x".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_the_extremes() {
        let row = |pairs: &[(&str, u64)], p50: f64| {
            let names = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
            Row::of("fork_first_instruction", names, vec![p50], "us").unwrap()
        };
        let rows = [
            row(&[("slot_mib", 4096)], 1.0),
            row(&[("slot_mib", 4096), ("resident_mib", 2048)], 6.0),
            row(&[("slot_mib", 4096), ("resident_mib", 100)], 5.0),
        ];
        let ratio = resident_ratio(&rows).unwrap();
        assert_eq!((ratio.p50, ratio.n), (1.2, 1));
        let expected =
            params([("slot_mib", 4096.into()), ("resident_mib_of", 2048.into()), ("resident_mib_to", 100.into())]);
        assert_eq!(ratio.params, expected);
        assert_eq!(resident_ratio(&rows[..2]), None);
    }
}
