//! Which parts a machine has, and what each of them is given.

use crate::bus::SharedPart;
use ramet_devices::{
    BuildPartError, BuiltPart, Interrupt, MachineIdentity, PartResources, Resource, build_part, initial_state, role,
};
use ramet_state::PartState;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use vm_memory::GuestMemoryMmap;

/// virtio-mmio transports of a machine that [`initial_parts`] describes.
pub(crate) const TRANSPORTS: u8 = 2;

/// The parts of a machine as they are at power-on. Parts in memory take the transports in this order.
pub fn initial_parts() -> (Vec<PartState>, u8) {
    let parts = vec![
        initial_state::serial("serial"),
        initial_state::virtio_console("console"),
        initial_state::virtio_rng("rng"),
        initial_state::clone_page("clone-page"),
        initial_state::guest_port("guest-port"),
    ];
    (parts, TRANSPORTS)
}

/// The eventfds of one transport.
pub(crate) struct Transport {
    pub(crate) doorbell: Arc<OwnedFd>,
    pub(crate) interrupt: Arc<dyn Interrupt>,
}

/// All eventfds and sockets that parts may be given.
pub(crate) struct Wiring {
    pub(crate) transports: Vec<Transport>,
    pub(crate) serial_interrupt: Arc<dyn Interrupt>,
    pub(crate) request: Arc<dyn Interrupt>,
    pub(crate) console: Arc<OwnedFd>,
    pub(crate) serial: Arc<OwnedFd>,
}

fn line(interrupt: &Arc<dyn Interrupt>) -> Resource {
    Resource::Interrupt(Arc::clone(interrupt))
}

/// Builds all parts, quiesced, in the order of their states.
pub(crate) fn build_parts(
    states: &[PartState],
    memory: &GuestMemoryMmap,
    page: &GuestMemoryMmap,
    wiring: &Wiring,
    identity: &MachineIdentity,
) -> Result<Vec<SharedPart>, BuildPartError> {
    let mut transports = wiring.transports.iter();
    let mut parts = Vec::with_capacity(states.len());
    for state in states {
        // The clone page's part alone reaches the clone page; all others reach RAM, and nothing but RAM.
        let names_identity = state.handles.iter().any(|handle| handle.role == role::IDENTITY);
        let mut resources = PartResources::new(if names_identity { page.clone() } else { memory.clone() });
        // A part is given what its handles name; the part's constructor refuses what does not belong to its kind.
        let on_transport = state.handles.iter().any(|handle| handle.role == role::DOORBELL);
        let transport = if on_transport { transports.next() } else { None };
        for handle in &state.handles {
            let resource = match (handle.role.as_str(), transport) {
                (role::DOORBELL, Some(transport)) => Resource::Doorbell(Arc::clone(&transport.doorbell)),
                (role::INTERRUPT, Some(transport)) => line(&transport.interrupt),
                (role::INTERRUPT, None) if state.kind == "serial-8250" => line(&wiring.serial_interrupt),
                (role::INTERRUPT, None) => line(&wiring.request),
                (role::CONSOLE, Some(_)) => Resource::Stream(Arc::clone(&wiring.console)),
                (role::CONSOLE, None) => Resource::Stream(Arc::clone(&wiring.serial)),
                (role::IDENTITY, _) => Resource::Identity(Box::new(identity.clone())),
                _ => continue,
            };
            resources = resources.with(&handle.role, resource);
        }
        let built: BuiltPart = build_part(state, resources)?;
        parts.push(Arc::new(Mutex::new(built)));
    }
    Ok(parts)
}
