//! The application: vCPU 0 answers requests, the others work or sleep.
#![forbid(unsafe_code)]

mod cells;
mod crash;
mod exact;
mod main_loop;
mod pattern;
mod request;
mod work;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::memory;

/// vCPUs that have come up.
static VCPUS_UP: AtomicU64 = AtomicU64::new(0);

/// Every vCPU's first code in ring 3; see [`crate::runtime::entry`].
pub fn start(vcpu: usize, ram_bytes: u64, vcpus: usize) -> ! {
    VCPUS_UP.fetch_add(1, Ordering::Relaxed);
    let heap = memory::Heap::new(ram_bytes);
    if vcpu == 0 { main_loop::run(heap, ram_bytes, vcpus) } else { work::run(vcpu, vcpus, heap) }
}
