//! What Ramet and its host cost, measured.
#![forbid(unsafe_code)]

fn main() {}
