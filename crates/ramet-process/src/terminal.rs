//! Raw mode for the terminal that a guest's console is connected to, restored however the program ends.
//!
//! Restored when the guard is dropped, and by a panic hook where panics do not unwind. A signal that kills the program
//! leaves the terminal raw (`reset` helps): in raw mode Ctrl-C sends none.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal that is raw now, for the panic hook.
static RAW: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// Why raw mode could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum RawModeError {
    /// The descriptor is not a terminal.
    #[error("This is not a terminal")]
    NotATerminal,
    /// A guard already exists in this process.
    #[error("A terminal is already in raw mode: only one can be at a time")]
    AlreadyRaw,
    /// A system call failed.
    #[error("The terminal's mode could not be changed")]
    Terminal(#[source] Errno),
}

/// While it lives, the terminal passes every byte on at once and prints none by itself.
#[derive(Debug)]
#[must_use = "the terminal's mode is restored when the guard is dropped"]
pub struct RawMode(());

impl RawMode {
    /// Makes `terminal` raw (cfmakeraw(3)).
    pub fn enter(terminal: impl AsFd) -> Result<Self, RawModeError> {
        let terminal = terminal.as_fd();
        let saved = tcgetattr(terminal).map_err(|errno| match errno {
            Errno::NOTTY => RawModeError::NotATerminal,
            errno => RawModeError::Terminal(errno),
        })?;
        let kept = fcntl_dupfd_cloexec(terminal, 3).map_err(RawModeError::Terminal)?;
        let mut guarded = RAW.lock().unwrap_or_else(PoisonError::into_inner);
        if guarded.is_some() {
            return Err(RawModeError::AlreadyRaw);
        }
        HOOK.call_once(restore_on_panic);
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Flush, &raw).map_err(RawModeError::Terminal)?;
        *guarded = Some((kept, saved));
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore(RAW.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn restore(mut guarded: MutexGuard<'_, Option<(OwnedFd, Termios)>>) {
    if let Some((terminal, saved)) = guarded.take() {
        // Nothing is left to be done when the terminal itself is gone.
        let _gone = tcsetattr(&terminal, OptionalActions::Now, &saved);
    }
}

fn restore_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |information| {
        // The hook must not wait: the panic may come from the thread that holds the lock.
        if let Ok(guarded) = RAW.try_lock() {
            restore(guarded);
        }
        previous(information);
    }));
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    fn terminal() -> (OwnedFd, OwnedFd) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (controller, user)
    }

    fn is_raw(terminal: &OwnedFd) -> bool {
        !tcgetattr(terminal).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// One test, because the state is the process's.
    #[test]
    fn raw_mode_ends_with_the_guard_and_with_a_panic() {
        let (_controller, user) = terminal();
        let guard = RawMode::enter(&user).unwrap();
        assert!(is_raw(&user));
        assert!(matches!(RawMode::enter(&user), Err(RawModeError::AlreadyRaw)));
        drop(guard);
        assert!(!is_raw(&user));

        let guard = RawMode::enter(&user).unwrap();
        let panicked = std::panic::catch_unwind(|| {
            // Without unwinding no destructor runs: the hook alone has to do it.
            std::panic::panic_any("deliberate");
        });
        assert!(panicked.is_err() && !is_raw(&user));
        drop(guard);

        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(RawMode::enter(&null), Err(RawModeError::NotATerminal)));
    }
}
