//! The command itself: demo, doctor, and kernels of one's own.
#![allow(clippy::unwrap_used)]

mod common;

use common::elf::{self, Code};
use common::hosts::Host;
use common::processes::Scratch;
use common::{program, ramet};
use ramet_abi::guest_port;
use ramet_abi::layout::SERIAL_PORT;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn succeed(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn demo_prints_one_object_with_what_it_measured() {
    let output = succeed(ramet().args(["demo", "--json", "--clones", "5", "--generations", "3", "--vcpus", "2"]));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["boot_ms"].as_f64().unwrap() > 0.0);
    for field in ["parent_pause_ms", "fork_first_instruction_ms", "fork_first_answer_ms"] {
        let summary = &report[field];
        assert_eq!(summary["n"], 5, "{field}");
        let (p50, p99) = (summary["p50"].as_f64().unwrap(), summary["p99"].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{field}: {summary}");
    }
    for (field, value) in [("clones", 5), ("clones_answering", 5), ("distinct_random", 5)] {
        assert_eq!(report[field], value, "{field}");
    }
    assert_eq!(report["isolation_ok"], true);
    assert!(report["memory_per_clone_kib"].as_u64().is_some());
}

#[test]
fn demo_shows_a_table_and_the_family_as_a_tree() {
    let output = succeed(ramet().args(["demo", "--clones", "3", "--generations", "3", "--memory", "32M"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let isolated = text.lines().find(|line| line.starts_with("isolated")).unwrap();
    assert!(isolated.ends_with("yes"), "{text}");
    for words in ["pause of the parent", "first guest instruction", "p99", "clone 3 (generation 3)", "3 of 3", "KiB"] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("32 MiB"), "it says first what it will do");
}

#[test]
fn doctor_says_that_ramet_can_run_and_which_kvm_this_is() {
    let output = succeed(ramet().args(["doctor", "--json"]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["can_run"], true);
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        for field in ["name", "found"] {
            assert!(!check[field].as_str().unwrap().is_empty(), "{check}");
        }
        if check["status"] != "ok" {
            assert!(
                !check["lost"].as_str().unwrap().is_empty() && !check["remedy"].as_str().unwrap().is_empty(),
                "{check}"
            );
        }
    }
    let names: Vec<&str> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    for wanted in ["/dev/kvm", "PAGEMAP_SCAN", "RLIMIT_NOFILE", "/dev/net/tun"] {
        assert!(names.contains(&wanted), "{wanted} is not in {names:?}");
    }
    let status = |name: &str| checks.iter().find(|check| check["name"] == name).map(|check| check["status"].clone());
    assert_eq!(status("PAGEMAP_SCAN") == Some("ok".into()), Host::at_hand().can("pagemap_scan"));
    let text = String::from_utf8(succeed(ramet().arg("doctor")).stdout).unwrap();
    assert!(text.trim_end().ends_with("Ramet can run on this host."), "{text}");
}

/// Runs a kernel of one's own to its end.
fn run(kernel: &[u8], options: &[&str], input: &[u8]) -> Output {
    let folder = Scratch::new();
    let kernel = folder.file("kernel", kernel);
    let mut command = Command::new(program());
    command.arg("run").args(options).arg(kernel);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn assert_says(output: &Output, status: i32, words: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), words, "{errors}");
}

#[test]
fn kernels_speak_on_the_terminal_and_their_status_is_the_commands() {
    let code = |status| Code::default().text(SERIAL_PORT, "hello\n").write_long(guest_port::EXIT, status).halt();
    for status in [0, 7, 255] {
        assert_says(&run(&elf::kernel(&code(status).0), &[], b""), status.cast_signed(), "hello\n");
    }
    assert_says(&run(&elf::pvh_kernel(&code(9).0), &[], b""), 9, "hello\n");
    assert_says(&run(&elf::kernel(&code(3).0), &["--vcpus", "4", "--memory", "1G"], b""), 3, "hello\n");
    assert_says(&run(&elf::kernel(&code(4).0), &["--interrupts", "full"], b""), 4, "hello\n");
    let done = Code::default().text(SERIAL_PORT, "done\n").write_long(guest_port::DONE, 5).halt();
    assert_says(&run(&elf::kernel(&done.0), &[], b""), 5, "done\n");
}

#[test]
fn what_is_typed_reaches_the_kernel() {
    // Waits for a byte (line status bit 0), and says the next one in the alphabet.
    let wait = [0xBA, 0xFD, 0x03, 0, 0, 0xEC, 0xA8, 0x01, 0x74, 0xFB];
    let echo = [0xBA, 0xF8, 0x03, 0, 0, 0xEC, 0xFE, 0xC0, 0xEE];
    let code = Code::default().raw(&wait).raw(&echo).write_long(guest_port::EXIT, 0).halt();
    assert_says(&run(&elf::kernel(&code.0), &[], b"A"), 0, "B");
}

#[test]
fn a_kernel_that_crashes_is_told_from_one_that_fails() {
    // lidt [0]: an IDT of zero length; then ud2.
    let crash = [0x31, 0xC0, 0x50, 0x50, 0x0F, 0x01, 0x1C, 0x24, 0x0F, 0x0B];
    let stack = [0xBC, 0x00, 0x00, 0x40, 0x00];
    let output = run(&elf::kernel(&[&stack[..], &crash].concat()), &[], b"");
    assert_eq!(output.status.code(), Some(124));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("triple fault"), "{errors}");
}

#[test]
fn a_kernel_may_fork_itself_when_it_is_let() {
    // The parent, which got a number, exits with it; a child, which got 0, says so and exits with 0.
    let fork = Code::default()
        .write_long(guest_port::ARGUMENT_0, 2)
        .write_long(guest_port::ARGUMENT_1, 0)
        .read_long(guest_port::FORK);
    let code = fork.write_eax(guest_port::EXIT).halt();
    let output = run(&elf::kernel(&code.0), &["--guest-forks", "5"], b"");
    assert_says(&output, 1, "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("machine 0 forked 2 children"));
    let output = run(&elf::kernel(&code.0), &[], b"");
    assert_eq!(output.status.code(), Some(i32::try_from(guest_port::ERROR_NOT_PERMITTED).unwrap()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--guest-forks"), "how to allow it");
}

#[test]
fn help_and_version_are_there() {
    let help = String::from_utf8(succeed(ramet().arg("--help")).stdout).unwrap();
    for command in ["demo", "doctor", "run"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("zygote"), "that is not for people");
    assert!(String::from_utf8(succeed(ramet().arg("--version")).stdout).unwrap().starts_with("ramet "));
}
