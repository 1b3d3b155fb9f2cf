//! What the benchmark can be told by `--set`, and what it does untold.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::options::Options;

/// The names.
pub(super) const NAMES: &[&str] =
    &["slots", "vcpus", "resident_slot", "resident", "dirty", "forks", "repeats", "clones", "ramet"];

/// Largest slot that is accepted, in MiB: what is larger than the host the host refuses.
const MAX_SLOT_MIB: u64 = 1 << 20;
/// Most forks in a row.
const MAX_FORKS: u32 = 10_000;

/// The settings.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Memory slots to fork, in MiB.
    pub(super) slots: Vec<u64>,
    /// Numbers of vCPUs to fork.
    pub(super) vcpus: Vec<u8>,
    /// Slot in which resident memory is varied, in MiB.
    pub(super) resident_slot: u64,
    /// Resident memory to compare, in MiB.
    pub(super) resident: Vec<u64>,
    /// Pages written between forks.
    pub(super) dirty: Vec<u64>,
    /// Which forks of a row are looked at, from 1.
    pub(super) forks: Vec<u32>,
    /// How many rows of forks.
    pub(super) repeats: u32,
    /// Clones alive at once.
    pub(super) clones: u32,
    /// The command that is booted from its start.
    pub(super) ramet: PathBuf,
}

impl Settings {
    /// As told.
    ///
    /// # Errors
    /// A value that is none, or out of range; no `ramet` beside this program.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let quick = options.quick;
        let one = |name, default: u32| -> Result<u32> {
            options.values(name, &[default])?.first().copied().with_context(|| format!("--set {name}=: say a number"))
        };
        let slots = if quick { &[16, 128][..] } else { &[16, 128, 512, 4096] };
        let settings = Self {
            slots: options.values("slots", slots)?,
            vcpus: options.values("vcpus", &[1, 2])?,
            resident_slot: one("resident_slot", if quick { 128 } else { 4096 })?.into(),
            resident: options.values("resident", if quick { &[8, 64] } else { &[100, 2048] })?,
            dirty: options.values("dirty", if quick { &[0, 64, 1000] } else { &[0, 64, 1000, 10_000] })?,
            forks: options.values("forks", if quick { &[1, 2, 10] } else { &[1, 2, 10, 100] })?,
            repeats: one("repeats", if quick { 1 } else { 5 })?,
            clones: one("clones", if quick { 20 } else { 1000 })?,
            ramet: ramet(options)?,
        };
        for slot in settings.slots.iter().chain([&settings.resident_slot]) {
            ensure!((8..=MAX_SLOT_MIB).contains(slot), "A slot of {slot} MiB: choose 8 to {MAX_SLOT_MIB}");
        }
        for fork in &settings.forks {
            ensure!((1..=MAX_FORKS).contains(fork), "--set forks={fork}: choose 1 to {MAX_FORKS}");
        }
        ensure!(settings.clones > 0, "--set clones=0: choose 1 or more");
        Ok(settings)
    }
}

/// The command: as told, or beside this program.
fn ramet(options: &Options) -> Result<PathBuf> {
    if let Some(path) = options.text("ramet") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("Could not find this program's own file")?;
    let beside = own.with_file_name("ramet");
    ensure!(
        beside.is_file(),
        "There is no {}: build it (cargo build --release --package ramet) or say --set ramet=PATH",
        beside.display()
    );
    Ok(beside)
}
