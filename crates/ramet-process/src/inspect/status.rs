//! /proc/PID/status (proc_pid_status(5)): the fields that tell what a process may do.

/// What a process is and may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The parent's process id, in the reader's pid namespace.
    pub parent: i32,
    /// Real, effective, saved and file system user ids.
    pub uid: [u32; 4],
    /// Real, effective, saved and file system group ids.
    pub gid: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Its process id in each nested pid namespace, the reader's first.
    pub pids: Vec<i32>,
    /// Number of threads.
    pub threads: usize,
    /// Capabilities: inheritable.
    pub inheritable: u64,
    /// Capabilities: permitted.
    pub permitted: u64,
    /// Capabilities: effective.
    pub effective: u64,
    /// Capabilities: bounding.
    pub bounding: u64,
    /// Capabilities: ambient.
    pub ambient: u64,
    /// Whether no exec can give it rights.
    pub no_new_privileges: bool,
    /// 0: no system call filter; 1: strict mode; 2: filter.
    pub seccomp: u32,
    /// How many filters; `None` on kernels before 5.9.
    pub seccomp_filters: Option<u32>,
    /// The blocked signals: bit n - 1 is signal n.
    pub blocked_signals: u64,
    /// Memory without shared pages counted, in KiB (RssAnon).
    pub anonymous_kib: u64,
}

impl Status {
    /// Whether the process has no capability in any set and cannot gain one.
    pub fn is_without_rights(&self) -> bool {
        let none = self.inheritable | self.permitted | self.effective | self.bounding | self.ambient == 0;
        none && self.no_new_privileges && !self.uid.contains(&0) && !self.gid.contains(&0)
    }
}

/// What was not understood in a status file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseStatusError {
    /// A field is missing.
    #[error("The field {0} is missing")]
    Missing(&'static str),
    /// A field has another form than documented.
    #[error("The field {field} has the value {value:?}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// Its text.
        value: String,
    },
}

/// Parses the text of a status file.
pub fn parse_status(text: &str) -> Result<Status, ParseStatusError> {
    let fields = Fields(text);
    Ok(Status {
        parent: fields.number("PPid")?,
        uid: fields.four("Uid")?,
        gid: fields.four("Gid")?,
        groups: fields.list("Groups")?,
        pids: fields.list("NSpid")?,
        threads: fields.number("Threads")?,
        inheritable: fields.set("CapInh")?,
        permitted: fields.set("CapPrm")?,
        effective: fields.set("CapEff")?,
        bounding: fields.set("CapBnd")?,
        ambient: fields.set("CapAmb")?,
        no_new_privileges: fields.number::<u8>("NoNewPrivs")? == 1,
        seccomp: fields.number("Seccomp")?,
        seccomp_filters: fields.find("Seccomp_filters").map(|_| fields.number("Seccomp_filters")).transpose()?,
        blocked_signals: fields.set("SigBlk")?,
        // A zombie has no memory fields.
        anonymous_kib: fields.list_of_words("RssAnon", 1)?.first().copied().unwrap_or(0),
    })
}

struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn find(&self, field: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    }

    fn get(&self, field: &'static str) -> Result<&'a str, ParseStatusError> {
        self.find(field).ok_or(ParseStatusError::Missing(field))
    }

    fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<T, ParseStatusError> {
        let value = self.get(field)?;
        value.parse().map_err(|_| ParseStatusError::Malformed { field, value: value.to_owned() })
    }

    fn set(&self, field: &'static str) -> Result<u64, ParseStatusError> {
        let value = self.get(field)?;
        u64::from_str_radix(value, 16).map_err(|_| ParseStatusError::Malformed { field, value: value.to_owned() })
    }

    fn list<T: std::str::FromStr>(&self, field: &'static str) -> Result<Vec<T>, ParseStatusError> {
        let value = self.get(field)?;
        let malformed = || ParseStatusError::Malformed { field, value: value.to_owned() };
        value.split_ascii_whitespace().map(|word| word.parse().map_err(|_| malformed())).collect()
    }

    fn four(&self, field: &'static str) -> Result<[u32; 4], ParseStatusError> {
        let list = self.list(field)?;
        let malformed = |list: Vec<u32>| ParseStatusError::Malformed { field, value: format!("{list:?}") };
        list.try_into().map_err(malformed)
    }

    /// The first `count` words of a field that may be missing.
    fn list_of_words(&self, field: &'static str, count: usize) -> Result<Vec<u64>, ParseStatusError> {
        let value = self.find(field).unwrap_or("");
        let malformed = || ParseStatusError::Malformed { field, value: value.to_owned() };
        value.split_ascii_whitespace().take(count).map(|word| word.parse().map_err(|_| malformed())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MACHINE: &str = "Name:\tramet\nUmask:\t0077\nState:\tS (sleeping)\nTgid:\t812\nNgid:\t0\nPid:\t812\n\
        PPid:\t800\nTracerPid:\t0\nUid:\t70001\t70001\t70001\t70001\nGid:\t70002\t70002\t70002\t70002\nFDSize:\t64\n\
        Groups:\t \nNStgid:\t812\t1\nNSpid:\t812\t1\nRssAnon:\t     112 kB\nThreads:\t3\n\
        SigBlk:\t0000000000000000\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
        CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n\
        Seccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn a_confined_machine_is_recognised() {
        let status = parse_status(MACHINE).unwrap();
        assert!(status.is_without_rights());
        assert_eq!((status.parent, status.pids, status.threads), (800, vec![812, 1], 3));
        assert_eq!((status.uid, status.gid, status.groups), ([70001; 4], [70002; 4], vec![]));
        assert_eq!((status.seccomp, status.seccomp_filters, status.anonymous_kib), (2, Some(1), 112));
    }

    #[test]
    fn any_right_is_noticed() {
        for (from, to) in [
            ("CapBnd:\t0000000000000000", "CapBnd:\t0000000000000001"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000200000"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
            ("Uid:\t70001\t70001\t70001", "Uid:\t70001\t70001\t0"),
        ] {
            assert!(!parse_status(&MACHINE.replace(from, to)).unwrap().is_without_rights());
        }
    }

    #[test]
    fn a_missing_or_malformed_field_is_named() {
        let missing = parse_status(&MACHINE.replace("Seccomp:", "Other:"));
        assert_eq!(missing, Err(ParseStatusError::Missing("Seccomp")));
        let malformed = parse_status(&MACHINE.replace("Threads:\t3", "Threads:\tmany")).unwrap_err();
        assert_eq!(malformed.to_string(), "The field Threads has the value \"many\"");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}", cut in 0..MACHINE.len()) {
            for text in [text.as_str(), &MACHINE[..cut]] {
                // That it returns is what is tested.
                let _ = parse_status(text);
            }
        }
    }
}
