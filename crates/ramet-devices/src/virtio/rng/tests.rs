//! The entropy alone. Requests are tested in `tests/conformance`.

use super::worker::{REQUEST_MAX_BYTES, fill};

#[test]
fn a_whole_buffer_is_filled_and_never_twice_the_same() {
    let mut buffers = [[0; REQUEST_MAX_BYTES]; 2];
    for buffer in &mut buffers {
        fill(buffer).unwrap();
        // 16 zero bytes in a row have a chance of 2^-116 here.
        assert!(buffer.chunks(16).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
    }
    assert_ne!(buffers[0], buffers[1]);
    fill(&mut []).unwrap();
}
