//! How much memory a process uses, and how much of it nobody else does.

use std::io;

/// Figures of a process from /proc/PID/smaps_rollup, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Resident.
    pub resident_kib: u64,
    /// Resident, with each shared page divided by the number of its users.
    pub proportional_kib: u64,
    /// Written and mapped by this process alone.
    pub private_dirty_kib: u64,
    /// Unwritten and mapped by this process alone.
    pub private_clean_kib: u64,
    /// In swap.
    pub swap_kib: u64,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum MemoryUseError {
    /// The file cannot be read.
    #[error("Cannot read the memory use of process {pid} from /proc")]
    Read {
        /// Which process.
        pid: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file does not say.
    #[error("The memory use of process {pid} lacks {field}; /proc/{pid}/smaps_rollup is not as Linux documents it")]
    Field {
        /// Which process.
        pid: u32,
        /// The missing line.
        field: &'static str,
    },
}

/// The memory that a process uses; needs the right to trace it.
pub fn memory_use(pid: u32) -> Result<MemoryUse, MemoryUseError> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .map_err(|source| MemoryUseError::Read { pid, source })?;
    parse(&text).map_err(|field| MemoryUseError::Field { pid, field })
}

/// Parses smaps_rollup; the error is the name of a missing line.
fn parse(text: &str) -> Result<MemoryUse, &'static str> {
    let field = |name: &'static str| {
        let value =
            |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok();
        text.lines().find_map(value).ok_or(name)
    };
    Ok(MemoryUse {
        resident_kib: field("Rss")?,
        proportional_kib: field("Pss")?,
        private_dirty_kib: field("Private_Dirty")?,
        private_clean_kib: field("Private_Clean")?,
        swap_kib: field("Swap")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_writes() {
        let text = "55f6c4b46000-7ffd8c5f2000 ---p 00000000 00:00 0   [rollup]\nRss:                1596 kB\n\
            Pss:                 117 kB\nPss_Dirty:            88 kB\nPrivate_Clean:         4 kB\n\
            Private_Dirty:        88 kB\nSwapPss: 7 kB\nSwap:                  3 kB\n";
        let expected = MemoryUse {
            resident_kib: 1596,
            proportional_kib: 117,
            private_dirty_kib: 88,
            private_clean_kib: 4,
            swap_kib: 3,
        };
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("Rss: 1 kB\n"), Err("Pss"));
        assert_eq!(parse("Rss: many kB\n"), Err("Rss"));
    }

    #[test]
    fn reads_its_own() {
        let own = memory_use(std::process::id()).unwrap();
        assert!(own.resident_kib >= own.proportional_kib && own.private_dirty_kib > 0);
        assert!(matches!(memory_use(u32::MAX), Err(MemoryUseError::Read { .. })));
    }
}
