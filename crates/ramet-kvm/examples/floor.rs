//! What creating, saving and restoring costs on this host, to be compared with other hosts. Prints microseconds.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::programs::integer_and_sse;
use common::{Guest, Memory, Ring, class, kvm, model, start};
use ramet_kvm::{BlankVm, HostModel, host_cpuid};
use ramet_state::{InterruptMode, memory_regions};
use std::time::Instant;

const ROUNDS: usize = 200;

fn report(name: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[times.len() * share / 100];
    println!("{name:44} min {:8.1}  p50 {:8.1}  p99 {:8.1}", times[0], at(50), at(99));
}

fn timed<T>(times: &mut Vec<f64>, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    times.push(begin.elapsed().as_secs_f64() * 1e6);
    result
}

fn create(interrupts: InterruptMode, vcpus: u8, bytes: u64) {
    let kvm = kvm();
    let class = ramet_state::VmClass { memory_bytes: bytes, ..class(vcpus, interrupts) };
    let slots: Vec<_> = memory_regions(&class).into_iter().map(|region| (region, (1 << 44) + region.start)).collect();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        timed(&mut times, || BlankVm::create(&kvm, model(), &class, &slots).unwrap());
    }
    report(&format!("create {interrupts:?} {vcpus} vCPU {} MiB", bytes >> 20), times);
}

fn save_and_restore() {
    let mut memory = Memory::new();
    memory.load(&integer_and_sse());
    let mut guest = Guest::new(memory, 1, InterruptMode::Split);
    guest.vcpus[0].restore(&start(Ring::Three, 1000)).unwrap();
    guest.finish();
    guest.vcpus[0].complete_pending(&mut |_| {}).unwrap();
    let mut saves = Vec::new();
    for _ in 0..ROUNDS * 5 {
        timed(&mut saves, || guest.vcpus[0].save().unwrap());
    }
    report("save", saves);
    let state = guest.vcpus[0].save().unwrap();
    let (mut restores, mut first, mut noting, mut primes, mut primed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut child = Guest::new(guest.memory.copy(), 1, InterruptMode::Split);
        timed(&mut noting, || child.vcpus[0].note_fresh().unwrap());
        timed(&mut first, || child.vcpus[0].restore(&state).unwrap());
        timed(&mut restores, || child.vcpus[0].restore(&state).unwrap());
    }
    for _ in 0..ROUNDS {
        let mut child = Guest::new(guest.memory.copy(), 1, InterruptMode::Split);
        timed(&mut primes, || child.vcpus[0].prime().unwrap());
        timed(&mut primed, || child.vcpus[0].restore(&state).unwrap());
    }
    report("first KVM_RUN that does not enter", primes);
    report("restore after that", primed);
    report("note_fresh", noting);
    report("restore into a newborn vCPU", first);
    report("restore again, reading what it has first", restores);
}

fn main() {
    let kvm = kvm();
    let mut learning = Vec::new();
    let cpuid = host_cpuid(&kvm).unwrap();
    for _ in 0..20 {
        timed(&mut learning, || HostModel::learn(&kvm, &cpuid).unwrap());
    }
    report("HostModel::learn", learning);
    println!("TSC virtual: {}, CPUID honoured: {}", model().tsc_is_virtual(), model().cpuid_is_honoured());
    save_and_restore();
    for vcpus in [1, 2, 4] {
        create(InterruptMode::Split, vcpus, 128 << 20);
    }
    create(InterruptMode::Full { pit: false }, 1, 128 << 20);
    create(InterruptMode::Full { pit: true }, 1, 128 << 20);
    create(InterruptMode::Split, 1, 4096 << 20);
}
