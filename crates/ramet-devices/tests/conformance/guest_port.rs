//! The guest port.

use ramet_abi::guest_port as port;
use ramet_devices::{GuestCall, initial_state};
use ramet_state::PartState;
use testkit::conformance::Subject;
use testkit::rig::Rig;

struct GuestPort;

fn at(port: u16) -> u64 {
    u64::from(port - port::BASE)
}

fn fork(rig: &mut Rig, children: u32, flags: u32) -> u32 {
    rig.write_u32(at(port::ARGUMENT_0), children);
    rig.write_u32(at(port::ARGUMENT_1), flags);
    rig.read_u32(at(port::FORK))
}

fn calls(rig: &mut Rig) -> Vec<GuestCall> {
    std::mem::take(&mut rig.calls)
}

impl Subject for GuestPort {
    type Driver = ();

    fn initial_state(&self) -> PartState {
        initial_state::guest_port("guest-port")
    }

    fn attach(&self, rig: &mut Rig) {
        assert_eq!(rig.read_u32(at(port::IDENTIFY)), port::SIGNATURE);
    }

    fn exercise(&self, (): &mut (), rig: &mut Rig, round: u8) {
        let children = u32::from(round) + 1;
        assert_eq!(fork(rig, children, port::FORK_PAUSED), 0);
        assert_eq!(calls(rig), [GuestCall::Fork { children, flags: port::FORK_PAUSED }]);
        rig.write_u32(at(port::MARK), round.into());
        assert_eq!(calls(rig), [GuestCall::Mark(round.into())]);
    }

    fn begin(&self, (): &mut (), rig: &mut Rig, round: u8) {
        rig.write_u32(at(port::ARGUMENT_0), u32::from(round) + 1);
        rig.write_u32(at(port::ARGUMENT_1), 0);
    }

    fn complete(&self, (): &mut (), rig: &mut Rig, round: u8) {
        assert_eq!(rig.read_u32(at(port::FORK)), 0);
        assert_eq!(calls(rig), [GuestCall::Fork { children: u32::from(round) + 1, flags: 0 }]);
    }
}

testkit::conformance!(GuestPort);

#[test]
fn every_register_makes_its_call() {
    let mut rig = Rig::boot(&GuestPort.initial_state());
    rig.write_u32(at(port::DONE), 7);
    rig.write_u32(at(port::EXIT), 0x1FF);
    rig.write_u32(at(port::DOORBELL), 9);
    assert_eq!(rig.read_u32(at(port::READY)), 0);
    let expected = [GuestCall::Done(7), GuestCall::Exit(0xFF), GuestCall::Doorbell(9), GuestCall::Ready];
    assert_eq!(calls(&mut rig), expected);
}

#[test]
fn impossible_arguments_are_refused_without_a_call() {
    let mut rig = Rig::boot(&GuestPort.initial_state());
    let refusal = port::ERROR_BIT | port::ERROR_ARGUMENT;
    for (children, flags) in [(0, 0), (port::FORK_MAX_CHILDREN + 1, 0), (u32::MAX, 0), (1, 2), (1, u32::MAX)] {
        assert_eq!(fork(&mut rig, children, flags), refusal, "{children} children, flags {flags:#x}");
    }
    assert!(rig.calls.is_empty());
    assert_eq!(fork(&mut rig, port::FORK_MAX_CHILDREN, 0), 0);
    assert_eq!(calls(&mut rig).len(), 1);
    assert_eq!(rig.read_u32(at(port::FORK)), 0);
    assert_eq!(calls(&mut rig).len(), 1, "arguments stay: a child that was forked in a call makes it again");
}

#[test]
fn odd_accesses_are_no_calls() {
    let mut rig = Rig::boot(&GuestPort.initial_state());
    for offset in 0..0x40 {
        assert_eq!(rig.read_u8(offset), 0xFF);
        rig.write_u8(offset, 1);
        let mut eight = [0; 8];
        rig.read_bytes(offset, &mut eight);
        assert_eq!(eight, [0xFF; 8]);
        if offset % 4 != 0 || offset > 0x20 {
            assert_eq!(rig.read_u32(offset), u32::MAX);
            rig.write_u32(offset, 1);
        }
    }
    assert!(rig.calls.is_empty());
}
