//! /dev/kvm: opening it, what kind of KVM is behind it, what it can do.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;

/// The KVM API version that every kernel since 2.6.22 has (KVM_GET_API_VERSION).
pub const API_VERSION: i32 = 12;

const DEVICE: &str = "/dev/kvm";

/// Why /dev/kvm cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device node is absent and no KVM module is loaded.
    #[error("There is no {DEVICE}: {advice}")]
    Missing {
        /// What to do, from what the processor and the loaded modules say.
        advice: String,
    },
    /// The device node is there, but not for this user.
    #[error(
        "No permission to open {DEVICE}: become a member of its group (usermod -aG kvm USER, then log in again), \
         or run as root; in a container, pass the device (--device {DEVICE})"
    )]
    Permission(#[source] io::Error),
    /// The device node is there, but no module stands behind it.
    #[error("{DEVICE} exists but no KVM module is behind it: {advice}")]
    NoModule {
        /// What to do.
        advice: String,
        /// ENODEV or ENXIO.
        source: io::Error,
    },
    /// Out of descriptors.
    #[error("No descriptor left to open {DEVICE}: raise the limit of open files (ulimit -n)")]
    Descriptors(#[source] io::Error),
    /// Anything else.
    #[error("Cannot open {DEVICE}")]
    Other(#[source] io::Error),
    /// The descriptor is not KVM's, or of an unknown API.
    #[error("KVM reports API version {found} where {API_VERSION} is the only one known: not a KVM device?")]
    Version {
        /// What KVM_GET_API_VERSION answered; -1 for an error.
        found: i32,
    },
}

/// What executes guests; only for advice and for CPUID bits, never to choose a code path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Flavour {
    /// Intel VMX.
    Vmx,
    /// AMD SVM.
    Svm,
    /// No virtualization extension: KVM runs guests by software with shadow paging (kvm_pvm).
    Software,
    /// Not to be told, for want of /sys.
    Unknown,
}

impl Flavour {
    /// From the modules in /sys/module. A software module is there only if it was chosen, so it wins.
    pub fn detect() -> Self {
        let loaded = |name: &str| Path::new("/sys/module").join(name).exists();
        if loaded("kvm_pvm") {
            Self::Software
        } else if loaded("kvm_intel") {
            Self::Vmx
        } else if loaded("kvm_amd") {
            Self::Svm
        } else {
            Self::Unknown
        }
    }
}

/// An open /dev/kvm.
#[derive(Debug)]
pub struct Kvm(kvm_ioctls::Kvm);

impl Kvm {
    /// Opens /dev/kvm.
    ///
    /// # Errors
    /// [`OpenError`] tells a missing module from a missing permission and says what to do.
    pub fn open() -> Result<Self, OpenError> {
        let file = File::options().read(true).write(true).open(DEVICE).map_err(explain_open)?;
        Self::from_fd(OwnedFd::from(file))
    }

    /// Takes over a descriptor of /dev/kvm that another process opened.
    ///
    /// # Errors
    /// [`OpenError::Version`] if it is something else.
    pub fn from_fd(descriptor: OwnedFd) -> Result<Self, OpenError> {
        let kvm = adopt(descriptor);
        let found = kvm.get_api_version();
        if found == API_VERSION { Ok(Self(kvm)) } else { Err(OpenError::Version { found }) }
    }

    /// KVM_CHECK_EXTENSION on the system descriptor; 0 for an absent capability.
    pub fn capability(&self, number: u32) -> i32 {
        self.0.check_extension_raw(number.into()).max(0)
    }

    /// The wrapped descriptor, for the rest of this crate.
    pub(crate) fn inner(&self) -> &kvm_ioctls::Kvm {
        &self.0
    }
}

impl AsFd for Kvm {
    #[allow(unsafe_code)]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

#[allow(unsafe_code)]
fn adopt(descriptor: OwnedFd) -> kvm_ioctls::Kvm {
    // SAFETY: ownership of an open descriptor passes from `OwnedFd` to `Kvm`. It may be no KVM descriptor: every
    // ioctl then fails, and the caller checks the API version before any use.
    unsafe { kvm_ioctls::Kvm::from_raw_fd(descriptor.into_raw_fd()) }
}

fn explain_open(error: io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => OpenError::Missing { advice: module_advice() },
        Some(libc::EACCES | libc::EPERM) => OpenError::Permission(error),
        Some(libc::ENODEV | libc::ENXIO) => OpenError::NoModule { advice: module_advice(), source: error },
        Some(libc::EMFILE | libc::ENFILE) => OpenError::Descriptors(error),
        _ => OpenError::Other(error),
    }
}

/// What to do about a missing KVM, from the processor's flags.
fn module_advice() -> String {
    if Flavour::detect() != Flavour::Unknown {
        return "the module is loaded, but the device node is not here: in a container, pass the device \
                (--device /dev/kvm); in a chroot, bind-mount it"
            .to_owned();
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| {
        cpuinfo.lines().filter(|line| line.starts_with("flags")).any(|line| line.split_whitespace().any(|f| f == flag))
    };
    if has("vmx") {
        "load the module (modprobe kvm_intel); if that fails, enable VT-x in the firmware".to_owned()
    } else if has("svm") {
        "load the module (modprobe kvm_amd); if that fails, enable SVM in the firmware".to_owned()
    } else if has("hypervisor") {
        "this is itself a virtual machine without nested virtualization: enable it for this machine, or use one \
         that offers it"
            .to_owned()
    } else {
        "the processor reports neither VMX nor SVM: enable virtualization in the firmware, or use another machine"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_kvm_is_refused() {
        let other = OwnedFd::from(File::open("/proc/self/status").unwrap());
        assert!(matches!(Kvm::from_fd(other), Err(OpenError::Version { .. })));
    }

    #[test]
    fn every_open_error_says_what_to_do() {
        for (errno, word) in [
            (libc::ENOENT, "There is no"),
            (libc::EACCES, "kvm USER"),
            (libc::ENODEV, "no KVM module"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let text = explain_open(io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
