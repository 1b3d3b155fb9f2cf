//! A family leaves nothing behind: no process, descriptor, mapping or memory, however it ends.
#![allow(clippy::unwrap_used)]

mod common;

use common::elf::{self, Code};
use common::processes::{Footprint, children, exists, kill, shared_memory_kib};
use common::{Spec, alone, ramet};
use ramet_abi::request;
use std::io::Read;
use std::process::Stdio;

/// Runs `work`, then compares what this process holds with what it held before.
fn leaves_nothing(what: &str, work: impl FnOnce()) {
    // Whatever is only made once is made now.
    common::boot().shut_down();
    let before = Footprint::of_this_process();
    work();
    assert_eq!(Footprint::of_this_process(), before, "{what}");
}

#[test]
fn a_family_that_is_shut_down_is_gone() {
    let _alone = alone();
    let mut processes = Vec::new();
    leaves_nothing("a family of 9", || {
        let mut machines = Spec::with_vcpus(2).boot();
        let clones = machines.fork_many(0, 4);
        machines.fork_many(clones[0], 4);
        processes.push(machines.zygote_pid());
        processes.extend((0..9).map(|number| machines.pid(number)));
        machines.shut_down();
    });
    assert!(processes.iter().all(|process| !exists(*process)), "{processes:?}");
}

#[test]
fn a_family_that_is_dropped_is_gone() {
    let _alone = alone();
    leaves_nothing("a family that was dropped", || {
        let mut machines = common::boot();
        machines.fork_many(0, 3);
        let processes: Vec<u32> = (0..4).map(|number| machines.pid(number)).collect();
        drop(machines);
        common::wait_for("its machines to end", || !processes.iter().any(|process| exists(*process)));
    });
}

#[test]
fn machines_that_end_give_back_what_they_had() {
    let _alone = alone();
    let mut machines = common::boot();
    machines.fork_one(0);
    machines.family.end(1);
    machines.family.forget(1);
    let before = Footprint::of_this_process();
    for _ in 0..5 {
        for child in machines.fork_many(0, 4) {
            assert!(machines.family.end(child));
            machines.family.forget(child);
        }
    }
    // The founder's memory now has one more layer for each time it was written to.
    let layers = machines.layer_descriptors().len();
    let after = Footprint::of_this_process();
    assert!(layers < 16, "{layers} layers for a founder that wrote a few pages");
    machines.shut_down();
    let kept = format!("before {before:#?}, after {after:#?}");
    assert!(after.descriptors.len() <= before.descriptors.len() + layers, "{kept}");
    assert_eq!(after.shared_mappings, before.shared_mappings, "{kept}");
}

#[test]
fn memory_of_layers_goes_with_the_family() {
    let _alone = alone();
    const PAGES: u64 = 8_000;
    let before = shared_memory_kib();
    let mut machines = common::boot();
    for seed in 0..6 {
        machines.dirty(0, 0, PAGES, 1, seed);
        machines.fork_one(0);
    }
    let held = shared_memory_kib();
    assert!(held > before + 5 * PAGES * 4, "five deltas are held by their children: {before} KiB, {held} KiB");
    machines.shut_down();
    // Half of it is more than anybody else uses or gives back meanwhile.
    common::wait_for("the memory to come back", || shared_memory_kib() < (before + held) / 2);
}

#[test]
fn boots_that_fail_leave_nothing() {
    let _alone = alone();
    leaves_nothing("boots that failed", || {
        for kernel in [&b"no kernel"[..], &elf::file(elf::ENTRY, &[(1, 4096, 0x1000, 8, 8)], &[0; 8])] {
            let spec = Spec::default();
            let mut family = ramet_family::Family::start(&spec.config()).unwrap();
            for _ in 0..3 {
                assert!(family.boot(&spec.boot_spec(kernel)).is_err());
            }
            // Another try, with a better kernel, is not spoilt by it.
            family.boot(&spec.boot_spec(ramet_unikernel::ELF)).unwrap();
            family.shut_down();
        }
    });
}

#[test]
fn crashes_of_guests_leave_nothing() {
    let _alone = alone();
    leaves_nothing("guests that crashed", || {
        let mut machines = common::boot();
        for kind in [request::CRASH_TRIPLE_FAULT, request::CRASH_PANIC, request::CRASH_SPIN] {
            let child = machines.fork_one(0);
            machines.post(child, request::CRASH, &[kind]);
            if kind == request::CRASH_SPIN {
                machines.gather();
                assert!(machines.family.end(child));
            } else {
                machines.await_end(child);
            }
            machines.family.forget(child);
        }
        machines.shut_down();
    });
}

#[test]
fn nothing_outlives_a_supervisor_that_is_killed() {
    let _alone = alone();
    // It forks itself three times and says so, and then all of its machines wait for ever.
    let code = Code::default()
        .write_long(ramet_abi::guest_port::ARGUMENT_0, 3)
        .write_long(ramet_abi::guest_port::ARGUMENT_1, 0)
        .read_long(ramet_abi::guest_port::FORK)
        .text(ramet_abi::layout::SERIAL_PORT, "up\n");
    let folder = common::processes::Scratch::new();
    let kernel = folder.file("kernel", &elf::kernel(&code.halt().0));
    let mut command = ramet();
    command.args(["run", "--guest-forks", "4", "--memory", "16M"]).arg(kernel);
    let mut supervisor = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut output, mut said) = (supervisor.stdout.take().unwrap(), [0; 12]);
    output.read_exact(&mut said).unwrap();
    let zygotes = children(supervisor.id());
    let [zygote] = zygotes[..] else { panic!("{zygotes:?}") };
    let machines = children(zygote);
    // Letters of different machines may come in any order.
    said.sort_unstable();
    assert_eq!((&said, machines.len()), (b"\n\n\n\nppppuuuu", 4));
    kill(supervisor.id());
    supervisor.wait().unwrap();
    common::wait_for("zygote and machines to end", || !machines.iter().chain([&zygote]).any(|pid| exists(*pid)));
}
