//! x
mod common;
use common::*;
use ramet_process::inspect;
#[test]
fn look() {
    let mut m = Spec { family_bytes: 8192, ..Spec::default() }.boot();
    let a = m.fork_one(0); let _b = m.fork_one(a);
    let mut pids = vec![processes::pid(std::process::id()), processes::pid(m.zygote_pid())];
    for n in [0,1,2] { pids.push(processes::pid(m.pid(n))); }
    println!("self {} zygote {} machines {:?}", std::process::id(), m.zygote_pid(), [m.pid(0), m.pid(1), m.pid(2)]);
    for p in &pids[1..] {
        println!("== {p:?}");
        for d in inspect::descriptors(*p).unwrap() { println!("  {:?}", d); }
        for d in inspect::mappings(*p).unwrap() { if d.shared { println!("  {:x?} {} w={} {}", d.addresses, d.offset, d.write, String::from_utf8_lossy(&d.path)); } }
    }
    for g in inspect::shared_descriptions(&pids).unwrap() {
        println!("SHARED {:?}", g.iter().map(|d| (d.pid, d.fd, d.target.display().to_string())).collect::<Vec<_>>());
    }
    println!("{}", std::fs::read_to_string(format!("/proc/{}/status", m.pid(1))).unwrap());
    m.shut_down();
}
