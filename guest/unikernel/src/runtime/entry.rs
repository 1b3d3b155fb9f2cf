//! Where ring 0 enters ring 3, once per vCPU.
#![allow(unsafe_code)]

use super::clone_page::ClonePage;
use crate::app;

/// ring0.s goes here with what the monitor put into the registers, on a stack of the vCPU's own.
#[unsafe(no_mangle)]
extern "C" fn start(vcpu: usize, ram_bytes: u64, vcpus: usize) -> ! {
    if vcpu == 0
        && let Some(page) = ClonePage::find()
    {
        page.note_first_instruction();
    }
    app::start(vcpu, ram_bytes, vcpus)
}
