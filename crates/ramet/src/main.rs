//! The `ramet` command.
fn main() {}
