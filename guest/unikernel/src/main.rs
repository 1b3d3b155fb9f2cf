//! The unikernel that is embedded in Ramet: a machine that boots in microseconds, answers requests through its clone
//! page, and knows when it has been forked.
//!
//! - [`ring0`]: the few instructions that must run in ring 0, and the gates to them.
//! - [`runtime`]: the machine as ring 3 sees it: memory, time, random numbers, devices, `fork()`.
//! - [`app`]: what it does: the main loop, the requests, the other vCPUs' work. No unsafe code.
//!
//! It runs in ring 3 with an identity map, one static stack per vCPU and no allocator.
#![no_std]
#![no_main]

mod app;
mod ring0;
mod runtime;
