//! Links the unikernel as a plain static ELF with its own memory layout.
//!
//! The arguments are given here and not in a `.cargo/config.toml`, because that is read from the current directory,
//! and this crate is also built by another crate's build script.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
    let script = format!("-Wl,-T,{folder}/link.ld");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,norelro",
        "-Wl,-z,noexecstack",
        &script,
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
