//! Policy -> classic BPF: a binary search over system call numbers, and over argument values where many are allowed.
//!
//! The program is assembled from its end: a jump in classic BPF only goes forward, so every target is already placed
//! when the jump to it is. A conditional jump reaches 255 instructions; farther ones go through an unconditional one.
//!
//! Instructions used: load word, JEQ, JGE, JA, AND, RET. The kernel can evaluate all of these ahead of time
//! (seccomp_is_const_allow), so unconditionally allowed calls never run the filter.

use std::collections::BTreeMap;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS,
};
use seccompiler::{BpfProgram, sock_filter};

use super::policy::{ARCHITECTURE, Argument, Check, Policy, Rule, Verdict};

/// BPF_MAXINSNS.
const INSTRUCTIONS_MAX: usize = 4096;
/// The farthest target of a conditional jump.
const NEAR: usize = 255;
/// Offsets in struct seccomp_data (seccomp(2)).
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

/// Why a policy could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "The system call filter needs {instructions} instructions; the kernel takes {INSTRUCTIONS_MAX}: allow fewer ioctls"
)]
pub struct CompileError {
    /// How many it needs.
    pub instructions: usize,
}

/// Compiles a policy to a program for seccomp(2).
pub fn compile(policy: &Policy) -> Result<BpfProgram, CompileError> {
    let mut assembler = Assembler::default();
    let mut intervals = vec![(0, KILL)];
    for (number, rule) in policy.rules() {
        let target = assembler.rule(rule);
        push_value(&mut intervals, number, target);
    }
    let search = assembler.search(&intervals);
    let by_number = assembler.load_before(NUMBER_OFFSET, search);
    let guarded = assembler.branch(BPF_JEQ, ARCHITECTURE, by_number, KILL);
    assembler.load_before(ARCHITECTURE_OFFSET, guarded);
    assembler.finish()
}

/// Appends the interval of one value, and the start of the rest (which kills) after it, to intervals that begin at
/// ascending values. A value with the outcome of its left neighbour extends that interval.
fn push_value(intervals: &mut Vec<(u32, Target)>, value: u32, target: Target) {
    if intervals.last().is_some_and(|(start, _)| *start == value) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|(_, last)| *last != target) {
        intervals.push((value, target));
    }
    if let Some(next) = value.checked_add(1)
        && target != KILL
    {
        intervals.push((next, KILL));
    }
}

/// An instruction's place, counted from the end of the program.
type Place = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    At(Place),
    Verdict(Verdict),
}

/// What happens to whatever no rule names.
const KILL: Target = Target::Verdict(Verdict::KillProcess);

#[derive(Default)]
struct Assembler {
    /// The last instruction first.
    reversed: Vec<sock_filter>,
    /// The return instruction placed last, for each verdict.
    returns: BTreeMap<Verdict, Place>,
}

impl Assembler {
    fn emit(&mut self, code: u32, jt: u8, jf: u8, k: u32) -> Place {
        self.reversed.push(sock_filter { code: code as u16, jt, jf, k });
        self.last()
    }

    fn last(&self) -> Place {
        self.reversed.len() - 1
    }

    /// How many instructions the next one would have to skip to get to `place`.
    fn skipped(&self, place: Place) -> usize {
        self.reversed.len() - 1 - place
    }

    fn load(&mut self, offset: u32) -> Place {
        self.emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
    }

    fn place(&mut self, target: Target) -> Place {
        match target {
            Target::At(place) => place,
            Target::Verdict(verdict) => match self.returns.get(&verdict) {
                // Two more instructions may come between this one and the jump: see `branch`.
                Some(&place) if self.skipped(place) + 2 <= NEAR => place,
                _ => {
                    let place = self.emit(BPF_RET | BPF_K, 0, 0, verdict_value(verdict));
                    self.returns.insert(verdict, place);
                    place
                }
            },
        }
    }

    /// A conditional jump; both targets may be any distance away.
    fn branch(&mut self, condition: u32, k: u32, if_true: Target, if_false: Target) -> Target {
        if if_true == if_false {
            return if_true;
        }
        let mut on_true = self.place(if_true);
        let mut on_false = self.place(if_false);
        // Placing one moves the other one instruction farther away.
        if self.skipped(on_true) + 1 > NEAR {
            on_true = self.emit(BPF_JMP | BPF_JA, 0, 0, self.skipped(on_true) as u32);
        }
        if self.skipped(on_false) > NEAR {
            on_false = self.emit(BPF_JMP | BPF_JA, 0, 0, self.skipped(on_false) as u32);
        }
        let (jt, jf) = (self.skipped(on_true) as u8, self.skipped(on_false) as u8);
        Target::At(self.emit(BPF_JMP | condition | BPF_K, jt, jf, k))
    }

    /// Jumps by the value in the accumulator: to the target of the last interval that starts at or below it.
    fn search(&mut self, intervals: &[(u32, Target)]) -> Target {
        match intervals {
            [(_, only)] => *only,
            [(_, below), (value, target), (next, above)] if below == above && *next == *value + 1 => {
                self.branch(BPF_JEQ, *value, *target, *below)
            }
            _ => {
                let (left, right) = intervals.split_at(intervals.len() / 2);
                let at_or_above = self.search(right);
                let below = self.search(left);
                self.branch(BPF_JGE, right[0].0, at_or_above, below)
            }
        }
    }

    fn rule(&mut self, rule: &Rule) -> Target {
        match rule {
            Rule::Allow => Target::Verdict(Verdict::Allow),
            Rule::Errno(errno) => Target::Verdict(Verdict::Errno(*errno)),
            Rule::AllowIf(alternatives) => match values_of_one_argument(alternatives) {
                Some((argument, values)) => self.values(argument, &values),
                None => {
                    let mut otherwise = KILL;
                    for checks in alternatives.iter().rev() {
                        otherwise = self.checks(checks, otherwise);
                    }
                    otherwise
                }
            },
        }
    }

    fn values(&mut self, argument: Argument, values: &[u32]) -> Target {
        let mut intervals = vec![(0, KILL)];
        for &value in values {
            push_value(&mut intervals, value, Target::Verdict(Verdict::Allow));
        }
        let search = self.search(&intervals);
        self.load_before(argument_offset(argument), search)
    }

    fn checks(&mut self, checks: &[Check], otherwise: Target) -> Target {
        let mut target = Target::Verdict(Verdict::Allow);
        for check in checks.iter().rev() {
            let offset = argument_offset(check.argument);
            let halves = [
                (offset, check.mask as u32, check.value as u32),
                (offset + 4, (check.mask >> 32) as u32, (check.value >> 32) as u32),
            ];
            for (offset, mask, value) in halves {
                target = self.half(offset, mask, value, target, otherwise);
            }
        }
        target
    }

    /// Checks one half of an argument.
    fn half(&mut self, offset: u32, mask: u32, value: u32, then: Target, otherwise: Target) -> Target {
        if mask == 0 {
            return if value == 0 { then } else { otherwise };
        }
        let compare = self.branch(BPF_JEQ, value, then, otherwise);
        if compare == then {
            return compare;
        }
        let masked = if mask == u32::MAX {
            compare
        } else {
            let compare = self.place(compare);
            debug_assert_eq!(compare, self.last());
            Target::At(self.emit(BPF_ALU | BPF_AND | BPF_K, 0, 0, mask))
        };
        self.load_before(offset, masked)
    }

    /// A load that goes on at `target`.
    fn load_before(&mut self, offset: u32, target: Target) -> Target {
        let place = self.place(target);
        if place != self.last() {
            self.emit(BPF_JMP | BPF_JA, 0, 0, self.skipped(place) as u32);
        }
        Target::At(self.load(offset))
    }

    fn finish(mut self) -> Result<BpfProgram, CompileError> {
        let instructions = self.reversed.len();
        if instructions > INSTRUCTIONS_MAX {
            return Err(CompileError { instructions });
        }
        self.reversed.reverse();
        Ok(self.reversed)
    }
}

fn argument_offset(argument: Argument) -> u32 {
    ARGUMENTS_OFFSET + 8 * argument as u32
}

fn verdict_value(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => SECCOMP_RET_ALLOW,
        Verdict::Errno(errno) => SECCOMP_RET_ERRNO | (u32::from(errno) & SECCOMP_RET_DATA),
        Verdict::KillProcess => SECCOMP_RET_KILL_PROCESS,
    }
}

/// The sorted values, if every alternative is that the low half of one and the same argument has some value.
fn values_of_one_argument(alternatives: &[Vec<Check>]) -> Option<(Argument, Vec<u32>)> {
    let argument = alternatives.first()?.first()?.argument;
    let mut values = Vec::with_capacity(alternatives.len());
    for checks in alternatives {
        let [check] = checks[..] else { return None };
        if check.argument != argument || check.mask != u64::from(u32::MAX) {
            return None;
        }
        values.push(u32::try_from(check.value).ok()?);
    }
    values.sort_unstable();
    values.dedup();
    Some((argument, values))
}
