//! What machines' processes may do and hold: no rights, and nothing that is shared but what is declared to be.
//!
//! Declared is: with its supervisor, each machine shares the eventfd by which its guest says that it has answered and
//! the one by which it is asked, and a page of memory, the clone page; all machines of a family share the family's
//! memory, if it has some; the zygote shares its supervisor's standard error.
#![allow(clippy::unwrap_used)]

mod common;

use common::processes::{children, pid};
use common::{Machines, Spec, alone};
use ramet_abi::layout::{CLONE_PAGE_BASE, FAMILY_BASE, HOLE_START, PAGE_BYTES};
use ramet_process::inspect::{self, Descriptor, Mapping};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A family of four: the founder, two children and a grandchild, all of which have been frozen but the last.
fn family(spec: Spec) -> Machines {
    let mut machines = spec.boot();
    let child = machines.fork_one(0);
    machines.fork_one(0);
    machines.fork_one(child);
    for number in 0..4 {
        machines.dirty(number, 0, 40, 3, number);
    }
    machines
}

fn link(of: u32, name: &str) -> PathBuf {
    std::fs::read_link(Path::new("/proc").join(of.to_string()).join(name)).unwrap()
}

#[test]
fn every_thread_of_every_machine_is_without_rights_under_its_filter() {
    let _alone = alone();
    let machines = family(Spec::with_vcpus(2));
    assert_eq!(machines.missing_isolations(), Some(&[][..]), "the tests run as root, who may isolate in every way");
    let mut users = BTreeSet::new();
    for number in 0..4 {
        let process = machines.pid(number);
        let status = inspect::status(pid(process)).unwrap();
        assert!(status.is_without_rights(), "{status:?}");
        assert!(status.groups.is_empty() && users.insert(status.uid[0]), "a user of its own: {status:?}");
        assert_eq!(status.pids.last(), Some(&1), "process 1 of a pid namespace of its own");
        for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let thread = inspect::parse_status(&text).unwrap();
            assert_eq!((thread.seccomp, thread.no_new_privileges, thread.effective), (2, true, 0), "{thread:?}");
        }
    }
    machines.shut_down();
}

#[test]
fn every_machine_has_namespaces_and_an_empty_root() {
    let _alone = alone();
    let machines = family(Spec::default());
    let own = std::process::id();
    let processes: Vec<u32> = (0..4).map(|number| machines.pid(number)).collect();
    for process in processes.iter().copied().chain([machines.zygote_pid()]) {
        for namespace in ["ns/net", "ns/ipc", "ns/uts", "ns/mnt"] {
            assert_ne!(link(process, namespace), link(own, namespace), "{namespace} of process {process}");
        }
        let root = std::fs::read_dir(format!("/proc/{process}/root/")).unwrap().count();
        assert_eq!(root, 0, "files in the root of process {process}");
        // Nothing leads out of it.
        assert_eq!(link(process, "cwd"), link(process, "root"));
        let interfaces = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap();
        let interfaces: Vec<_> = interfaces.lines().skip(2).filter_map(|line| line.split(':').next()).collect();
        assert!(interfaces.iter().all(|name| name.trim() == "lo"), "{interfaces:?}");
    }
    let pid_namespaces: BTreeSet<PathBuf> = processes.iter().map(|process| link(*process, "ns/pid")).collect();
    assert_eq!(pid_namespaces.len(), 4, "each machine is alone in its pid namespace");
    assert!(!pid_namespaces.contains(&link(own, "ns/pid")));
    let zygotes_children: BTreeSet<u32> = children(machines.zygote_pid()).into_iter().collect();
    assert_eq!(zygotes_children, processes.iter().copied().collect(), "the zygote has no other children");
    assert!(processes.iter().all(|process| children(*process).is_empty()), "machines have none");
    machines.shut_down();
}

/// The mappings of a machine that others could see it write to.
fn writable_shared(process: u32) -> Vec<Mapping> {
    let mappings = inspect::mappings(pid(process)).unwrap();
    mappings.into_iter().filter(Mapping::is_writable_shared).collect()
}

/// Those of guest memory. Not KVM's own, by which a process talks to the kernel about a vCPU, and not a delta in the
/// making, which nobody else has: when it is handed over, it can be sealed only if nobody maps it writable any more.
fn guest_memory(machines: &Machines, process: u32) -> Vec<Mapping> {
    let others = (0..4).filter_map(|number| machines.phase(number).map(|_| machines.pid(number)));
    let others = others.chain([machines.zygote_pid(), std::process::id()]).filter(|other| *other != process);
    let theirs: BTreeSet<_> = others.flat_map(mapped_files).collect();
    let is_own = |mapping: &Mapping| {
        let is_delta = mapping.path.starts_with(b"/memfd:ramet-delta");
        mapping.path.starts_with(b"anon_inode:kvm-vcpu")
            || (is_delta && !theirs.contains(&(mapping.device, mapping.inode)))
    };
    writable_shared(process).into_iter().filter(|mapping| !is_own(mapping)).collect()
}

/// Device and inode of every file that a process maps in any way.
fn mapped_files(process: u32) -> Vec<((u32, u32), u64)> {
    let mappings = inspect::mappings(pid(process)).unwrap();
    mappings.iter().filter(|mapping| mapping.inode != 0).map(|mapping| (mapping.device, mapping.inode)).collect()
}

fn listed(mappings: &[Mapping]) -> String {
    let line = |mapping: &Mapping| format!("{:x?} {}", mapping.addresses, String::from_utf8_lossy(&mapping.path));
    mappings.iter().map(line).collect::<Vec<_>>().join(", ")
}

/// Device memory is mapped at the same distance from the start of the address range in all machines.
fn in_hole(mapping: &Mapping, base: u64) -> bool {
    mapping.addresses.start % (1 << 32) == base && base >= HOLE_START
}

#[test]
fn no_guest_memory_is_shared_but_the_clone_page() {
    let _alone = alone();
    let founder_only = Spec::default().boot();
    let before: Vec<u64> =
        guest_memory(&founder_only, founder_only.pid(0)).iter().map(|m| m.addresses.end - m.addresses.start).collect();
    assert!(before.contains(&PAGE_BYTES) && before.len() <= 2, "a founder runs on its flat layer until its first fork");
    founder_only.shut_down();

    let machines = family(Spec::default());
    let mut pages = BTreeSet::new();
    for number in 0..4 {
        let found = guest_memory(&machines, machines.pid(number));
        let [page] = &found[..] else { panic!("machine {number}: {}", listed(&found)) };
        assert_eq!(page.addresses.end - page.addresses.start, PAGE_BYTES);
        assert!(in_hole(page, CLONE_PAGE_BASE), "{page:x?}");
        assert!(pages.insert((page.device, page.inode)), "machine {number} shares its clone page with another");
    }
    assert!(guest_memory(&machines, machines.zygote_pid()).is_empty(), "the zygote has none");
    let supervisor = writable_shared(std::process::id());
    let held: BTreeSet<_> = supervisor.iter().map(|mapping| (mapping.device, mapping.inode)).collect();
    assert_eq!(held, pages, "the supervisor maps the clone pages and no other memory of guests: {supervisor:x?}");
    machines.shut_down();
}

#[test]
fn family_memory_is_shared_where_it_is_declared_and_nothing_else() {
    let _alone = alone();
    let machines = family(Spec { family_bytes: 2 * PAGE_BYTES, ..Spec::default() });
    let mut inodes = BTreeSet::new();
    for number in 0..4 {
        let found = guest_memory(&machines, machines.pid(number));
        let [page, memory] = &found[..] else { panic!("machine {number}: {}", listed(&found)) };
        assert!(in_hole(page, CLONE_PAGE_BASE) && in_hole(memory, FAMILY_BASE), "{found:x?}");
        assert_eq!(memory.addresses.end - memory.addresses.start, 2 * PAGE_BYTES);
        inodes.insert((memory.device, memory.inode));
    }
    assert_eq!(inodes.len(), 1, "one memory for all");
    machines.shut_down();
}

fn holders(group: &[Descriptor]) -> BTreeSet<i32> {
    group.iter().map(|descriptor| descriptor.pid).collect()
}

#[test]
fn no_open_file_is_shared_but_what_is_declared() {
    let _alone = alone();
    let machines = family(Spec { family_bytes: PAGE_BYTES, ..Spec::default() });
    let supervisor = std::process::id().cast_signed();
    let zygote = machines.zygote_pid().cast_signed();
    let of_machines: Vec<i32> = (0..4).map(|number| machines.pid(number).cast_signed()).collect();
    let everybody: Vec<_> =
        [supervisor, zygote].iter().chain(&of_machines).map(|raw| pid(raw.cast_unsigned())).collect();
    let shared = inspect::shared_descriptions(&everybody).unwrap();
    let mut eventfds = std::collections::BTreeMap::<i32, usize>::new();
    for group in &shared {
        let holders = holders(group);
        if holders == BTreeSet::from([supervisor, zygote]) {
            let errors =
                group.iter().filter(|descriptor| descriptor.pid == zygote).all(|descriptor| descriptor.fd == 2);
            assert!(errors, "supervisor and zygote share more than standard error: {group:?}");
            continue;
        }
        let machine = of_machines.iter().find(|machine| holders == BTreeSet::from([supervisor, **machine]));
        let machine =
            machine.unwrap_or_else(|| panic!("shared by others than a machine and its supervisor: {group:?}"));
        let eventfd = group.iter().all(|descriptor| descriptor.target.to_string_lossy() == "anon_inode:[eventfd]");
        assert!(eventfd, "a machine and its supervisor share more than eventfds: {group:?}");
        *eventfds.entry(*machine).or_default() += 1;
    }
    assert!(eventfds.values().all(|count| *count <= 2), "request and answer: {eventfds:?}");
    assert_eq!(eventfds.keys().copied().collect::<BTreeSet<_>>(), of_machines.iter().copied().collect());
    machines.shut_down();
}

/// What a machine holds beside KVM's objects and their eventfds, sockets to the supervisor and the tracker of its memory.
fn surplus(machines: &Machines, number: u64) -> Vec<Descriptor> {
    let process = machines.pid(number);
    let own_memory = format!("/{process}/pagemap");
    let needed = ["anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0", "anon_inode:[eventfd]", "anon_inode:[eventpoll]"];
    let needed = |descriptor: &Descriptor| {
        let target = descriptor.target.to_string_lossy().into_owned();
        needed.contains(&target.as_str())
            || target.starts_with("socket:")
            || target == "anon_inode:[userfaultfd]"
            || target == own_memory
            || target == "/null"
            // A delta in the making is its own until it has been handed over.
            || (target.starts_with("/memfd:ramet-delta") && descriptor_is_alone(machines, descriptor))
    };
    let held = inspect::descriptors(pid(process)).unwrap().into_iter();
    held.filter(|descriptor| !needed(descriptor)).collect()
}

#[test]
fn machines_hold_no_descriptor_that_they_do_not_need() {
    let _alone = alone();
    let machines = family(Spec { family_bytes: PAGE_BYTES, ..Spec::default() });
    for number in 0..4 {
        // A delta that was just handed over is closed a moment after.
        common::wait_for(&format!("machine {number} to hold no more than it needs"), || {
            let surplus = surplus(&machines, number);
            let handed_over = |descriptor: &Descriptor| descriptor.target.starts_with("/memfd:ramet-delta (deleted)");
            assert!(surplus.iter().all(handed_over), "machine {number} holds {surplus:?}");
            surplus.is_empty()
        });
    }
    machines.shut_down();
}

fn descriptor_is_alone(machines: &Machines, descriptor: &Descriptor) -> bool {
    let inode = |of: i32, fd: i32| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(format!("/proc/{of}/fd/{fd}")).map(|file| (file.dev(), file.ino())).ok()
    };
    let own = inode(descriptor.pid, descriptor.fd);
    let others = (0..4).map(|number| machines.pid(number)).chain([machines.zygote_pid(), std::process::id()]);
    own.is_some()
        && others.filter(|other| other.cast_signed() != descriptor.pid).all(|other| {
            let held = inspect::descriptors(pid(other)).unwrap_or_default();
            held.iter().all(|held| inode(held.pid, held.fd) != own)
        })
}

#[test]
fn the_zygote_holds_nothing_of_its_machines() {
    let _alone = alone();
    let machines = family(Spec::default());
    let held = inspect::descriptors(pid(machines.zygote_pid())).unwrap();
    let targets: Vec<_> = held.iter().map(|descriptor| descriptor.target.to_string_lossy().into_owned()).collect();
    assert!(targets.iter().all(|target| !target.contains("kvm-") && !target.contains("memfd")), "{targets:?}");
    assert_eq!(targets.iter().filter(|target| target.starts_with("socket:")).count(), 1, "{targets:?}");
    machines.shut_down();
}
