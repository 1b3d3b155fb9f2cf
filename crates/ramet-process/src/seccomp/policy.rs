//! A filter's policy as data, and its meaning as a function: the reference that compiled filters are tested against.

use std::collections::BTreeMap;

/// System call numbers from here on belong to the x32 ABI (__X32_SYSCALL_BIT).
pub(super) const X32_FIRST: u32 = 0x4000_0000;
/// AUDIT_ARCH_X86_64.
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;

/// An argument of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Argument {
    /// The first.
    A0,
    /// The second.
    A1,
    /// The third.
    A2,
    /// The fourth.
    A3,
    /// The fifth.
    A4,
    /// The sixth.
    A5,
}

/// A condition on one argument: `argument & mask == value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Which argument.
    pub argument: Argument,
    /// The bits that count.
    pub mask: u64,
    /// What they must be.
    pub value: u64,
}

impl Check {
    /// The low 32 bits are `value`; for parameters that the kernel declares as int, which ignores the rest.
    pub const fn equal_u32(argument: Argument, value: u32) -> Self {
        Self { argument, mask: 0xffff_ffff, value: value as u64 }
    }

    /// All 64 bits are `value`.
    pub const fn equal_u64(argument: Argument, value: u64) -> Self {
        Self { argument, mask: u64::MAX, value }
    }

    /// The bits of `mask` are those of `value`.
    pub const fn masked(argument: Argument, mask: u64, value: u64) -> Self {
        Self { argument, mask, value }
    }

    /// None of the bits of `mask` is set.
    pub const fn clear(argument: Argument, mask: u64) -> Self {
        Self { argument, mask, value: 0 }
    }

    /// Whether it holds.
    pub fn holds(&self, call: &SystemCall) -> bool {
        call.arguments[self.argument as usize] & self.mask == self.value
    }
}

/// What happens to one system call number. Numbers without a rule kill the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// It is always allowed.
    Allow,
    /// It is allowed if all checks of one of the alternatives hold, and kills the process otherwise.
    AllowIf(Vec<Vec<Check>>),
    /// It is not carried out and returns this errno (1 to 4095).
    Errno(u16),
}

/// A system call as a filter sees it (struct seccomp_data, without the instruction pointer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    /// AUDIT_ARCH_*.
    pub architecture: u32,
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// What a filter decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The call is carried out.
    Allow,
    /// The call returns this errno.
    Errno(u16),
    /// The process dies of SIGSYS.
    KillProcess,
}

/// Rules for x86-64 system calls by number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    rules: BTreeMap<u32, Rule>,
}

impl Policy {
    /// A policy without rules, under which every system call kills.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rule for a system call (libc::SYS_*), in place of an earlier one.
    #[must_use]
    pub fn with(mut self, number: libc::c_long, rule: Rule) -> Self {
        debug_assert!((0..i64::from(X32_FIRST)).contains(&number), "{number} is not an x86-64 system call");
        self.rules.insert(number as u32, rule);
        self
    }

    /// The rules by system call number.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {
        self.rules.iter().map(|(number, rule)| (*number, rule))
    }

    /// What the policy means for `call`.
    pub fn evaluate(&self, call: &SystemCall) -> Verdict {
        if call.architecture != ARCHITECTURE || call.number >= X32_FIRST {
            return Verdict::KillProcess;
        }
        match self.rules.get(&call.number) {
            None => Verdict::KillProcess,
            Some(Rule::Allow) => Verdict::Allow,
            Some(Rule::Errno(errno)) => Verdict::Errno(*errno),
            Some(Rule::AllowIf(alternatives)) => {
                if alternatives.iter().any(|checks| checks.iter().all(|check| check.holds(call))) {
                    Verdict::Allow
                } else {
                    Verdict::KillProcess
                }
            }
        }
    }
}
