//! Starting the zygote: an exec of this very program with one socket as its standard input.
//!
//! Passing the socket as descriptor 0 needs no code between fork and exec, and no agreement about numbers.
//!
//! The zygote ends when its socket does: the death of the supervisor, however it comes, ends the stream. The kernel's
//! parent-death signal is not used for it, since that follows the death of the *thread* that started the child, and a
//! supervisor's threads come and go.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::socket::{SeqPacket, SocketError};
use crate::sys;

/// A zygote and the supervisor's end of its socket.
#[derive(Debug)]
pub struct Zygote {
    /// The process. Close the socket to end it, then wait for it.
    pub process: Child,
    /// The supervisor's end.
    pub socket: SeqPacket,
}

/// Why no zygote was started, or why the socket was not found in it.
#[derive(Debug, thiserror::Error)]
pub enum ZygoteError {
    /// The socket pair could not be made.
    #[error("The zygote's socket could not be made")]
    Socket(#[source] SocketError),
    /// The program could not be executed.
    #[error("{program} could not be started as the zygote")]
    Spawn {
        /// The program.
        program: String,
        /// The error.
        source: std::io::Error,
    },
    /// Standard input is not the supervisor's socket.
    #[error("Standard input is not the supervisor's socket: the zygote is started by the supervisor, not by hand")]
    NotInherited(#[source] SocketError),
    /// The socket could not be moved away from standard input.
    #[error("The supervisor's socket could not be moved from standard input")]
    Move(#[source] Errno),
}

impl Zygote {
    /// Starts `program` with `arguments`, an empty environment but for RUST_BACKTRACE=0, `/` as working directory, and
    /// standard error shared with the caller, in a process group of its own (the terminal's Ctrl-C is not for it).
    ///
    /// /proc/self/exe as `program` is the running binary even after its file was replaced.
    pub fn spawn(program: &Path, arguments: &[&OsStr]) -> Result<Self, ZygoteError> {
        let (socket, theirs) = SeqPacket::pair().map_err(ZygoteError::Socket)?;
        let process = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("RUST_BACKTRACE", "0")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| ZygoteError::Spawn { program: program.display().to_string(), source })?;
        Ok(Self { process, socket })
    }
}

/// In the zygote: takes the socket from standard input, which becomes /dev/null, and closes all other descriptors above
/// 2, which a shell or service manager may have passed on unasked. Call it once, before anything else is opened, while
/// /dev/null can be.
pub fn claim_inherited_socket() -> Result<SeqPacket, ZygoteError> {
    let stdin = std::io::stdin();
    let moved: OwnedFd = rustix::io::fcntl_dupfd_cloexec(&stdin, 3).map_err(ZygoteError::Move)?;
    let socket = SeqPacket::from_fd(moved).map_err(ZygoteError::NotInherited)?;
    sys::close_all_except([socket.as_fd().as_raw_fd()]).map_err(ZygoteError::Move)?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(ZygoteError::Move)?;
    sys::replace_standard_descriptor(null.as_fd(), stdin.as_raw_fd()).map_err(ZygoteError::Move)?;
    Ok(socket)
}
