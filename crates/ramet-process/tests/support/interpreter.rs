//! An interpreter for the classic BPF that seccomp(2) accepts, as far as filters here use it.

use ramet_process::seccomp::SystemCall;
use seccompiler::sock_filter;

const LD_W_ABS: u16 = 0x20;
const ALU_AND_K: u16 = 0x54;
const JA: u16 = 0x05;
const JEQ_K: u16 = 0x15;
const JGT_K: u16 = 0x25;
const JGE_K: u16 = 0x35;
const RET_K: u16 = 0x06;

/// The return value of `program` for `call`, and the number of instructions that it took.
pub(crate) fn run(program: &[sock_filter], call: &SystemCall) -> (u32, usize) {
    let mut accumulator = 0u32;
    let mut next = 0;
    for steps in 1..=program.len() {
        let instruction = &program[next];
        next += 1;
        let k = instruction.k;
        let condition = match instruction.code {
            LD_W_ABS => {
                accumulator = load(call, k);
                continue;
            }
            ALU_AND_K => {
                accumulator &= k;
                continue;
            }
            JA => {
                next += k as usize;
                continue;
            }
            RET_K => return (k, steps),
            JEQ_K => accumulator == k,
            JGT_K => accumulator > k,
            JGE_K => accumulator >= k,
            other => panic!("instruction {other:#x} is unknown"),
        };
        next += usize::from(if condition { instruction.jt } else { instruction.jf });
    }
    panic!("the program does not end");
}

/// struct seccomp_data: number, architecture, instruction pointer, arguments (little endian).
fn load(call: &SystemCall, offset: u32) -> u32 {
    match offset {
        0 => call.number,
        4 => call.architecture,
        16..64 if offset.is_multiple_of(4) => {
            let argument = call.arguments[(offset as usize - 16) / 8];
            if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
        }
        other => panic!("there is nothing at offset {other}"),
    }
}
