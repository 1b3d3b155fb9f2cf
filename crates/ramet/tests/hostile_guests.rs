//! Guests that crash, hang or write garbage: they end or go on alone, and nobody else notices.
#![allow(clippy::unwrap_used)]

mod common;

use common::elf::{self, Code};
use common::processes::processor_ticks;
use common::{Machines, Spec, wait_for};
use ramet_abi::clone_page::ANSWER_LENGTH_AT;
use ramet_abi::layout::{ANSWER_DOORBELL, CLONE_PAGE_BASE};
use ramet_abi::{guest_port, request};
use ramet_family::{FamilyEvent, RequestError, Terminal};
use std::time::Duration;

/// A founder, a victim that misbehaves, and a bystander that was forked from the victim before it does.
fn three(vcpus: u8) -> (Machines, u64, u64) {
    let mut machines = Spec::with_vcpus(vcpus).boot();
    let victim = machines.fork_one(0);
    machines.poke(victim, 1, 11);
    let bystander = machines.fork_one(victim);
    (machines, victim, bystander)
}

fn assert_others_are_well(mut machines: Machines, bystander: u64) {
    for number in [0, bystander] {
        machines.assert_well(number);
        let child = machines.fork_one(number);
        machines.assert_well(child);
    }
    assert_eq!(machines.peek(bystander, 1), 11);
    machines.shut_down();
}

#[test]
fn a_triple_fault_ends_one_machine_and_is_named() {
    for vcpus in [1, 2] {
        let (mut machines, victim, bystander) = three(vcpus);
        machines.post(victim, request::CRASH, &[request::CRASH_TRIPLE_FAULT]);
        let (status, failure) = machines.await_end(victim);
        assert!(
            status.is_none() && failure.as_ref().is_some_and(|failure| failure.contains("triple fault")),
            "{failure:?}"
        );
        let refused = machines.family.request(victim, b"", Duration::from_millis(1));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("triple fault"), "{text}");
        assert_others_are_well(machines, bystander);
    }
}

#[test]
fn a_panic_ends_one_machine_with_its_status_and_words() {
    let (mut machines, victim, bystander) = three(1);
    machines.post(victim, request::CRASH, &[request::CRASH_PANIC]);
    let mut said = Vec::new();
    let (status, failure) = loop {
        machines.gather();
        for event in std::mem::take(&mut machines.events) {
            match event {
                FamilyEvent::Output { number, terminal: Terminal::Serial, bytes } if number == victim => {
                    said.extend(bytes)
                }
                other => machines.events.push(other),
            }
        }
        if machines.events.iter().any(|event| matches!(event, FamilyEvent::Ended { .. })) {
            break machines.await_end(victim);
        }
    };
    assert_eq!((status, failure), (Some(101), None));
    assert!(String::from_utf8_lossy(&said).contains("asked to panic"), "{}", String::from_utf8_lossy(&said));
    assert_others_are_well(machines, bystander);
}

#[test]
fn a_guest_that_spins_with_interrupts_off_can_be_forked_paused_and_ended() {
    let (mut machines, victim, bystander) = three(2);
    machines.post(victim, request::CRASH, &[request::CRASH_SPIN]);
    let process = machines.pid(victim);
    let before = processor_ticks(process);
    wait_for("it to spin", || processor_ticks(process) >= before + 10);
    let refused = machines.family.request(victim, b"", Duration::from_millis(100)).unwrap_err();
    assert!(matches!(refused, RequestError::Busy { .. }), "{refused}");
    let child = machines.fork_one(victim);
    let asked = ramet_unikernel::request(request::IDENTITY, &[]);
    let silent = machines.family.request(child, &asked, Duration::from_millis(100)).unwrap_err();
    assert!(
        matches!(silent, RequestError::Timeout { .. }) && silent.to_string().contains("100 ms"),
        "it spins as well: {silent}"
    );
    machines.family.pause(victim).unwrap();
    machines.family.resume(victim).unwrap();
    assert!(machines.family.end(victim) && machines.family.end(child));
    assert_others_are_well(machines, bystander);
}

#[test]
fn garbage_in_all_ports_and_registers_harms_nobody() {
    for vcpus in [1, 2] {
        let (mut machines, victim, bystander) = three(vcpus);
        machines.tell(victim, request::CRASH, &[request::CRASH_GARBAGE]);
        machines.assert_well(victim);
        assert_eq!(machines.peek(victim, 1), 11);
        // Devices that were reset in the middle of it work again, also in a clone.
        let child = machines.fork_one(victim);
        for number in [victim, child] {
            machines.ask::<4>(number, request::RANDOM, &[]);
            let say = ramet_unikernel::request_with_bytes(request::CONSOLE, b"well again\n");
            machines.family.request(number, &say, common::PATIENCE).unwrap();
            machines.await_event("its words", |event| match event {
                FamilyEvent::Output { number: from, terminal: Terminal::Console, bytes } if *from == number => {
                    bytes.ends_with(b"well again\n").then_some(())
                }
                _ => None,
            });
        }
        assert_others_are_well(machines, bystander);
    }
}

#[test]
fn an_answer_that_claims_to_be_longer_than_it_can_be_is_refused() {
    // mov rax, imm64 (address); mov dword [rax], imm32
    let store = |code: Code, address: u64, value: u32| {
        code.raw(&[0x48, 0xB8]).raw(&address.to_le_bytes()).raw(&[0xC7, 0x00]).raw(&value.to_le_bytes())
    };
    // Answers the first request before it is put, with a length of 4 GiB.
    let code = store(Code::default(), CLONE_PAGE_BASE + ANSWER_LENGTH_AT as u64, u32::MAX);
    let code = store(code, ANSWER_DOORBELL, 1).write_long(guest_port::MARK, 1);
    // Then copies each sequence number of a request to that of the answer: mov eax, [rbx + 0x200]; mov [rbx + 0x800], eax
    let code = code.raw(&[0x48, 0xBB]).raw(&CLONE_PAGE_BASE.to_le_bytes());
    let code = code.raw(&[0x8B, 0x83, 0x00, 0x02, 0, 0, 0x89, 0x83, 0x00, 0x08, 0, 0, 0xEB, 0xF2]);
    let mut machines = Spec::default().boot_kernel(&elf::kernel(&code.0));
    machines.await_event("its start", |event| matches!(event, FamilyEvent::Mark { .. }).then_some(()));
    let sequence = machines.post(0, request::IDENTITY, &[]);
    let mut refused = None;
    wait_for("an answer", || match machines.poll_answer(0, sequence) {
        Ok(None) => false,
        Ok(Some(answer)) => panic!("{} bytes", answer.len()),
        Err(error) => refused.replace(error).is_none(),
    });
    let refused = refused.unwrap();
    assert!(matches!(refused, RequestError::BadLength { number: 0, bytes: u32::MAX }), "{refused}");
    machines.shut_down();
}

#[test]
fn a_guest_without_a_word_of_code_ends_alone() {
    // An address without memory is executed: whatever KVM makes of it, it is reported.
    let jump = Code::default().raw(&[0x48, 0xB8]).raw(&0xD000_0000u64.to_le_bytes()).raw(&[0xFF, 0xE0]);
    let mut machines = Spec::default().boot_kernel(&elf::kernel(&jump.0));
    let (status, failure) = machines.await_end(0);
    assert!(status.is_none() && failure.is_some(), "{status:?}, {failure:?}");
    machines.shut_down();
}
