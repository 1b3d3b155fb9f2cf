//! The ioctls that kvm-ioctls lacks or offers in another shape, and KVM's plain structures as bytes.
#![allow(unsafe_code)]

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_debugregs, kvm_device_attr, kvm_ioeventfd, kvm_irqchip,
    kvm_irqfd, kvm_lapic_state, kvm_pit_state2, kvm_sregs2, kvm_vcpu_events, kvm_xsave,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use vmm_sys_util::ioctl::{ioctl, ioctl_with_mut_ptr, ioctl_with_mut_ref, ioctl_with_ptr, ioctl_with_ref};
use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iow_nr};

ioctl_iow_nr!(KVM_IRQFD, KVMIO, 0x76, kvm_irqfd);
ioctl_iow_nr!(KVM_IOEVENTFD, KVMIO, 0x79, kvm_ioeventfd);
ioctl_io_nr!(KVM_RUN, KVMIO, 0x80);
ioctl_iow_nr!(KVM_SET_XSAVE, KVMIO, 0xa5, kvm_xsave);
ioctl_ior_nr!(KVM_GET_SREGS2, KVMIO, 0xcc, kvm_sregs2);
ioctl_iow_nr!(KVM_SET_SREGS2, KVMIO, 0xcd, kvm_sregs2);
ioctl_ior_nr!(KVM_GET_XSAVE, KVMIO, 0xa4, kvm_xsave);
ioctl_ior_nr!(KVM_GET_XSAVE2, KVMIO, 0xcf, kvm_xsave);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// KVM_RUN; the exit is in the run page.
pub(crate) fn run(vcpu: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: KVM_RUN takes no argument; on a descriptor that is no vCPU it fails with ENOTTY.
    check(unsafe { ioctl(vcpu, KVM_RUN()) })
}

/// KVM_GET_SREGS2.
pub(crate) fn get_sregs2(vcpu: &impl AsRawFd) -> io::Result<kvm_sregs2> {
    let mut sregs = kvm_sregs2::default();
    // SAFETY: the kernel writes at most the size that the ioctl's number encodes, that of `kvm_sregs2`.
    check(unsafe { ioctl_with_mut_ref(vcpu, KVM_GET_SREGS2(), &mut sregs) })?;
    Ok(sregs)
}

/// KVM_SET_SREGS2.
pub(crate) fn set_sregs2(vcpu: &impl AsRawFd, sregs: &kvm_sregs2) -> io::Result<()> {
    // SAFETY: the kernel reads at most the size that the ioctl's number encodes, that of `kvm_sregs2`.
    check(unsafe { ioctl_with_ref(vcpu, KVM_SET_SREGS2(), sregs) })
}

/// KVM_GET_XSAVE2 into a buffer of KVM_CAP_XSAVE2 bytes, or KVM_GET_XSAVE where that is absent.
pub(crate) fn get_xsave(vcpu: &impl AsRawFd, size: XsaveSize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; size.bytes];
    let number = if size.extended { KVM_GET_XSAVE2() } else { KVM_GET_XSAVE() };
    // SAFETY: KVM_GET_XSAVE writes 4,096 bytes; KVM_GET_XSAVE2 as many as KVM_CAP_XSAVE2 said before the vCPU was
    // created; `XsaveSize` is made from exactly those and the buffer has that size.
    check(unsafe { ioctl_with_mut_ptr(vcpu, number, buffer.as_mut_ptr()) })?;
    Ok(buffer)
}

/// KVM_SET_XSAVE; `bytes` must be as long as `size` says.
pub(crate) fn set_xsave(vcpu: &impl AsRawFd, size: XsaveSize, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() != size.bytes {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the kernel reads as many bytes as for KVM_GET_XSAVE2, and the length was checked to be that.
    check(unsafe { ioctl_with_ptr(vcpu, KVM_SET_XSAVE(), bytes.as_ptr()) })
}

/// KVM_GET_DEVICE_ATTR: a vCPU's TSC offset (Linux, Documentation/virt/kvm/devices/vcpu.rst, section 4).
pub(crate) fn tsc_offset(vcpu: &impl AsRawFd) -> io::Result<u64> {
    let mut offset = 0u64;
    let address = std::ptr::from_mut(&mut offset) as u64;
    let attribute =
        kvm_device_attr { group: KVM_VCPU_TSC_CTRL, attr: KVM_VCPU_TSC_OFFSET.into(), addr: address, flags: 0 };
    // SAFETY: the kernel reads one `kvm_device_attr` and writes the attribute's 8 bytes to `offset`, which outlives it.
    check(unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &attribute) })?;
    Ok(offset)
}

/// KVM_IRQFD: the eventfd raises line `gsi`.
pub(crate) fn assign_irqfd(vm: &impl AsRawFd, gsi: u32, event: BorrowedFd<'_>) -> io::Result<()> {
    let argument = kvm_irqfd { fd: event.as_raw_fd().cast_unsigned(), gsi, ..Default::default() };
    // SAFETY: the kernel reads one `kvm_irqfd` and takes its own reference to the eventfd.
    check(unsafe { ioctl_with_ref(vm, KVM_IRQFD(), &argument) })
}

/// KVM_IOEVENTFD: a write of `bytes` bytes (0: of any length) to guest-physical `address` signals the eventfd.
pub(crate) fn assign_ioeventfd(vm: &impl AsRawFd, address: u64, bytes: u32, event: BorrowedFd<'_>) -> io::Result<()> {
    let argument = kvm_ioeventfd { addr: address, len: bytes, fd: event.as_raw_fd(), ..Default::default() };
    // SAFETY: the kernel reads one `kvm_ioeventfd` and takes its own reference to the eventfd.
    check(unsafe { ioctl_with_ref(vm, KVM_IOEVENTFD(), &argument) })
}

/// How long a kvm_xsave is on this host and which ioctl reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XsaveSize {
    bytes: usize,
    extended: bool,
}

impl XsaveSize {
    /// From what KVM_CHECK_EXTENSION(KVM_CAP_XSAVE2) answered.
    pub(crate) fn from_capability(answer: i32) -> Self {
        let legacy = size_of::<kvm_xsave>();
        match usize::try_from(answer) {
            Ok(bytes) if bytes > 0 => Self { bytes: bytes.max(legacy), extended: true },
            _ => Self { bytes: legacy, extended: false },
        }
    }

    /// In bytes, at least 4,096.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }
}

/// A structure of KVM that any bytes make a valid value of, and whose every byte is initialised.
///
/// # Safety
/// The type must be `repr(C)`, consist of integers (or unions and arrays of them) only, and have no padding.
pub(crate) unsafe trait Plain: Sized {
    /// Bytes of the structure.
    const BYTES: usize = size_of::<Self>();

    /// Copies the structure out of bytes; `None` if the length is not the structure's.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES {
            return None;
        }
        // SAFETY: the length was checked, alignment is not required, and any bytes are a valid value (trait).
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// The structure's bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the structure has no padding (trait), so all its bytes are initialised; the borrow keeps it alive.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), Self::BYTES) }
    }
}

// SAFETY: arrays of bytes.
unsafe impl Plain for kvm_lapic_state {}
// SAFETY: integers; the structure has explicit padding and reserved fields up to its 64 bytes.
unsafe impl Plain for kvm_vcpu_events {}
// SAFETY: 16 64-bit integers.
unsafe impl Plain for kvm_debugregs {}
// SAFETY: two 32-bit integers and a union of 512 bytes that the kernel writes as a whole.
unsafe impl Plain for kvm_irqchip {}
// SAFETY: integers; the channels' fields leave no gap (checked below) and the tail is explicit.
unsafe impl Plain for kvm_pit_state2 {}

const _: () = {
    assert!(kvm_lapic_state::BYTES == 1024);
    assert!(kvm_vcpu_events::BYTES == 64);
    assert!(kvm_debugregs::BYTES == 128);
    assert!(kvm_irqchip::BYTES == 520);
    assert!(kvm_pit_state2::BYTES == 112);
};
