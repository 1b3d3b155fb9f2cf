//! Builds the embedded unikernel, which is a workspace of its own: it has another panic strategy and linker script.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let guest = manifest_dir.join("../../guest/unikernel");
    for watched in ["src", "Cargo.toml", "Cargo.lock", "build.rs", "link.ld"] {
        println!("cargo:rerun-if-changed={}", guest.join(watched).display());
    }
    println!("cargo:rerun-if-changed={}", manifest_dir.join("../ramet-abi/src").display());
    let elf = build(&guest, &out_dir.join("unikernel"));
    fs::copy(&elf, out_dir.join("unikernel.elf")).expect("the unikernel was built");
}

fn build(guest: &Path, target: &Path) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let status = Command::new(cargo)
        .arg("build")
        .args(["--release", "--locked", "--target", "x86_64-unknown-linux-gnu"])
        .arg("--manifest-path")
        .arg(guest.join("Cargo.toml"))
        .current_dir(guest)
        .env("CARGO_TARGET_DIR", target)
        // Flags and wrappers of the host's build must not reach the guest.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        .env_remove("CARGO_BUILD_TARGET")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the unikernel in guest/unikernel does not build");
    target.join("x86_64-unknown-linux-gnu/release/ramet-unikernel")
}
