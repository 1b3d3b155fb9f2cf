//! The memory that a vCPU shares with KVM (struct kvm_run), and reading exits out of it.
//!
//! This is a mapping of Ramet's own, next to the one inside of kvm-ioctls, since another thread must be able to set
//! `immediate_exit` in it at any time: nothing here ever makes a reference to the whole structure.
#![allow(unsafe_code)]

use super::exit::Exit;
use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_HLT, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_INTR, KVM_EXIT_IO, KVM_EXIT_IO_IN,
    KVM_EXIT_MEMORY_FAULT, KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN, KVM_EXIT_SYSTEM_EVENT, kvm_run, kvm_sync_regs,
};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, addr_of, addr_of_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// A mapping of a vCPU's kvm_run and the data area behind it.
#[derive(Debug)]
struct Mapping {
    address: NonNull<kvm_run>,
    bytes: usize,
}

// SAFETY: the mapping is owned and stays where it is until drop. Its one `RunPage` touches all of it but
// `immediate_exit`; `ImmediateExit`s touch only that, atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `RunPage::map` and nothing borrows it any more. An error would mean that
        // it is not mapped, which cannot be.
        let result = unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0);
    }
}

/// `kvm_run.immediate_exit` alone, for other threads.
#[derive(Debug)]
pub(crate) struct ImmediateExit(Arc<Mapping>);

impl ImmediateExit {
    /// While set, KVM_RUN completes pending accesses and returns EINTR.
    pub(crate) fn set(&self, on: bool) {
        // SAFETY: the byte lies in the mapping, which lives as long as `self`; in this process it is only accessed
        // here, so always atomically; the kernel only reads it.
        let byte = unsafe { AtomicU8::from_ptr(addr_of_mut!((*self.0.address.as_ptr()).immediate_exit)) };
        byte.store(on.into(), SeqCst);
    }
}

/// A vCPU's kvm_run, as its owner sees it. There is one for each mapping.
#[derive(Debug)]
pub(crate) struct RunPage(Arc<Mapping>);

impl RunPage {
    /// Maps `bytes` (KVM_GET_VCPU_MMAP_SIZE) of a vCPU's descriptor.
    pub(crate) fn map(vcpu: &impl AsRawFd, bytes: usize) -> io::Result<Self> {
        if bytes < size_of::<kvm_run>() {
            return Err(io::Error::other(format!("KVM_GET_VCPU_MMAP_SIZE is only {bytes} bytes")));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self(Arc::new(Mapping { address, bytes })))
    }

    /// The flag that other threads may set.
    pub(crate) fn immediate_exit(&self) -> ImmediateExit {
        ImmediateExit(Arc::clone(&self.0))
    }

    /// Which of KVM_SYNC_X86_* KVM shall store at each return from KVM_RUN.
    pub(crate) fn set_valid_registers(&mut self, fields: u64) {
        // SAFETY: the field lies in the mapping; the kernel accesses it only inside of KVM_RUN, which the one owner
        // of the vCPU calls.
        unsafe { addr_of_mut!((*self.0.address.as_ptr()).kvm_valid_regs).write_volatile(fields) }
    }

    /// The registers that KVM stored at the last return from KVM_RUN.
    pub(crate) fn synced_registers(&self) -> kvm_sync_regs {
        // SAFETY: as for `set_valid_registers`; any bytes are a valid `kvm_sync_regs`.
        unsafe { addr_of!((*self.0.address.as_ptr()).s.regs).read_volatile() }
    }

    /// Registers for KVM to load at the next KVM_RUN, and which of KVM_SYNC_X86_* they are.
    pub(crate) fn set_registers(&mut self, registers: kvm_sync_regs, fields: u64) {
        // SAFETY: as for `set_valid_registers`.
        unsafe {
            addr_of_mut!((*self.0.address.as_ptr()).s.regs).write_volatile(registers);
            addr_of_mut!((*self.0.address.as_ptr()).kvm_dirty_regs).write_volatile(fields);
        }
    }

    /// Which of the registers to load KVM has not loaded yet.
    pub(crate) fn dirty_registers(&self) -> u64 {
        // SAFETY: as for `set_valid_registers`.
        unsafe { addr_of!((*self.0.address.as_ptr()).kvm_dirty_regs).read_volatile() }
    }

    /// Withdraws registers that KVM has not loaded.
    pub(crate) fn clear_dirty_registers(&mut self) {
        // SAFETY: as for `set_valid_registers`.
        unsafe { addr_of_mut!((*self.0.address.as_ptr()).kvm_dirty_regs).write_volatile(0) }
    }

    fn exit_reason(&self) -> u32 {
        // SAFETY: as for `set_valid_registers`.
        unsafe { addr_of!((*self.0.address.as_ptr()).exit_reason).read_volatile() }
    }

    /// The guest-physical address of a KVM_EXIT_MEMORY_FAULT; call it after KVM_RUN failed with EFAULT.
    pub(crate) fn memory_fault(&self) -> Option<u64> {
        if self.exit_reason() != KVM_EXIT_MEMORY_FAULT {
            return None;
        }
        // SAFETY: as for `set_valid_registers`; the exit reason selects the union's member.
        Some(unsafe { addr_of!((*self.0.address.as_ptr()).__bindgen_anon_1.memory_fault.gpa).read_volatile() })
    }

    /// Decodes the exit after KVM_RUN returned 0. `None` if KVM contradicts itself.
    pub(crate) fn exit(&mut self) -> Option<Exit<'_>> {
        let reason = self.exit_reason();
        let run = self.0.address.as_ptr();
        // SAFETY: the exit reason says which member of the union KVM filled; every member is plain integers. KVM
        // does not write to the page between KVM_RUN's return and the next call, and the exit borrows `self`
        // mutably, so that there can be no such call while the slices live. The slices exclude `immediate_exit`.
        unsafe {
            let detail = addr_of_mut!((*run).__bindgen_anon_1);
            Some(match reason {
                KVM_EXIT_IO => return self.port_exit((*detail).io),
                KVM_EXIT_MMIO => {
                    let mmio = &mut (*detail).mmio;
                    let (address, is_write) = (mmio.phys_addr, mmio.is_write != 0);
                    let data = mmio.data.get_mut(..usize::try_from(mmio.len).ok()?)?;
                    if is_write { Exit::MmioWrite { address, data } } else { Exit::MmioRead { address, data } }
                }
                KVM_EXIT_HLT => Exit::Halted,
                KVM_EXIT_SHUTDOWN => Exit::Shutdown,
                KVM_EXIT_INTR => Exit::Interrupted,
                KVM_EXIT_FAIL_ENTRY => {
                    let entry = (*detail).fail_entry;
                    Exit::FailEntry { reason: entry.hardware_entry_failure_reason, cpu: entry.cpu }
                }
                KVM_EXIT_INTERNAL_ERROR => {
                    let internal = &(*detail).internal;
                    let count = usize::try_from(internal.ndata).ok()?.min(internal.data.len());
                    Exit::InternalError { suberror: internal.suberror, data: &internal.data[..count] }
                }
                KVM_EXIT_SYSTEM_EVENT => Exit::SystemEvent { kind: (*detail).system_event.type_ },
                other => Exit::Other(other),
            })
        }
    }

    fn port_exit(&mut self, io: kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_4) -> Option<Exit<'_>> {
        let length = usize::try_from(io.count).ok()?.checked_mul(usize::from(io.size))?;
        let offset = usize::try_from(io.data_offset).ok()?;
        if offset < size_of::<kvm_run>() || offset.checked_add(length)? > self.0.bytes {
            return None;
        }
        // SAFETY: the range was checked to lie in the mapping behind `kvm_run`; the slice borrows `self` mutably, so
        // no KVM_RUN can happen while it lives.
        let data = unsafe { std::slice::from_raw_parts_mut(self.0.address.as_ptr().cast::<u8>().add(offset), length) };
        let (port, size) = (io.port, io.size);
        if u32::from(io.direction) == KVM_EXIT_IO_IN {
            Some(Exit::PortRead { port, size, data })
        } else {
            Some(Exit::PortWrite { port, size, data })
        }
    }
}
