//! What the UART's registers can be. Traffic is tested in `tests/conformance`.

use super::registers::is_interrupt_pending;
use super::state::Registers;
use proptest::prelude::*;
use std::convert::Infallible;
use vm_superio::serial::SerialState;
use vm_superio::{Serial, Trigger};

struct Silent;

impl Trigger for Silent {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

fn at_power_on() -> Registers {
    Registers::from(&SerialState::default())
}

#[test]
fn impossible_registers_are_named() {
    type Change = fn(&mut Registers);
    let changes: [(&str, Change); 8] = [
        ("the FIFO's length in bytes", |registers| registers.fifo = vec![0; 65]),
        ("interrupt enable", |registers| registers.interrupt_enable = 0x10),
        ("interrupt identification", |registers| registers.interrupt_identification = 0),
        ("interrupt identification", |registers| registers.interrupt_identification = 7),
        ("interrupt identification", |registers| registers.interrupt_identification = 0xC1),
        ("line status", |registers| registers.line_status = 0),
        ("line status", |registers| registers.line_status |= 1),
        ("line status", |registers| registers.fifo = vec![0]),
    ];
    assert_eq!(at_power_on().invalid(), None);
    for (field, change) in changes {
        let mut registers = at_power_on();
        change(&mut registers);
        assert_eq!(registers.invalid().map(|(field, ..)| field), Some(field));
    }
}

#[test]
fn pending_is_what_identification_says() {
    let with = |interrupt_identification| SerialState { interrupt_identification, ..SerialState::default() };
    assert!(!is_interrupt_pending(&with(1)));
    assert!([2, 4, 6].into_iter().all(|cause| is_interrupt_pending(&with(cause))));
}

proptest! {
    /// What the validation calls possible is all that `vm_superio` ever gets into.
    #[test]
    fn no_traffic_makes_registers_invalid(accesses in prop::collection::vec((0u8..8, 0u8..3, any::<u8>()), 0..200)) {
        let mut uart = Serial::new(Silent, std::io::sink());
        for (offset, kind, value) in accesses {
            match kind {
                0 => drop(uart.read(offset)),
                1 => uart.write(offset, value).unwrap(),
                _ => drop(uart.enqueue_raw_bytes(&vec![value; usize::from(offset) * 10])),
            }
            prop_assert_eq!(Registers::from(&uart.state()).invalid(), None);
        }
    }
}
