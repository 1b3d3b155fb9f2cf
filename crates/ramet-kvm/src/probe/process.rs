//! What isolates machines from the host and from one another, and the limits on how many there can be.

use super::{Check, Status, first_line, sysctl};
use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Descriptors that a machine costs its supervisor, with room.
const DESCRIPTORS_PER_MACHINE: u64 = 8;
/// Processes and threads of a machine of one vCPU.
const THREADS_PER_MACHINE: u64 = 4;
/// Machines that a family should be able to have.
const MACHINES: u64 = 100;

pub(super) fn checks() -> Vec<Check> {
    vec![tun(), cgroups(), descriptors(), processes(), locked_memory(), seccomp(), user_namespaces(), rights()]
}

fn tun() -> Check {
    const NAME: &str = "/dev/net/tun";
    match std::fs::File::options().read(true).write(true).open(NAME) {
        Ok(_) => Check::ok(NAME, "present, and this user may use it"),
        Err(error) => Check::lacking(
            Status::Degraded,
            NAME,
            error.to_string(),
            "guests' network through TAP devices",
            "modprobe tun; in a container, pass the device (--device /dev/net/tun)",
        ),
    }
}

/// Where memory is accounted for each machine: cgroup version, and whether this process may make groups there.
fn cgroups() -> Check {
    const NAME: &str = "cgroups for memory";
    const LOST: &str = "accounting and limits of memory for each machine";
    const REMEDY: &str = "run as root, or let systemd delegate a group (systemd-run --user --scope -p Delegate=yes)";
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers");
    let (version, directory) = if unified.exists() {
        let controllers = std::fs::read_to_string(unified).unwrap_or_default();
        if !controllers.split_whitespace().any(|controller| controller == "memory") {
            let remedy = "boot without cgroup_disable=memory";
            return Check::lacking(Status::Degraded, NAME, "version 2 without memory", LOST, remedy);
        }
        ("version 2", "/sys/fs/cgroup")
    } else if Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        ("version 1", "/sys/fs/cgroup/memory")
    } else {
        let remedy = "mount cgroups at /sys/fs/cgroup with the memory controller";
        return Check::lacking(Status::Degraded, NAME, "none", LOST, remedy);
    };
    match rustix::fs::access(directory, Access::WRITE_OK) {
        Ok(()) => Check::ok(NAME, format!("{version}, writable")),
        Err(errno) => Check::lacking(Status::Degraded, NAME, format!("{version}, not writable: {errno}"), LOST, REMEDY),
    }
}

fn limit(name: &str, value: Option<u64>, least: u64, lost: &str, remedy: &str) -> Check {
    let found = value.map_or("unlimited".to_owned(), |value| value.to_string());
    match value {
        Some(value) if value < least => Check::lacking(Status::Degraded, name, found, lost, remedy),
        _ => Check::ok(name, found),
    }
}

fn descriptors() -> Check {
    let value = getrlimit(Resource::Nofile).current;
    let least = MACHINES * DESCRIPTORS_PER_MACHINE;
    limit("RLIMIT_NOFILE", value, least, "families of a hundred machines", "ulimit -n 20000")
}

fn processes() -> Check {
    let value = getrlimit(Resource::Nproc).current;
    let least = MACHINES * THREADS_PER_MACHINE;
    limit("RLIMIT_NPROC", value, least, "families of a hundred machines", "ulimit -u 20000")
}

fn locked_memory() -> Check {
    let value = getrlimit(Resource::Memlock).current;
    limit("RLIMIT_MEMLOCK", value, 64 << 10, "io_uring and locked pages for devices", "ulimit -l unlimited")
}

fn seccomp() -> Check {
    const NAME: &str = "seccomp filters";
    let actions = first_line("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |action: &str| actions.split_whitespace().any(|available| available == action);
    if has("kill_process") && has("errno") && has("allow") {
        return Check::ok(NAME, actions);
    }
    let found = if actions.is_empty() { "none".to_owned() } else { actions };
    Check::lacking(
        Status::Missing,
        NAME,
        found,
        "confining machine processes, without which none is started",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    const REMEDY: &str = "sysctl user.max_user_namespaces=10000";
    let lost = "isolation of machines when Ramet does not run as root";
    if !Path::new("/proc/self/ns/user").exists() {
        return Check::lacking(Status::Degraded, NAME, "none", lost, "use a kernel with CONFIG_USER_NS");
    }
    if sysctl("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        let remedy = "sysctl kernel.unprivileged_userns_clone=1";
        return Check::lacking(Status::Degraded, NAME, "for root only", lost, remedy);
    }
    if sysctl("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        let remedy = "sysctl kernel.apparmor_restrict_unprivileged_userns=0";
        return Check::lacking(Status::Degraded, NAME, "restricted by AppArmor", lost, remedy);
    }
    match sysctl("/proc/sys/user/max_user_namespaces") {
        Some(0) | None => Check::lacking(Status::Degraded, NAME, "none allowed", lost, REMEDY),
        Some(count) => Check::ok(NAME, format!("up to {count}")),
    }
}

fn rights() -> Check {
    const NAME: &str = "rights";
    if rustix::process::geteuid().is_root() {
        return Check::ok(NAME, "root: machines get namespaces and user ids of their own, families a cgroup");
    }
    Check::lacking(
        Status::Degraded,
        NAME,
        format!("user {}", rustix::process::geteuid().as_raw()),
        "user ids of their own for machines, cgroups, and the tmpfs with huge pages",
        "run as root",
    )
}
