//! A memory cgroup of this process's own: what is charged to it is all that the processes born in it use, the kernel's
//! memory included, which no process's own figures show.
//!
//! Both versions of cgroups are served. Limits and other controllers are deliberately absent.

use std::io;
use std::path::{Path, PathBuf};

/// A memory cgroup that this process is in. Dropped: it goes back to where it was and removes the group.
#[derive(Debug)]
pub(crate) struct MemoryCgroup {
    group: PathBuf,
    /// Where it was before.
    home: PathBuf,
    usage: &'static str,
}

/// A hierarchy's mount point, this process's path in it, and the name of the file that tells the usage.
type Hierarchy = (PathBuf, String, &'static str);

impl MemoryCgroup {
    /// Makes one and moves this process there.
    ///
    /// # Errors
    /// What the host refuses: it has no memory controller, or lets only its manager make groups.
    pub(crate) fn enter() -> io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let (mount, path, usage) = hierarchy(&mounts, &groups)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no memory controller is mounted"))?;
        let home = mount.join(path.trim_start_matches('/'));
        let group = home.join(format!("bench-{}", std::process::id()));
        std::fs::create_dir(&group)?;
        // From here on the drop tidies up.
        let entered = Self { group, home, usage };
        entered.used_bytes()?;
        join(&entered.group)?;
        Ok(entered)
    }

    /// What is charged to the group now, in bytes.
    pub(crate) fn used_bytes(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.group.join(self.usage))?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("usage {text:?}")))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let tidied = join(&self.home).and_then(|()| std::fs::remove_dir(&self.group));
        if let Err(error) = tidied {
            eprintln!("bench: {} stays behind: {error}", self.group.display());
        }
    }
}

fn join(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Version 1's memory hierarchy, or version 2's where it has the controller.
fn hierarchy(mountinfo: &str, groups: &str) -> Option<Hierarchy> {
    let own = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let found = fields.next()?.split(',').any(|name| name == controller);
            fields.next().filter(|_| found).map(str::to_owned)
        })
    };
    let mounted = |kind: &str, option: &str| {
        mountinfo.lines().find_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let mut rest = rest.split(' ');
            let fits = rest.next()? == kind && rest.nth(1)?.split(',').any(|word| option.is_empty() || word == option);
            mount.split(' ').nth(4).filter(|_| fits).map(PathBuf::from)
        })
    };
    let first = || Some((mounted("cgroup", "memory")?, own("memory")?, "memory.usage_in_bytes"));
    let second = || Some((mounted("cgroup2", "")?, own("")?, "memory.current"));
    first().or_else(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
29 1 0:25 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
30 1 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 1 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn version_1_is_found_where_it_has_the_controller() {
        let found = hierarchy(MOUNTS, "4:memory:/a/b\n1:cpu:/\n0::/\n").unwrap();
        assert_eq!(found, ("/sys/fs/cgroup/memory".into(), "/a/b".to_owned(), "memory.usage_in_bytes"));
    }

    #[test]
    fn version_2_is_found_else() {
        let mounts = "31 1 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = hierarchy(mounts, "0::/user.slice\n").unwrap();
        assert_eq!(found, ("/sys/fs/cgroup".into(), "/user.slice".to_owned(), "memory.current"));
        assert_eq!(hierarchy("", "0::/\n"), None);
    }
}
