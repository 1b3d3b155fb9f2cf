//! Ends of the road: a panic, or an exception that is no gate. Both say why on the serial device and exit with
//! status 101. An exception while one is being reported, as where ports are closed, ends the machine at once.
#![allow(unsafe_code)]

use core::fmt::Write;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use super::guest_port;
use super::serial::Serial;
use crate::ring0;

/// Exit status after a panic or an unexpected exception.
const STATUS: u8 = 101;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // The serial device takes every byte: writing cannot fail, and there is nowhere to report it.
    let _ = writeln!(Serial, "ramet unikernel: {info}");
    guest_port::exit(STATUS)
}

/// Set once an exception is being reported.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// What ring 0 found on its stack; see `exception` in ring0.s.
#[repr(C)]
struct ExceptionFrame {
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Ring 0 sends every exception that is no gate here, in ring 3.
#[unsafe(no_mangle)]
extern "C" fn report_exception(frame: &ExceptionFrame, cr2: u64) -> ! {
    if REPORTING.swap(true, Ordering::Relaxed) {
        ring0::triple_fault();
    }
    let ExceptionFrame { vector, error_code, rip, cs, rflags, rsp, ss } = frame;
    let _ = writeln!(
        Serial,
        "ramet unikernel: exception {vector}, error code {error_code:#x}, rip {cs:#x}:{rip:#x}, \
         rsp {ss:#x}:{rsp:#x}, rflags {rflags:#x}, cr2 {cr2:#x}"
    );
    guest_port::exit(STATUS)
}

/// The core library is compiled for unwinding and names this; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
