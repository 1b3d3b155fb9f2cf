//! The 8250: where a dying unikernel says why. Bytes are written without asking whether there is room, as the device
//! is emulated and always has.

use core::fmt;

use ramet_abi::layout::SERIAL_PORT;

use super::ports;

/// The first serial device.
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            ports::write_byte(SERIAL_PORT, byte);
        }
        Ok(())
    }
}
