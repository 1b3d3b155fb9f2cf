//! The benchmark of forks runs, and its report has every row that is documented. No time is judged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every name of docs/benchmarks/fork.md that does not depend on the host.
const ROWS: &[&str] = &[
    "boot_process_start_to_console",
    "boot_unikernel",
    "boot_unikernel_inside",
    "clone_end",
    "clone_memory",
    "clone_pss",
    "clone_pss_mean",
    "clones_alive",
    "clones_first_answer",
    "clones_first_instruction",
    "clones_parent_pause",
    "clones_per_second",
    "fork_first_answer",
    "fork_first_instruction",
    "fork_process_start_to_console",
    "fork_resident_ratio",
    "freeze_flat",
    "parent_pause",
    "process_fork_exit",
    "process_spawn_exit",
    "stage_blank",
    "stage_born",
    "stage_confined",
    "stage_created",
    "stage_mapped",
    "stage_ordered",
    "stage_released",
    "stage_restored",
    "stage_returned",
    "vm_close",
    "vm_create",
];
/// And the one that does.
const CGROUP_ROW: &str = "clone_cgroup_memory";

/// The command, as the tests of a whole workspace have built it.
fn ramet(bench: &Path) -> PathBuf {
    let path = std::env::var_os("RAMET").map_or_else(|| bench.with_file_name("ramet"), PathBuf::from);
    assert!(path.is_file(), "There is no {}: build it first (cargo build --package ramet)", path.display());
    path
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"))
}

#[test]
fn a_quick_run_gives_all_rows() {
    let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (json, svg) = (folder.join("fork.json"), folder.join("fork.svg"));
    let mut command = Command::new(bench);
    command.args(["fork", "--quick", "--json"]).arg(&json).arg("--svg").arg(&svg);
    command.arg("--set").arg(format!("ramet={}", ramet(bench).display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let mut names: BTreeSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    names.remove(CGROUP_ROW);
    assert_eq!(names, ROWS.iter().copied().collect());
    for row in rows {
        let (min, p50, p99) = (number(row, "min"), number(row, "p50"), number(row, "p99"));
        assert!(number(row, "n") >= 1.0, "{row}");
        // A ratio's three are ratios of minima, medians and maxima; the host's free memory goes its own way.
        if !matches!(row["name"].as_str(), Some("fork_resident_ratio" | "clone_memory")) {
            assert!(0.0 < min && min <= p50 && p50 <= p99, "{row}");
        }
    }
    let alive = rows.iter().find(|row| row["name"] == "clones_alive").unwrap();
    assert_eq!(alive["p50"], 20.0);
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg "));
}

#[test]
fn wrong_settings_are_refused() {
    for (setting, reason) in [
        ("slots=4", "A slot of 4 MiB"),
        ("forks=0", "--set forks=0"),
        ("clones=0", "--set clones=0"),
        ("clones=many", "many is no value"),
        ("rats=1", "this benchmark's settings are"),
    ] {
        let bench = env!("CARGO_BIN_EXE_bench");
        let output = Command::new(bench).args(["fork", "--set", "ramet=none", "--set", setting]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(reason), "{setting}: {told}");
    }
}
