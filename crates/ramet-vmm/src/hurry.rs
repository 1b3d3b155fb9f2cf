//! Births and monitors go before what guests compute.
//!
//! A fork is waited for, and its work is short; a guest may compute for ever. Between equals the scheduler lets a newborn
//! queue behind guests, and a monitor that is asked to freeze behind its own vCPU (some milliseconds, where all
//! processors are busy). So the zygote and its newborns run at a better nice value until the machine is released, where
//! the host grants it; and monitors always ask for short slices: they run soon, and get no more time than others.

use ramet_process::set_nice_and_slice;
use rustix::io::Errno;
use rustix::process::getpriority_process;

/// By how much the nice value is lower.
const ADVANCE: i32 = 10;
/// Slice of zygote and monitors: the shortest that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// The nice value of machines that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hurry {
    ordinary: i32,
}

impl Hurry {
    /// Takes the better nice value if the host grants it (it takes CAP_SYS_NICE or RLIMIT_NICE), and short slices.
    pub(crate) fn begin() -> Result<Self, Errno> {
        let ordinary = getpriority_process(None)?;
        match set_nice_and_slice(ordinary.saturating_sub(ADVANCE), SLICE_NS) {
            Err(Errno::PERM | Errno::ACCESS) => set_nice_and_slice(ordinary, SLICE_NS)?,
            outcome => outcome?,
        }
        Ok(Self { ordinary })
    }

    /// The nice value of machines that run.
    pub(crate) fn ordinary(self) -> i32 {
        self.ordinary
    }

    /// The calling thread, a monitor's, goes back to the ordinary nice value.
    pub(crate) fn end(self) -> Result<(), Errno> {
        set_nice_and_slice(self.ordinary, SLICE_NS)
    }
}
