//! The process of one machine: its birth, its orders, its confinement; and the zygote that bears it.
//!
//! ```text
//!   zygote_main --Bear--> clone3 --> machine_process::live --Birth--> Blank --Build--> running <--> held --> end
//! ```
//!
//! Deliberately absent: which machines there are and why (ramet-family), how one is assembled (ramet-machine).
#![forbid(unsafe_code)]

mod filter;
mod hurry;
mod machine_process;
pub mod protocol;
mod zygote;

pub use ramet_machine::initial_parts;
pub use zygote::zygote_main;
