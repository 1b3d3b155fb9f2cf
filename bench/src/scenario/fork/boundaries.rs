//! The same things between other points in time: those that others publish, and what the operating system itself
//! takes for a process.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ramet_process::{Forked, Namespaces, exit_now, fork_process};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::super::floor;
use super::machine::{Machine, Shape};
use super::settings::Settings;
use crate::interleave::{Interleave, Measure};
use crate::report::{Params, params};
use crate::ticks::Ticks;

/// Memory slot of the machines here, in MiB.
const SLOT_MIB: u64 = 128;
/// Given to the processes of a killed command to end before anything else is measured.
const QUIET: Duration = Duration::from_millis(20);

/// Adds boots from the start of a process, forks to the console, and the host's own processes.
pub(super) fn add<'a>(
    interleave: &mut Interleave<'a>,
    settings: &'a Settings,
    kernel: &'a KernelFile,
    ticks: Ticks,
) -> Result<()> {
    let shape = || [("slot_mib", SLOT_MIB.into()), ("vcpus", 1.into())];
    let ramet = &settings.ramet;
    interleave.add(params(shape()), || boot_to_answer(ramet));
    interleave.add(params(shape()), || boot_to_console(ramet, &kernel.path));
    let mut machine = Machine::boot(Shape { slot_mib: SLOT_MIB, vcpus: 1 }, ticks)?;
    interleave.add(params(shape()), move || {
        machine.spin(true)?;
        let (number, requested, written) = machine.fork_to_console()?;
        machine.spin(false)?;
        let value = machine.us(requested, written);
        machine.end(number)?;
        Ok(vec![Measure { name: "fork_process_start_to_console", value, unit: "us" }])
    });
    interleave.add(Params::new(), process_fork_exit);
    interleave.add(params([("call", "posix_spawn".into())]), floor::process_spawn_exit);
    interleave.add(Params::new(), floor::vm_create_close);
    Ok(())
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The part of the demo's answer that is needed here.
#[derive(Debug, Deserialize)]
struct Demo {
    boot_ms: f64,
    answered_monotonic_ns: u64,
}

/// From before the command is spawned to the guest's first answer, of which the command tells the time.
fn boot_to_answer(ramet: &Path) -> Result<Vec<Measure>> {
    let mut command = Command::new(ramet);
    command.args(["demo", "--clones", "0", "--json", "--memory", &format!("{SLOT_MIB}M")]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let began = monotonic_ns();
    let output = command.output().with_context(|| format!("{} cannot be run", ramet.display()))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let demo: Demo = serde_json::from_slice(&output.stdout).context("The demo's answer is not as documented")?;
    let took = demo.answered_monotonic_ns.checked_sub(began).context("The demo answered before it was started")?;
    Ok(vec![
        Measure::ms("boot_unikernel", Duration::from_nanos(took)),
        Measure { name: "boot_unikernel_inside", value: demo.boot_ms, unit: "ms" },
    ])
}

/// From before the command is spawned to the first byte of the guest's console on the command's standard output.
fn boot_to_console(ramet: &Path, kernel: &Path) -> Result<Vec<Measure>> {
    let mut command = Command::new(ramet);
    command.arg("run").arg(kernel).args(["--memory", &format!("{SLOT_MIB}M")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let began = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{} cannot be run", ramet.display()))?;
    let mut first = [0];
    let read = child.stdout.take().context("The command has no standard output")?.read_exact(&mut first);
    let took = began.elapsed();
    child.kill().context("The command cannot be ended")?;
    child.wait().context("The command cannot be waited for")?;
    read.context("The guest wrote nothing to its console")?;
    std::thread::sleep(QUIET);
    Ok(vec![Measure::ms("boot_process_start_to_console", took)])
}

/// fork(), and a child that ends at once: from the call to the child's being reaped.
fn process_fork_exit() -> Result<Vec<Measure>> {
    let began = Instant::now();
    let child = match fork_process(Namespaces::default(), None).context("This process cannot fork")? {
        Forked::Child => exit_now(0),
        Forked::Parent(child) => child,
    };
    waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED).context("The child cannot be waited for")?;
    Ok(vec![Measure::us("process_fork_exit", began.elapsed())])
}

/// The embedded unikernel as a file, for a command that wants one. Dropped: gone.
#[derive(Debug)]
pub(super) struct KernelFile {
    path: PathBuf,
}

impl KernelFile {
    /// Writes it where temporary files are.
    pub(super) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bench-{}-unikernel", std::process::id()));
        std::fs::write(&path, ramet_unikernel::ELF).with_context(|| format!("Could not write {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for KernelFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            eprintln!("bench: {} stays behind: {error}", self.path.display());
        }
    }
}
