//! Kernels, machines and hosts that are not as they should be: each is refused by a clear error with the value that
//! offends, and by the command with a status of its own.
#![allow(clippy::unwrap_used)]

mod common;

use common::elf::{self, ENTRY};
use common::processes::Scratch;
use common::{Spec, chain, program, ramet};
use ramet_family::Family;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

/// Exit status for failures of Ramet itself.
const FAILURE: i32 = 125;
/// Exit status for a command line that cannot be understood.
const USAGE: i32 = 2;

/// What a boot of this kernel on such a machine says; it must not succeed.
fn refusal(spec: Spec, kernel: &[u8]) -> String {
    let mut family = Family::start(&spec.config()).unwrap();
    let text = chain(&family.boot(&spec.boot_spec(kernel)).unwrap_err());
    assert_eq!(family.members().count(), 0, "nothing is left of it");
    family.shut_down();
    text
}

fn assert_names(text: &str, words: &[&str]) {
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
}

/// Runs the command and expects it to fail with this status and these words.
fn assert_fails(command: &mut Command, status: i32, words: &[&str]) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{command:?}: {text}");
    assert_names(&text, words);
    assert!(!text.contains("panicked"), "{text}");
    output
}

#[test]
fn kernels_that_are_none_are_refused_by_what_is_wrong_with_them() {
    let load = |address, in_file, in_memory| (1, 4096, address, in_file, in_memory);
    let body = [0x90; 64];
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("empty", vec![], &["ELF"]),
        ("text", b"#!/bin/sh\n".to_vec(), &["ELF", "23, 21"]),
        ("cut in its header", elf::file(ENTRY, &[load(ENTRY, 64, 64)], &body)[..40].to_vec(), &["cut off", "0x40"]),
        ("cut in a segment", elf::file(ENTRY, &[load(ENTRY, 4096, 4096)], &body), &["0", "4096"]),
        ("below RAM for kernels", elf::file(0x1000, &[load(0x1000, 64, 64)], &body), &["0x1000"]),
        ("beyond RAM", elf::file(ENTRY, &[load(ENTRY, 64, 1 << 40)], &body), &["0x200000"]),
        (
            "around the end of all addresses",
            elf::file(ENTRY, &[load(u64::MAX - 8, 64, 64)], &body),
            &["0xfffffffffffffff7"],
        ),
        ("overlapping", elf::file(ENTRY, &[load(ENTRY, 64, 8192), load(ENTRY + 4096, 64, 64)], &body), &["0x201000"]),
        ("entered elsewhere", elf::file(0x30_0000, &[load(ENTRY, 64, 64)], &body), &["0x300000"]),
        ("without segments", elf::file(ENTRY, &[], &body), &["segment"]),
    ];
    for (what, kernel, words) in cases {
        let text = refusal(Spec::default(), kernel);
        println!("{what}: {text}");
        assert_names(&text, words);
    }
}

#[test]
fn machines_that_cannot_be_are_refused_by_size_and_number() {
    let unikernel = ramet_unikernel::ELF;
    for memory_bytes in [0, 1, 4095, 4096, (64 << 20) + 1, 1 << 60, u64::MAX] {
        let text = refusal(Spec { memory_bytes, ..Spec::default() }, unikernel);
        assert_names(&text, &[&memory_bytes.to_string()]);
    }
    // Possible, but not here.
    let text = refusal(Spec { memory_bytes: 1 << 40, ..Spec::default() }, unikernel);
    assert_names(&text, &[&(1u64 << 40).to_string(), "host"]);
    for vcpus in [0, 9, 255] {
        let text = refusal(Spec { vcpus, ..Spec::default() }, unikernel);
        assert_names(&text, &[&vcpus.to_string(), "1 to 8"]);
    }
    let text = refusal(Spec { layer_limit_bytes: Some(1 << 20), ..Spec::default() }, unikernel);
    assert_names(&text, &[&(64 << 20).to_string(), &(1 << 20).to_string()]);
}

#[test]
fn a_family_has_one_founder() {
    let mut machines = common::boot();
    let error = chain(&machines.family.boot(&Spec::default().boot_spec(ramet_unikernel::ELF)).unwrap_err());
    assert_names(&error, &["founder already"]);
    machines.assert_well(0);
    machines.shut_down();
}

#[test]
fn a_program_that_is_no_zygote_is_noticed() {
    for program in ["/bin/true", "/nonexistent/ramet"] {
        let config = ramet_family::Config { program: program.into(), ..Spec::default().config() };
        let outcome = Family::start(&config).map_err(|error| chain(&error));
        // It may be noticed only when it is needed.
        let text = match outcome {
            Ok(mut family) => {
                let text = chain(&family.boot(&Spec::default().boot_spec(ramet_unikernel::ELF)).unwrap_err());
                family.shut_down();
                text
            }
            Err(text) => text,
        };
        assert_names(&text, &["zygote"]);
    }
}

#[test]
fn the_command_says_what_is_wrong_and_fails() {
    let folder = Scratch::new();
    let kernel = folder.file("kernel", &elf::kernel(&elf::Code::default().halt().0));
    let not_elf = folder.file("not-elf", b"hello");
    let run = || {
        let mut command = ramet();
        command.arg("run");
        command
    };
    assert_fails(run().arg("/nonexistent/kernel"), FAILURE, &["/nonexistent/kernel", "No such file"]);
    assert_fails(run().arg(folder.path()), FAILURE, &[&folder.path().display().to_string()]);
    assert_fails(run().arg(&not_elf), FAILURE, &["not-elf", "not an ELF file"]);
    assert_fails(run().args(["--memory", "0"]).arg(&kernel), FAILURE, &["0 bytes"]);
    assert_fails(run().args(["--memory", "100T"]).arg(&kernel), FAILURE, &[&(100u64 << 40).to_string()]);
    assert_fails(run().args(["--memory", "1T"]).arg(&kernel), FAILURE, &[&(1u64 << 40).to_string(), "host"]);
    assert_fails(run().args(["--memory", "lots"]).arg(&kernel), USAGE, &["lots", "128M"]);
    assert_fails(run().args(["--vcpus", "0"]).arg(&kernel), FAILURE, &["0 vCPUs", "1 to 8"]);
    assert_fails(run().args(["--vcpus", "9"]).arg(&kernel), FAILURE, &["9 vCPUs", "1 to 8"]);
    assert_fails(run().args(["--vcpus", "many"]).arg(&kernel), USAGE, &["many"]);
    assert_fails(ramet().args(["demo", "--generations", "0"]), USAGE, &["0"]);
    assert_fails(ramet().args(["demo", "--clones", "-1"]), USAGE, &["-1"]);
    assert_fails(ramet().args(["demo", "--memory", "0"]), FAILURE, &["0 bytes"]);
    assert_fails(ramet().args(["demo", "--layer-space", "16M"]), FAILURE, &[&(16 << 20).to_string()]);
    assert_fails(ramet().arg("zygote"), 1, &["supervisor"]);
    assert_fails(ramet().arg("no-such-command"), USAGE, &["no-such-command"]);
}

/// The command in a mount namespace of its own, after a change to its files.
fn with_files_changed(change: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c"]).arg(format!("{change} && exec \"$0\" \"$@\"")).arg(program());
    command
}

#[test]
fn a_host_without_kvm_is_named_and_doctor_knows_it() {
    let gone = "mount -t tmpfs none /dev";
    assert_fails(with_files_changed(gone).args(["demo", "--clones", "1"]), FAILURE, &["/dev/kvm", "ramet doctor"]);
    let other = "mount -o bind /dev/null /dev/kvm";
    assert_fails(with_files_changed(other).args(["demo", "--clones", "1"]), FAILURE, &["KVM", "ramet doctor"]);
    for change in [gone, other] {
        let output = assert_fails(with_files_changed(change).args(["doctor", "--json"]), 1, &[]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["can_run"], false);
    }
    let output = assert_fails(with_files_changed(gone).arg("doctor"), 1, &[]);
    assert_names(&String::from_utf8_lossy(&output.stdout), &["/dev/kvm", "cannot run on this host"]);
}

#[test]
fn a_user_without_permission_for_kvm_is_told_how_to_get_it() {
    let mode = std::fs::metadata("/dev/kvm").unwrap().permissions().mode();
    assert_eq!(mode & 0o006, 0, "/dev/kvm is open to everybody here: this test needs a host where it is not");
    let folder = Scratch::new();
    let own = folder.path().join("ramet");
    std::fs::copy(program(), &own).unwrap();
    for path in [folder.path(), &own] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    // A test beside this one that starts a process holds the file open for writing until that has called exec.
    common::wait_for("the copy to be executable", || Command::new(&own).arg("--version").output().is_ok());
    let nobody = || {
        let mut command = Command::new(&own);
        command.uid(65534).gid(65534);
        command
    };
    assert_fails(nobody().args(["demo", "--clones", "1"]), FAILURE, &["No permission", "/dev/kvm", "group"]);
    let output = assert_fails(nobody().args(["doctor", "--json"]), 1, &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["can_run"], false);
}

#[test]
fn few_descriptors_end_a_demo_with_advice_and_not_the_host() {
    for limit in ["6", "12", "20", "30", "60"] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$0\" \"$@\""]).arg(program());
        let output = assert_fails(command.arg(limit).args(["demo", "--clones", "50", "--json"]), FAILURE, &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("ulimit -n") || text.contains("Too many open files"), "with {limit}: {text}");
    }
}
