//! Configuration space. Queues are tested in `tests/conformance`.

use super::config::{Size, emergency_character, read};
use proptest::prelude::*;

const SIZE: Size = Size { columns: 0x1234, rows: 0x5678 };
const SPACE: [u8; 12] = [0x34, 0x12, 0x78, 0x56, 1, 0, 0, 0, 0, 0, 0, 0];

proptest! {
    #[test]
    fn configuration_is_zero_beyond_its_end(offset in prop_oneof![0u64..20, any::<u64>()], bytes in 0usize..9) {
        let mut data = vec![0; bytes];
        read(SIZE, offset, &mut data);
        let expected: Vec<u8> = (0..bytes as u64)
            .map(|byte| offset.checked_add(byte).and_then(|at| SPACE.get(at as usize).copied()).unwrap_or(0))
            .collect();
        prop_assert_eq!(data, expected);
    }
}

#[test]
fn only_its_register_is_an_emergency() {
    assert_eq!(emergency_character(8, b"!\0\0\0"), Some(b'!'));
    assert_eq!(emergency_character(8, b"!"), Some(b'!'));
    assert_eq!(emergency_character(8, b""), None);
    assert!([0, 4, 7, 9, 12, u64::MAX].into_iter().all(|offset| emergency_character(offset, b"!").is_none()));
}
