//! What the host itself costs, before any of Ramet: the floor under every other number.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvm_ioctls::Kvm;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::Scenario;
use crate::chart::Chart;
use crate::interleave::{Interleave, Measure};
use crate::options::Options;
use crate::report::{Params, Report, params};

/// The benchmark.
pub(super) const SCENARIO: Scenario = Scenario {
    name: "floor",
    about: "what the host costs: processes, wake-ups, memory, empty virtual machines (a quarter of a minute)",
    settings: &["mib"],
    run,
    chart: |report| Chart::bars("What the host costs", report),
};

const PAGE_BYTES: usize = 4096;
const MIB: usize = 1 << 20;
/// Above the 32 MiB from which glibc's allocator always maps fresh memory, whatever was freed before.
const FIRST_TOUCH_MIB: usize = 64;

fn run(options: &Options) -> Result<Report> {
    let mut interleave = Interleave::new();
    interleave.add(Params::new(), process_spawn_exit);
    interleave.add(Params::new(), thread_spawn_join);
    interleave.add(Params::new(), eventfd_round_trip);
    interleave.add(Params::new(), vm_create_close);
    interleave.add(Params::new(), vcpu_create);
    interleave.add(params([("mib", FIRST_TOUCH_MIB.into())]), first_touch);
    for mib in options.values("mib", &[1usize, 16, 64])? {
        ensure!((1..=4096).contains(&mib), "--set mib={mib}: choose 1 to 4096");
        interleave.add(params([("mib", mib.into())]), move || memfd_write(mib));
    }
    Ok(Report::new(SCENARIO.name, interleave.run(options.samples(200), options.seed)?))
}

/// A process that runs another program, which ends at once.
pub(super) fn process_spawn_exit() -> Result<Vec<Measure>> {
    let started = Instant::now();
    let status = Command::new("true").stdin(Stdio::null()).status().context("Could not run `true`")?;
    let took = started.elapsed();
    ensure!(status.success(), "`true` failed: {status}");
    Ok(vec![Measure::ms("process_spawn_exit", took)])
}

fn thread_spawn_join() -> Result<Vec<Measure>> {
    let started = Instant::now();
    let thread = std::thread::spawn(Instant::now);
    let running = thread.join().map_err(|_| anyhow::anyhow!("The thread panicked"))?;
    let joined = started.elapsed();
    Ok(vec![Measure::us("thread_spawn_running", running - started), Measure::us("thread_spawn_join", joined)])
}

/// A doorbell to a sleeping thread and its answer, over two eventfds.
fn eventfd_round_trip() -> Result<Vec<Measure>> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC).context("Could not make an eventfd")?;
    let answer = eventfd(0, EventfdFlags::CLOEXEC).context("Could not make an eventfd")?;
    let (ready, is_ready) = mpsc::channel();
    let took = std::thread::scope(|scope| -> Result<Duration> {
        let peer = scope.spawn(|| -> rustix::io::Result<()> {
            // The receiver outlives this thread: it waits below.
            let _ = ready.send(());
            rustix::io::read(&bell, &mut [0u8; 8])?;
            rustix::io::write(&answer, &1u64.to_ne_bytes()).map(drop)
        });
        is_ready.recv().context("The thread ended early")?;
        // It is about to read; give it the time to fall asleep there.
        std::thread::sleep(Duration::from_micros(100));
        let started = Instant::now();
        rustix::io::write(&bell, &1u64.to_ne_bytes()).context("Could not ring")?;
        rustix::io::read(&answer, &mut [0u8; 8]).context("Could not read the answer")?;
        let took = started.elapsed();
        peer.join().map_err(|_| anyhow::anyhow!("The thread panicked"))?.context("The thread's eventfd failed")?;
        Ok(took)
    })?;
    Ok(vec![Measure::us("eventfd_round_trip", took)])
}

/// The first write to each page of fresh anonymous memory.
fn first_touch() -> Result<Vec<Measure>> {
    // Mapped, zeroed by the kernel when touched.
    let mut memory = vec![0u8; FIRST_TOUCH_MIB * MIB];
    let started = Instant::now();
    for page in memory.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    let took = started.elapsed();
    black_box(&memory);
    Ok(vec![per_page("first_touch_page", took, FIRST_TOUCH_MIB)])
}

/// Writing a fresh memfd: what copying written pages into a layer costs at least.
fn memfd_write(mib: usize) -> Result<Vec<Measure>> {
    let data = vec![1u8; MIB];
    let started = Instant::now();
    let file = memfd_create("bench", MemfdFlags::CLOEXEC).context("Could not make a memfd")?;
    ftruncate(&file, (mib * MIB) as u64).context("Could not size the memfd")?;
    for _ in 0..mib {
        let written = rustix::io::write(&file, &data).context("Could not write to the memfd")?;
        ensure!(written == data.len(), "Only {written} of {} bytes went to the memfd", data.len());
    }
    let took = started.elapsed();
    Ok(vec![per_page("memfd_write_page", took, mib)])
}

fn per_page(name: &'static str, took: Duration, mib: usize) -> Measure {
    let whole = Measure::us(name, took);
    Measure { value: whole.value / (mib * MIB / PAGE_BYTES) as f64, ..whole }
}

fn kvm() -> Result<Kvm> {
    Kvm::new().context("Could not open /dev/kvm: this benchmark needs it, readable and writable")
}

pub(super) fn vm_create_close() -> Result<Vec<Measure>> {
    let kvm = kvm()?;
    let started = Instant::now();
    let vm = kvm.create_vm().context("Could not create a virtual machine")?;
    let created = started.elapsed();
    let closing = Instant::now();
    drop(vm);
    Ok(vec![Measure::us("vm_create", created), Measure::us("vm_close", closing.elapsed())])
}

fn vcpu_create() -> Result<Vec<Measure>> {
    let vm = kvm()?.create_vm().context("Could not create a virtual machine")?;
    let started = Instant::now();
    let vcpu = vm.create_vcpu(0).context("Could not create a vCPU")?;
    let created = started.elapsed();
    drop(vcpu);
    Ok(vec![Measure::us("vcpu_create", created)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_measures() {
        let parts = [process_spawn_exit, thread_spawn_join, eventfd_round_trip, vm_create_close, vcpu_create];
        for part in parts {
            assert!(part().unwrap().iter().all(|measure| measure.value > 0.0));
        }
        assert!(first_touch().unwrap()[0].value > 0.0);
        assert!(memfd_write(1).unwrap()[0].value > 0.0);
    }
}
