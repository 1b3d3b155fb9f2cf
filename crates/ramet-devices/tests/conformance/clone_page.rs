//! The clone page.

use ramet_abi::clone_page as page;
use ramet_devices::{BuildPartError, BuiltPart, initial_state};
use ramet_state::PartState;
use testkit::conformance::Subject;
use testkit::rig::{Rig, identity};
use vm_memory::{GuestAddress, GuestMemoryMmap};

struct ClonePage;

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

impl Subject for ClonePage {
    type Driver = ();

    fn initial_state(&self) -> PartState {
        initial_state::clone_page("clone-page")
    }

    fn attach(&self, rig: &mut Rig) {
        assert_eq!(rig.interrupt.count(), 1, "a machine that has come to be is told its generation");
    }

    fn exercise(&self, (): &mut (), rig: &mut Rig, round: u8) {
        let written = rig.clone_page();
        let who = &rig.identity;
        assert_eq!(u64_at(&written, page::MAGIC_AT), page::MAGIC);
        assert_eq!(u32_at(&written, page::VERSION_AT), page::ABI_VERSION);
        assert_eq!(u64_at(&written, page::NUMBER_AT), who.identity.number);
        assert_eq!(u64_at(&written, page::PARENT_AT), who.identity.parent);
        assert_eq!(u32_at(&written, page::DEPTH_AT), who.identity.depth);
        assert_eq!(u32_at(&written, page::GENERATION_COUNTER_AT), who.identity.generation_counter);
        assert_eq!(written[page::GENERATION_AT..][..16], who.identity.generation);
        assert_eq!(u32_at(&written, page::VCPUS_AT), who.vcpus);
        assert_eq!(u64_at(&written, page::WALL_OFFSET_NS_AT) as i64, who.wall_offset_ns);
        assert_eq!(u64_at(&written, page::FAMILY_BYTES_AT), who.family_bytes);
        assert_eq!(written[page::ENTROPY_AT..][..page::ENTROPY_BYTES], who.entropy);
        let interrupts = rig.interrupt.count();
        let BuiltPart::ClonePage(part) = &rig.part else { panic!("{:?}", rig.part) };
        part.raise();
        assert_eq!(rig.interrupt.count(), interrupts + 1);
        // The guest's half is the guest's.
        rig.write_u8(page::ANSWER_AT as u64, round);
        assert_eq!(rig.read_u8(page::ANSWER_AT as u64), round);
    }

    fn begin(&self, (): &mut (), _: &mut Rig, _: u8) {}

    fn complete(&self, (): &mut (), rig: &mut Rig, _: u8) {
        assert!(rig.interrupt.count() > 0, "a request or doorbell under way is announced again");
    }
}

testkit::conformance!(ClonePage);

#[test]
fn a_request_that_waits_already_is_left_alone() {
    let state = ClonePage.initial_state();
    let memory = testkit::rig::new_memory();
    let base = ramet_abi::layout::CLONE_PAGE_BASE;
    let request = GuestAddress(base + page::REQUEST_SEQUENCE_AT as u64);
    vm_memory::Bytes::write_obj(&memory, 1u32, request).unwrap();
    let rig = Rig::build(&state, memory, identity(3)).unwrap();
    assert_eq!(u32_at(&rig.clone_page(), page::REQUEST_SEQUENCE_AT), 1);
    assert_eq!(u64_at(&rig.clone_page(), page::NUMBER_AT), 3);
}

#[test]
fn a_machine_without_the_page_is_refused() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let Err(error) = Rig::build(&ClonePage.initial_state(), memory, identity(0)) else { panic!("built") };
    assert!(matches!(error, BuildPartError::Memory { .. }), "{error}");
}

#[test]
fn entropy_stays_out_of_logs() {
    let mut who = identity(0);
    who.entropy = [0xAB; page::ENTROPY_BYTES];
    let text = format!("{who:?}");
    assert!(!text.contains("171") && text.contains("number"), "{text}");
}
