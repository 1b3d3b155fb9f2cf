//! Compiled system call filters against the policy's meaning and against seccompiler.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use ramet_process::seccomp::{
    Argument, Check, MachineFilterSpec, Policy, Rule, SystemCall, Verdict, compile, machine_policy,
};
use rustix::process::Pid;
use support::{interpreter, linear};

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const X32: u32 = 0x4000_0000;
const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

/// Requests of KVM's shape: 64 of them, unevenly spaced.
fn ioctls() -> Vec<u32> {
    (0..64).map(|n| 0x4000_ae00 + (n * n * 7) % 0x40ff + ((n % 3) << 30)).collect()
}

fn machine() -> Policy {
    machine_policy(&MachineFilterSpec { own_pid: Pid::from_raw(1).unwrap(), ioctls: &ioctls() })
}

fn value(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => ALLOW,
        Verdict::Errno(errno) => 0x0005_0000 | u32::from(errno),
        Verdict::KillProcess => KILL_PROCESS,
    }
}

fn call(number: u32, argument: Argument, with: u64) -> SystemCall {
    let mut arguments = [0x1234_5678_9abc_def0; 6];
    arguments[argument as usize] = with;
    SystemCall { architecture: X86_64, number, arguments }
}

const ARGUMENTS: [Argument; 6] = [Argument::A0, Argument::A1, Argument::A2, Argument::A3, Argument::A4, Argument::A5];

/// Every value that a check of the policy compares with, its neighbours, and its single-bit changes.
fn interesting_values(policy: &Policy) -> Vec<u64> {
    let mut values = vec![0, 1, u64::MAX, u64::from(u32::MAX), 1 << 32];
    for (_, rule) in policy.rules() {
        let Rule::AllowIf(alternatives) = rule else { continue };
        for check in alternatives.iter().flatten() {
            for base in [check.value, check.mask, !check.mask, check.value | (1 << 32), check.value | (1 << 63)] {
                values.extend([base, base.wrapping_add(1), base.wrapping_sub(1)]);
                values.extend((0..64).map(|bit| base ^ (1 << bit)));
            }
        }
    }
    values.sort_unstable();
    values.dedup();
    values
}

fn check_everywhere(policy: &Policy, numbers: impl Iterator<Item = u32>, values: &[u64]) {
    let program = compile(policy).unwrap();
    let oracle = linear::compile(policy).unwrap();
    for number in numbers {
        let has_checks = policy.rules().any(|(n, rule)| n == number && matches!(rule, Rule::AllowIf(_)));
        let values = if has_checks { values } else { &values[..3.min(values.len())] };
        for argument in ARGUMENTS {
            for &with in values {
                let call = call(number, argument, with);
                let (result, _) = interpreter::run(&program, &call);
                let meant = policy.evaluate(&call);
                assert_eq!(result, value(meant), "{call:x?}");
                let (oracle, _) = interpreter::run(&oracle, &call);
                assert_eq!(oracle == ALLOW, meant == Verdict::Allow, "{call:x?}");
            }
        }
    }
}

#[test]
fn the_machine_filter_means_what_its_policy_says() {
    let policy = machine();
    let values = interesting_values(&policy);
    let around = [X32 - 1, X32, X32 | 1, X32 | 520, u32::MAX, 1 << 31];
    check_everywhere(&policy, (0..1024).chain(around), &values);
}

#[test]
fn other_architectures_and_the_x32_abi_are_killed() {
    let policy = machine();
    let program = compile(&policy).unwrap();
    for number in 0..1024 {
        for (architecture, number) in [(I386, number), (0, number), (!X86_64, number), (X86_64, X32 | number)] {
            let call = SystemCall { architecture, number, arguments: [0; 6] };
            assert_eq!(policy.evaluate(&call), Verdict::KillProcess);
            assert_eq!(interpreter::run(&program, &call).0, KILL_PROCESS);
        }
    }
}

#[test]
fn the_machine_policy_forbids_what_it_says() {
    let policy = machine();
    for number in [
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_clone,
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_pidfd_send_signal,
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_open,
        libc::SYS_prctl,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_seccomp,
        libc::SYS_setuid,
        libc::SYS_capset,
        libc::SYS_pkey_mprotect,
        libc::SYS_remap_file_pages,
        libc::SYS_personality,
        libc::SYS_modify_ldt,
        libc::SYS_arch_prctl,
    ] {
        for argument in ARGUMENTS {
            let call = call(number as u32, argument, 0);
            assert_eq!(policy.evaluate(&call), Verdict::KillProcess, "{number}");
        }
    }
    let verdict = |number: libc::c_long, argument, with| policy.evaluate(&call(number as u32, argument, with));
    let (read_write, execute) = ((libc::PROT_READ | libc::PROT_WRITE) as u64, libc::PROT_EXEC as u64);
    assert_eq!(verdict(libc::SYS_mmap, Argument::A2, read_write), Verdict::Allow);
    assert_eq!(verdict(libc::SYS_mmap, Argument::A2, read_write | execute), Verdict::KillProcess);
    assert_eq!(verdict(libc::SYS_mprotect, Argument::A2, execute), Verdict::KillProcess);
    assert_eq!(verdict(libc::SYS_tgkill, Argument::A0, 1), Verdict::Allow);
    assert_eq!(verdict(libc::SYS_tgkill, Argument::A0, 2), Verdict::KillProcess);
    assert_eq!(verdict(libc::SYS_fcntl, Argument::A1, libc::F_SETOWN as u64), Verdict::KillProcess);
    assert_eq!(verdict(libc::SYS_ioctl, Argument::A1, 0x5412), Verdict::KillProcess, "TIOCSTI");
    assert_eq!(verdict(libc::SYS_clone3, Argument::A0, 0), Verdict::Errno(libc::ENOSYS as u16));
    assert_eq!(verdict(libc::SYS_memfd_create, Argument::A1, u64::from(libc::MFD_EXEC)), Verdict::KillProcess);
}

#[test]
fn the_empty_policy_kills_everything() {
    check_everywhere(&Policy::new(), 0..600, &[0, u64::MAX]);
}

#[test]
fn more_rules_than_the_kernel_takes_are_an_error_that_says_so() {
    let ioctls: Vec<u32> = (0..5000).map(|n| n * 3).collect();
    let policy = machine_policy(&MachineFilterSpec { own_pid: Pid::from_raw(1).unwrap(), ioctls: &ioctls });
    assert!(compile(&policy).unwrap_err().instructions > 4096);
}

#[test]
fn every_path_through_the_machine_filter_is_short() {
    let policy = machine();
    let program = compile(&policy).unwrap();
    let longest = (0..1024)
        .flat_map(|number| ioctls().into_iter().map(move |request| (number, request)))
        .map(|(number, request)| interpreter::run(&program, &call(number, Argument::A1, u64::from(request))).1)
        .max();
    assert!(longest.unwrap() <= 24, "{longest:?}");
}

fn check() -> impl Strategy<Value = Check> {
    let value = prop_oneof![0u64..4, any::<u64>(), Just(u64::MAX), (0u64..4).prop_map(|n| n << 32)];
    let argument = prop::sample::select(&ARGUMENTS[..]);
    (argument, value.clone(), value, 0..3).prop_map(|(argument, mask, value, kind)| match kind {
        0 => Check::equal_u32(argument, value as u32),
        1 => Check::equal_u64(argument, value),
        // seccompiler masks the value too; ours would make such a check impossible to meet.
        _ => Check::masked(argument, mask, value & mask),
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let alternatives = prop::collection::vec(prop::collection::vec(check(), 1..4), 1..5);
    let many = prop::collection::vec(any::<u32>(), 1..120).prop_map(|values| {
        Rule::AllowIf(values.into_iter().map(|value| vec![Check::equal_u32(Argument::A1, value)]).collect())
    });
    prop_oneof![3 => Just(Rule::Allow), 1 => (1u16..4096).prop_map(Rule::Errno), 3 => alternatives.prop_map(Rule::AllowIf), 1 => many]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_policy_compiles_to_what_it_means(rules in prop::collection::btree_map(0i64..460, rule(), 0..40), extra in prop::collection::vec(any::<u64>(), 3)) {
        let policy = rules.into_iter().fold(Policy::new(), |policy, (number, rule)| policy.with(number, rule));
        prop_assume!(compile(&policy).is_ok() && linear::compile(&policy).is_some());
        let mut values = interesting_values(&policy);
        // All of them take too long: a spread.
        let step = values.len() / 60 + 1;
        values = values.into_iter().step_by(step).chain(extra).collect();
        check_everywhere(&policy, (0..470).chain([X32, X32 + 1, u32::MAX]), &values);
    }
}
