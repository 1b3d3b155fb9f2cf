//! The same policy compiled by seccompiler: the oracle, and the linear program to measure against.

use ramet_process::seccomp::{Check, Policy, Rule};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Allows what `policy` allows and kills the rest (seccompiler's filters know two outcomes: no errno). `None`: it needs
/// more instructions than the kernel takes.
pub(crate) fn compile(policy: &Policy) -> Option<BpfProgram> {
    let rules = policy
        .rules()
        .filter_map(|(number, rule)| {
            let rules = match rule {
                Rule::Allow => vec![],
                Rule::Errno(_) => return None,
                // To seccompiler no conditions mean always, here never.
                Rule::AllowIf(alternatives) if alternatives.is_empty() => return None,
                Rule::AllowIf(alternatives) => alternatives
                    .iter()
                    .map(|checks| SeccompRule::new(checks.iter().map(condition).collect()).unwrap())
                    .collect(),
            };
            Some((i64::from(number), rules))
        })
        .collect();
    let filter =
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, TargetArch::x86_64).unwrap();
    match filter.try_into() {
        Ok(program) => Some(program),
        Err(BackendError::FilterTooLarge(_)) => None,
        Err(error) => panic!("seccompiler: {error}"),
    }
}

fn condition(check: &Check) -> SeccompCondition {
    let (length, operator) = match check.mask {
        0xffff_ffff => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq),
        u64::MAX => (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq),
        mask => (SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask)),
    };
    SeccompCondition::new(check.argument as u8, length, operator, check.value).unwrap()
}
