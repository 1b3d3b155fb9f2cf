# Ring 0 of the unikernel: entry, descriptor tables, interrupts, and the gates through which ring 3 comes here.
# See ring0.rs for what the gates do, and README.md for why they look like this.
#
# Everything is static: nothing here is filled in at run time, so all vCPUs can start at once. Descriptors need
# addresses split into pieces, which no relocation can express; but .ring0 is at 0x200000 by link.ld, so that
# (label - ring0_start) is the low half of an address and 0x0020 the high half.

.section .note.ramet, "a", @note
.balign 4
    .long {NOTE_NAME_BYTES}
    .long 4
    .long {NOTE_TYPE}
    .ascii "RAMET\0"
    .balign 4
    .long {NOTE_FLAGS}

.section .ring0, "ax"
.balign 4096
ring0_start:

# From the monitor: RDI = vCPU, RSI = bytes of RAM, RDX = number of vCPUs, all of which ring 3 gets as they are.
.global entry
entry:
    cmp ${MAX_VCPUS}, %edi
    jae park
    lgdt gdt_pointer
    lidt idt_pointer
    mov %edi, %eax
    shl $4, %eax
    add $0x40, %eax
    ltr %ax
    lea (%rdi, %rdi, 4), %rax
    lea ring3_frames(, %rax, 8), %rsp
    test %edi, %edi
    jnz 1f
# vCPU 0 reads the clock. Its MSR is set here, as a gate for it would cost three times as many instructions.
    mov %edx, %r8d
    mov ${CLOCK_MSR}, %ecx
    mov $clock_page + 1, %eax
    xor %edx, %edx
    wrmsr
    mov %r8d, %edx
1:  iretq
park:
    cli
    hlt
    jmp park

# Exceptions that are no gates end in ring 3, in `report_exception(frame, cr2)`, on a stack of its own. The frame is
# [vector, error code, rip, cs, rflags, rsp, ss] on the ring 0 stack, which ring 3 can read.
.balign 16
exception:
    mov %rsp, %rdi
    mov %cr2, %rsi
    pushq $0x2b
    pushq $exception_stack_end - 8
    pushq $0x3202
    pushq $0x33
    pushq $report_exception
    iretq

.macro exception_stub vector
exception_\vector:
    pushq $0
    pushq $\vector
    jmp exception
.endm
.macro exception_stub_with_code vector
exception_\vector:
    pushq $\vector
    jmp exception
.endm
.irp vector, 0,1,2,3,4,5,7,9,15,16,18,19,20,22,23,24,25,26,27,28,31,32
    exception_stub \vector
.endr
.irp vector, 8,10,11,12,13,17,21,29,30
    exception_stub_with_code \vector
.endr

# The one ud2 that is a gate: it does nothing and goes on. Any other is Rust's `abort`.
.balign 16
exception_6:
    cmpq $registers_ud2, (%rsp)
    jne 1f
    addq $2, (%rsp)
    iretq
1:  pushq $0
    pushq $6
    jmp exception

# A page fault at an address with bit 46 set is a gate; its number is the low byte. The instruction that faulted is
# always the 10-byte form of `movabs ADDRESS, %rax`, which never completes.
.balign 16
exception_14:
    push %rax
    mov %cr2, %rax
    bt $46, %rax
    jnc 2f
    cmp ${GATE_WAIT}, %al
    jne 1f
# Wait: halts unless the counter at RDI differs from RSI. Interrupts are off from the gate to `sti`, and `sti` lets
# none in before `hlt`: an interrupt after the comparison ends the halt. Where the monitor takes the vCPU out between
# the two, a KVM can forget that none may come in (one under QEMU's TCG does, whose VMRUN does not load the interrupt
# shadow): handlers then return behind `hlt`.
    add $16, %rsp
    addq $10, (%rsp)
    cmp %rsi, (%rdi)
    jne 3f
    sti
wait_halt:
    hlt
3:  iretq
1:  test %al, %al
    jnz 4f
# Nothing: comes here and goes back, with every register and flag as it was.
    pop %rax
    add $8, %rsp
    addq $10, (%rsp)
    iretq
2:  pop %rax
    pushq $14
    jmp exception
4:  cmp ${GATE_WRITE_PORTS}, %al
    jne 7f
# Writes AL to RCX ports from DX on.
    pop %rax
    add $8, %rsp
    addq $10, (%rsp)
6:  out %al, %dx
    inc %edx
    dec %ecx
    jnz 6b
    iretq
7:  cmp ${GATE_SPIN}, %al
    jne 9f
8:  jmp 8b
# Triple fault: an exception with no descriptor table.
9:  cmp ${GATE_TRIPLE_FAULT}, %al
    jne 2b
    lidt no_idt_pointer
    ud2

# Interrupts count, end themselves at the local APIC (0xFEE000B0) and return. No register is touched.
.macro end_of_interrupt
    # addr32 movl $0, 0xfee000b0
    .byte 0x67, 0xc7, 0x04, 0x25
    .long 0xfee000b0
    .long 0
.endm
.macro return_from_interrupt
    cmpq $wait_halt, (%rsp)
    je skip_halt
    iretq
.endm
skip_halt:
    incq (%rsp)
    iretq
.balign 64
line_interrupts:
.set i, 0
.rept {LINES}
    .balign 64
    incq interrupt_counters + 8 * i
    end_of_interrupt
    return_from_interrupt
    .set i, i + 1
.endr
.balign 64
wake_interrupts:
.set i, 0
.rept {MAX_VCPUS}
    .balign 64
    incq wake_counters + 8 * i
    end_of_interrupt
    return_from_interrupt
    .set i, i + 1
.endr
.balign 32
spurious_interrupt:
    iretq

# Interrupt gates, so that interrupts are off in ring 0.
.macro interrupt_gate offset
    .short \offset
    .short 0x10
    .byte 0, 0x8e
    .short 0x0020
    .long 0, 0
.endm
.balign 16
idt:
.irp vector, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    interrupt_gate "exception_\vector - ring0_start"
.endr
.rept {SPURIOUS_VECTOR} - 32
    interrupt_gate "exception_32 - ring0_start"
.endr
    interrupt_gate "spurious_interrupt - ring0_start"
.rept {LINE_VECTOR} - {SPURIOUS_VECTOR} - 1
    interrupt_gate "exception_32 - ring0_start"
.endr
.set i, 0
.rept {LINES}
    interrupt_gate "line_interrupts - ring0_start + 64 * i"
    .set i, i + 1
.endr
.rept {WAKE_VECTOR} - {LINE_VECTOR} - {LINES}
    interrupt_gate "exception_32 - ring0_start"
.endr
.set i, 0
.rept {MAX_VCPUS}
    interrupt_gate "wake_interrupts - ring0_start + 64 * i"
    .set i, i + 1
.endr
idt_end:

# Task state segments: the CPU takes from them the ring 0 stack and the ports that ring 3 may use. All of them share
# one I/O bitmap, which starts at a different offset from each. Ring 3 has IOPL 3 as well (rflags 0x3202), since each
# way is missing somewhere: a software KVM ignores IOPL in ring 3, and QEMU's TCG, as the CPU under a KVM, ignores the
# bitmap once a monitor has restored the task register as busy, which it is.
.macro task_state stack
1:  .long 0
    .quad \stack
    .zero 0x66 - 12
    .short io_bitmap - 1b
.endm
.balign 16
task_states:
    task_state hot_start
.set i, 1
.rept {MAX_VCPUS} - 1
    task_state "vcpu_stacks + 0x4000 * (i + 1)"
    .set i, i + 1
.endr
.set guest_port_first_byte, {GUEST_PORT} / 8
.set guest_port_bytes, {GUEST_PORTS} / 8
io_bitmap:
    .fill {SERIAL_PORT} / 8, 1, 0xff
    .byte 0
    .fill guest_port_first_byte - {SERIAL_PORT} / 8 - 1, 1, 0xff
    .fill guest_port_bytes, 1, 0
    .byte 0xff
io_bitmap_end:

# What the first IRETQ of each vCPU pops: rip, cs, rflags, rsp, ss. The ring 3 stack is below the 512 bytes of the
# ring 0 stack.
.macro ring3_frame stack
    .quad start, 0x33, 0x3202, \stack, 0x2b
.endm
.balign 16
ring3_frames:
    ring3_frame "hot_start - 0x200 - 8"
.set i, 1
.rept {MAX_VCPUS} - 1
    ring3_frame "vcpu_stacks + 0x4000 * (i + 1) - 0x200 - 8"
    .set i, i + 1
.endr

.balign 16
    .zero 6
gdt_pointer:
    .short gdt_end - gdt - 1
    .quad gdt
    .zero 6
idt_pointer:
    .short idt_end - idt - 1
    .quad idt
    .zero 6
no_idt_pointer:
    .short 0
    .quad 0

# Written from here on. The GDT, because LTR marks a task as busy.
.section .hot, "aw"
.balign 64
gdt:
    .quad 0
    .quad 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0
    .quad 0x00cff3000000ffff
    .quad 0x00affb000000ffff
    .quad 0
.set i, 0
.rept {MAX_VCPUS}
    .short io_bitmap_end - task_states - 0x68 * i - 1
    .short task_states - ring0_start + 0x68 * i
    .byte 0x20, 0x89, 0, 0
    .quad 0
    .set i, i + 1
.endr
gdt_end:
.global interrupt_counters
interrupt_counters:
    .fill {LINES}, 8, 0
.global wake_counters
wake_counters:
    .fill {MAX_VCPUS}, 8, 0
.balign 64
.global clock_page
clock_page:
    .zero 64

.section .exception_stack, "aw", @nobits
.balign 16
    .zero 8192
exception_stack_end:
