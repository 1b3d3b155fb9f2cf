//! What `ramet demo --json` must say for a run to count as passed.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The part of the demo's answer that is judged. Times are not: they depend on the host.
#[derive(Debug, Deserialize)]
struct Demo {
    boot_ms: f64,
    parent_pause_ms: Times,
    fork_first_instruction_ms: Times,
    fork_first_answer_ms: Times,
    clones: u64,
    clones_answering: u64,
    distinct_random: u64,
    isolation_ok: bool,
    memory_per_clone_kib: f64,
}

#[derive(Debug, Deserialize)]
struct Times {
    n: u64,
    p50: f64,
    p99: f64,
}

/// Checks the demo's answer for `clones` clones.
///
/// # Errors
/// The first thing in it that is not as it must be.
pub(super) fn check(json: &str, clones: u64) -> Result<()> {
    let demo: Demo = serde_json::from_str(json).context("The demo's answer is not as documented")?;
    ensure!(demo.clones == clones, "The demo made {} clones, not {clones}", demo.clones);
    ensure!(demo.clones_answering == clones, "Only {} of {clones} clones answered", demo.clones_answering);
    ensure!(demo.distinct_random >= clones, "Only {} of {clones} clones had bytes of their own", demo.distinct_random);
    ensure!(demo.isolation_ok, "A value written in one clone was seen in another");
    let times = [
        ("parent_pause_ms", &demo.parent_pause_ms),
        ("fork_first_instruction_ms", &demo.fork_first_instruction_ms),
        ("fork_first_answer_ms", &demo.fork_first_answer_ms),
    ];
    for (name, Times { n, p50, p99 }) in times {
        ensure!(*n > 0 && *p50 > 0.0 && p99 >= p50, "{name} makes no sense: n {n}, p50 {p50}, p99 {p99}");
    }
    // An answer takes many instructions. Also tells whether the guest's counter is read as the host's.
    let (first, answer) = (demo.fork_first_instruction_ms.p50, demo.fork_first_answer_ms.p50);
    ensure!(first <= answer, "The first answer came {answer} ms after the request, the first instruction {first} ms");
    ensure!(demo.boot_ms > 0.0 && demo.memory_per_clone_kib > 0.0, "boot_ms or memory_per_clone_kib is not positive");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"boot_ms": 5.0, "parent_pause_ms": {"n": 20, "p50": 1.0, "p99": 2.0},
        "fork_first_instruction_ms": {"n": 20, "p50": 1.0, "p99": 2.0},
        "fork_first_answer_ms": {"n": 20, "p50": 1.0, "p99": 1.0},
        "clones": 20, "clones_answering": 20, "distinct_random": 20, "isolation_ok": true,
        "memory_per_clone_kib": 900, "more": 1}"#;

    #[test]
    fn a_good_answer_passes() {
        check(GOOD, 20).unwrap();
    }

    #[test]
    fn bad_answers_fail() {
        for (from, to) in [
            ("\"clones\": 20", "\"clones\": 19"),
            ("\"clones_answering\": 20", "\"clones_answering\": 19"),
            ("\"distinct_random\": 20", "\"distinct_random\": 19"),
            ("true", "false"),
            ("\"n\": 20", "\"n\": 0"),
            ("\"p99\": 2.0", "\"p99\": 0.5"),
            ("\"boot_ms\": 5.0", "\"boot_ms\": 0"),
            ("\"boot_ms\": 5.0,", ""),
            ("\"p50\": 1.0, \"p99\": 1.0", "\"p50\": 0.5, \"p99\": 1.0"),
        ] {
            let bad = GOOD.replace(from, to);
            assert_ne!(bad, GOOD);
            assert!(check(&bad, 20).is_err(), "{to}");
        }
        assert!(check("", 20).is_err());
    }
}
