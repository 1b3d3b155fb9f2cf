//! Rings full of nonsense that is almost right, for every virtio device.

use proptest::prelude::*;
use ramet_devices::initial_state;
use testkit::rig::{RAM_BYTES, Rig};
use testkit::ring::Buffer;
use testkit::virtio::{EVENT_IDX, RINGS, VERSION_1, VirtioDriver, register};
use vm_memory::{Bytes, GuestAddress};

const SIZE: u16 = 8;

#[derive(Clone, Debug)]
enum Abuse {
    /// Writes a descriptor.
    Describe {
        queue: usize,
        index: u16,
        address: u64,
        bytes: u32,
        flags: u16,
        next: u16,
    },
    /// Makes a head available.
    Offer {
        queue: usize,
        head: u16,
    },
    /// Writes the available index.
    Index {
        queue: usize,
        index: u16,
    },
    /// Writes the available flags or the used index, which is the device's own.
    Word {
        queue: usize,
        device: bool,
        at: u64,
        value: u16,
    },
    /// Lets the device work.
    Events,
    /// Resets and attaches again over whatever is in memory.
    Attach,
    /// Freezes and goes on as its own clone.
    Fork,
    /// The host is there, too.
    Input(Vec<u8>),
    TakeOutput,
}

fn address() -> impl Strategy<Value = u64> {
    let ram = RAM_BYTES as u64;
    prop_oneof![6 => 0..ram, 2 => RINGS..RINGS + 0x400, 1 => ram - 32..ram + 32, 1 => u64::MAX - 32..=u64::MAX]
}

fn bytes() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..64, 2 => 0u32..0x20000, 1 => any::<u32>()]
}

fn abuse() -> impl Strategy<Value = Abuse> {
    let queue = 0usize..2;
    let index = prop_oneof![8 => 0..SIZE, 1 => any::<u16>()];
    let index = || index.clone();
    let flags = prop_oneof![4 => 0u16..4, 1 => 0u16..8];
    prop_oneof![
        8 => (queue.clone(), 0..SIZE, address(), bytes(), flags, index()).prop_map(
            |(queue, index, address, bytes, flags, next)| Abuse::Describe { queue, index, address, bytes, flags, next }
        ),
        8 => (queue.clone(), index()).prop_map(|(queue, head)| Abuse::Offer { queue, head }),
        1 => (queue.clone(), any::<u16>()).prop_map(|(queue, index)| Abuse::Index { queue, index }),
        1 => (queue, any::<bool>(), 0u64..40, any::<u16>())
            .prop_map(|(queue, device, at, value)| Abuse::Word { queue, device, at: at & !1, value }),
        8 => Just(Abuse::Events),
        2 => Just(Abuse::Attach),
        2 => Just(Abuse::Fork),
        1 => prop::collection::vec(any::<u8>(), 1..100).prop_map(Abuse::Input),
        1 => Just(Abuse::TakeOutput),
    ]
}

/// One device under abuse.
struct Victim {
    device_id: u32,
    features: u64,
    queues: usize,
    rig: Rig,
    driver: VirtioDriver,
}

impl Victim {
    fn suffer(&mut self, abuse: &Abuse) {
        let memory = &self.rig.memory;
        match *abuse {
            Abuse::Describe { queue, index, address, bytes, flags, next } => {
                let buffer = Buffer { address, bytes, writable: false };
                self.driver.rings[queue % self.queues].describe(memory, index, buffer, flags, next);
            }
            Abuse::Offer { queue, head } => self.driver.rings[queue % self.queues].offer(memory, head),
            Abuse::Index { queue, index } => self.driver.rings[queue % self.queues].set_available_index(memory, index),
            Abuse::Word { queue, device, at, value } => {
                let ring = &self.driver.rings[queue % self.queues];
                let base = if device { ring.device } else { ring.driver };
                memory.write_obj(value, GuestAddress(base + at)).unwrap();
            }
            Abuse::Events => {
                self.rig.write_u32(register::QUEUE_NOTIFY, 0);
                for _ in 0..4 {
                    self.rig.step();
                }
            }
            Abuse::Attach => {
                let sizes = vec![SIZE; self.queues];
                self.driver = VirtioDriver::attach(&mut self.rig, self.device_id, self.features, &sizes);
            }
            Abuse::Fork => {
                self.rig.part.part_mut().quiesce();
                let mut child = self.rig.fork();
                assert_eq!(child.part.part().save(), self.rig.part.part().save());
                child.part.part_mut().resume();
                self.rig = child;
            }
            Abuse::Input(ref bytes) => {
                self.rig.send_input(bytes);
            }
            Abuse::TakeOutput => {
                self.rig.take_output();
            }
        }
    }
}

fn abused(device_id: u32, features: u64, queues: usize, abuses: &[Abuse]) {
    let state = match device_id {
        3 => initial_state::virtio_console("console"),
        _ => initial_state::virtio_rng("rng"),
    };
    let mut rig = Rig::boot(&state);
    let driver = VirtioDriver::attach(&mut rig, device_id, features, &vec![SIZE; queues]);
    let mut victim = Victim { device_id, features, queues, rig, driver };
    for abuse in abuses {
        victim.suffer(abuse);
    }
    // Whatever happened, a reset makes it good again: a driver that keeps to the rules is served.
    victim.rig.memory.write_slice(&vec![0; 0x1000], GuestAddress(RINGS)).unwrap();
    victim.suffer(&Abuse::Attach);
    let last = queues - 1;
    let buffer = Buffer { address: 0x8000, bytes: 16, writable: device_id != 3 };
    victim.driver.rings[last].push(&victim.rig.memory, &[buffer]);
    victim.rig.take_output();
    victim.rig.ring_doorbell();
    victim.rig.rest();
    assert!(victim.driver.rings[last].pop(&victim.rig.memory).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rng_survives(event_index: bool, abuses in prop::collection::vec(abuse(), 0..80)) {
        abused(4, VERSION_1 | if event_index { EVENT_IDX } else { 0 }, 1, &abuses);
    }

    #[test]
    fn console_survives(event_index: bool, abuses in prop::collection::vec(abuse(), 0..80)) {
        abused(3, VERSION_1 | if event_index { EVENT_IDX } else { 0 }, 2, &abuses);
    }
}
