//! What forking, confining and filtering cost on this host. Not a test: `cargo test --test timings -- [N]` prints a
//! table (microseconds; N runs each, 200 unless given). Variants that are compared are interleaved.

#![allow(clippy::unwrap_used)]

#[path = "support/linear.rs"]
mod linear;

use std::os::fd::AsFd;
use std::time::Instant;

use ramet_process::seccomp::{MachineFilter, MachineFilterSpec, Policy, Rule, machine_policy};
use ramet_process::signals::own_pidfd;
use ramet_process::{
    Confinement, Credentials, Forked, HostDescriptors, Limits, Namespaces, Received, SeqPacket, exit_now, fork_process,
    isolate_zygote, wait_for,
};
use rustix::process::Pid;
use seccompiler::BpfProgram;

fn main() {
    let runs = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(200);
    println!("{:52} {:>7} {:>7} {:>7}", "microseconds", "min", "p50", "p99");
    forks(runs);
    filters(runs);
    messages(runs);
    isolation(runs.min(50));
    let (isolation, host) = isolate_zygote().unwrap();
    println!("in a zygote that is {isolation}:");
    confinement(runs, &host);
    forks(runs);
}

struct Row(&'static str, Vec<f64>);

impl Row {
    fn print(mut self) {
        self.1.sort_by(f64::total_cmp);
        let at = |share: f64| self.1[((self.1.len() - 1) as f64 * share) as usize];
        println!("{:52} {:7.1} {:7.1} {:7.1}", self.0, at(0.0), at(0.5), at(0.99));
    }
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1000.0
}

/// Forks a child and returns how long it took to run, and what it measured.
fn in_child(namespaces: Namespaces, body: impl FnOnce() -> f64) -> (f64, f64) {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let start = Instant::now();
    match fork_process(namespaces, None).unwrap() {
        Forked::Child => {
            // CLOCK_MONOTONIC is the same on both sides.
            let woke = micros(start);
            let measured = body();
            theirs.send(&[woke.to_le_bytes(), measured.to_le_bytes()].concat(), &[]).unwrap();
            exit_now(0)
        }
        Forked::Parent(child) => {
            let Received::Message(message) = ours.recv(Limits::default()).unwrap() else { panic!("the child ended") };
            wait_for(&child.pidfd).unwrap();
            let number = |at: usize| f64::from_le_bytes(message.bytes[at..at + 8].try_into().unwrap());
            (number(0), number(8))
        }
    }
}

fn forks(runs: usize) {
    let (mut plain, mut pid) =
        (Row("clone3 -> child runs", vec![]), Row("clone3 with CLONE_NEWPID -> child runs", vec![]));
    let (mut plain_call, mut pid_call) = (Row("clone3 call", vec![]), Row("clone3 call with CLONE_NEWPID", vec![]));
    for _ in 0..runs {
        for (row, call, namespaces) in [
            (&mut plain, &mut plain_call, Namespaces { pid: false }),
            (&mut pid, &mut pid_call, Namespaces { pid: true }),
        ] {
            row.1.push(in_child(namespaces, || 0.0).0);
            let start = Instant::now();
            match fork_process(namespaces, None).unwrap() {
                Forked::Child => exit_now(0),
                Forked::Parent(child) => {
                    call.1.push(micros(start));
                    wait_for(&child.pidfd).unwrap();
                }
            }
        }
    }
    [plain_call, pid_call, plain, pid].into_iter().for_each(Row::print);
}

fn isolation(runs: usize) {
    let mut row = Row("isolate_zygote", vec![]);
    for _ in 0..runs {
        row.1.push(
            in_child(Namespaces::default(), || {
                let start = Instant::now();
                isolate_zygote().unwrap();
                micros(start)
            })
            .1,
        );
    }
    row.print();
}

fn install(program: &BpfProgram) -> f64 {
    let start = Instant::now();
    seccompiler::apply_filter_all_threads(program).unwrap();
    micros(start)
}

fn filters(runs: usize) {
    let ioctls: Vec<u32> = (0..60).map(|n| 0x4000_ae00 + n * 5).collect();
    let policy = machine_policy(&MachineFilterSpec { own_pid: Pid::from_raw(1).unwrap(), ioctls: &ioctls });
    let tree = ramet_process::seccomp::compile(&policy).unwrap();
    let linear = linear::compile(&policy).unwrap();
    let smallest = BpfProgram::from([seccompiler::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }]);
    // How much of the time is the size, how much the paths: every number looked up, no argument checked.
    let numbers = (0..460).filter(|n| n % 2 == 0).fold(Policy::new(), |policy, n| policy.with(n, Rule::Allow));
    let numbers = numbers.with(libc::SYS_exit_group, Rule::Allow);
    let numbers = ramet_process::seccomp::compile(&numbers).unwrap();
    println!("instructions: tree {}, linear {}, half of all numbers {}", tree.len(), linear.len(), numbers.len());
    let mut rows = [
        (Row("install: one instruction", vec![]), smallest),
        (Row("install: search tree", vec![]), tree),
        (Row("install: seccompiler's linear chain", vec![]), linear),
        (Row("install: tree, half of all numbers allowed", vec![]), numbers),
    ];
    for _ in 0..runs {
        for (row, program) in &mut rows {
            row.1.push(in_child(Namespaces::default(), || install(program)).1);
        }
    }
    rows.into_iter().for_each(|(row, _)| row.print());
    let (mut compiling, mut call) = (Row("compile the tree", vec![]), Row("MachineFilter, 3 threads", vec![]));
    let filter = MachineFilter::build(&policy).unwrap();
    for _ in 0..runs {
        let start = Instant::now();
        ramet_process::seccomp::compile(&policy).unwrap();
        compiling.1.push(micros(start));
        let with_threads = in_child(Namespaces::default(), || {
            let started = std::sync::Arc::new(std::sync::Barrier::new(3));
            for _ in 0..2 {
                let started = std::sync::Arc::clone(&started);
                std::thread::spawn(move || {
                    started.wait();
                    loop {
                        std::thread::sleep(std::time::Duration::from_secs(60));
                    }
                });
            }
            started.wait();
            let start = Instant::now();
            filter.install_on_all_threads().unwrap();
            micros(start)
        });
        call.1.push(with_threads.1);
    }
    [compiling, call].into_iter().for_each(Row::print);
}

fn confinement(runs: usize, host: &HostDescriptors) {
    let parent = own_pidfd().unwrap();
    let (mut all, mut kvm) = (Row("confinement", vec![]), Row("reopen /dev/kvm", vec![]));
    for run in 0..runs {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let child = match fork_process(Namespaces { pid: true }, None).unwrap() {
            Forked::Parent(child) => child,
            Forked::Child => {
                let start = Instant::now();
                let file = host.open_kvm().unwrap();
                let opened = micros(start);
                let start = Instant::now();
                let keep = [theirs.as_fd(), file.as_fd()];
                let credentials = Some(Credentials { uid: 70_000 + run as u32, gid: 70_000 });
                Confinement { host, parent: parent.as_fd(), credentials, keep: &keep, descriptor_limit: 64 }
                    .apply()
                    .unwrap();
                theirs.send(&[micros(start).to_le_bytes(), opened.to_le_bytes()].concat(), &[]).unwrap();
                exit_now(0)
            }
        };
        let Received::Message(message) = ours.recv(Limits::default()).unwrap() else { panic!("the child ended") };
        wait_for(&child.pidfd).unwrap();
        let number = |at: usize| f64::from_le_bytes(message.bytes[at..at + 8].try_into().unwrap());
        all.1.push(number(0));
        kvm.1.push(number(8));
    }
    all.print();
    kvm.print();
}

fn messages(runs: usize) {
    let (a, b) = SeqPacket::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let sizes = [
        ("send + recv, 200 bytes", 200, 0),
        ("send + recv, 200 bytes, 8 descriptors", 200, 8),
        ("send + recv, 32 KiB", 32 << 10, 0),
        ("send + recv, 64 KiB (inline)", 64 << 10, 0),
        ("send + recv, 64 KiB + 1 (memfd)", (64 << 10) + 1, 0),
        ("send + recv, 1 MiB (memfd)", 1 << 20, 0),
    ];
    let mut rows = sizes.map(|(name, ..)| Row(name, vec![]));
    for _ in 0..runs {
        for (row, (_, bytes, descriptors)) in rows.iter_mut().zip(sizes) {
            let bytes = vec![1; bytes];
            let start = Instant::now();
            a.send(&bytes, &vec![null.as_fd(); descriptors]).unwrap();
            drop(b.recv(Limits::default()).unwrap());
            row.1.push(micros(start));
        }
    }
    rows.into_iter().for_each(Row::print);
}
