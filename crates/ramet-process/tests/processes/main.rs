//! Tests that fork, isolate or confine the process they run in.
//!
//! Each case runs in a process of its own with one thread: this program again, named by the variable `CASE`. The
//! output and the arguments are those of an ordinary test program, as far as `cargo test` uses them.
#![allow(clippy::unwrap_used)]

mod confining;
mod filtering;
mod forking;
mod harness;
mod isolating;
mod limiting;
mod spawning;

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some(spawning::ZYGOTE_ARGUMENT) {
        return spawning::serve();
    }
    harness::main(
        &[forking::CASES, isolating::CASES, confining::CASES, filtering::CASES, limiting::CASES, spawning::CASES]
            .concat(),
    )
}
