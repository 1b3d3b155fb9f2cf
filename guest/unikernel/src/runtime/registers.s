# registers_run(RDI = context): loads registers from the context, mixes them for a number of rounds, stores them.
#
# From the load to the store every general-purpose register but RSP, the flags, and the registers of the chosen
# classes hold nothing but what is being mixed; none of it is ever spilled. RSP points into the context, whose first
# bytes are room for a few pushes. All steps are invertible, or chaotic in two x87 registers, so that a wrong bit reaches
# the end. Offsets are those of `Context` in registers.rs, minus the room.
#
# Only defined flags and exactly rounded operations are used, so that all CPUs agree.

.set LEFT, 0x00
.set DONE, 0x08
.set MASK, 0x10
.set SAVED_RSP, 0x18
.set FLAGS, 0x20
.set CONTROL, 0x28
.set INNER, 0x30
.set GPR, 0x40
.set X87, 0xc0
.set K, 0x140
.set VEC, 0x180

.macro each_gpr what
    \what %rax, 0
    \what %rbx, 1
    \what %rcx, 2
    \what %rdx, 3
    \what %rsi, 4
    \what %rdi, 5
    \what %rbp, 6
    \what %r8, 7
    \what %r9, 8
    \what %r10, 9
    \what %r11, 10
    \what %r12, 11
    \what %r13, 12
    \what %r14, 13
    \what %r15, 14
.endm
.macro load_gpr register, index
    mov GPR + 8 * \index(%rsp), \register
.endm
.macro store_gpr register, index
    mov \register, GPR + 8 * \index(%rsp)
.endm
.macro mix_gpr a, b, bits
    add \a, \b
    rol $\bits, \b
.endm
.macro load_vector kind, index, instruction
    \instruction VEC + 64 * \index(%rsp), %\kind\index
.endm
.macro store_vector kind, index, instruction
    \instruction %\kind\index, VEC + 64 * \index(%rsp)
.endm
.macro mix_sse index, next
    pxor %xmm\next, %xmm\index
    pshufd $0x39, %xmm\index, %xmm\index
    paddq %xmm\index, %xmm\next
.endm
.macro mix_avx index, next
    vxorps %ymm\next, %ymm\index, %ymm\index
    vpermilps $0x39, %ymm\index, %ymm\index
    vperm2f128 $1, %ymm\next, %ymm\next, %ymm\next
.endm
.macro mix_avx512 index, next
    vpaddq %zmm\next, %zmm\index, %zmm\index
    vprolq $13, %zmm\index, %zmm\index
    valignq $3, %zmm\index, %zmm\index, %zmm\index
.endm

.section .text.registers_run, "ax"
.global registers_run
.balign 64
registers_run:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, {ROOM} + SAVED_RSP(%rdi)
    lea {ROOM}(%rdi), %rsp
    testb ${X87_BIT}, MASK(%rsp)
    jz 1f
    fninit
    fldcw x87_control
.irp index, 7,6,5,4,3,2,1,0
    fldt X87 + 10 * \index(%rsp)
.endr
# Not at zero, which a lost status word would be.
    fincstp
    fincstp
    fincstp
1:  testb ${AVX512_BIT}, MASK(%rsp)
    jz 1f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    load_vector zmm, \index, vmovdqu64
.endr
.irp index, 0,1,2,3,4,5,6,7
    kmovq K + 8 * \index(%rsp), %k\index
.endr
    jmp 3f
1:  testb ${AVX_BIT}, MASK(%rsp)
    jz 2f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    load_vector ymm, \index, vmovups
.endr
    jmp 3f
2:  testb ${SSE_BIT}, MASK(%rsp)
    jz 3f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    load_vector xmm, \index, movups
.endr
3:  ldmxcsr sse_control
    each_gpr load_gpr
    std

registers_round:
# A child that was forked in here notes its first instruction here.
    push %rax
    mov ${FIRST_INSTRUCTION}, %eax
    cmpq $0, (%rax)
    jne 1f
    push %rdx
    rdtsc
    shl $32, %rdx
    or %rax, %rdx
    mov ${FIRST_INSTRUCTION}, %eax
    mov %rdx, (%rax)
    pop %rdx
1:  pop %rax
    movq ${INNER_LOOPS}, INNER(%rsp)

registers_inner:
    mix_gpr %rax, %rbx, 7
    mix_gpr %rbx, %rcx, 9
    mix_gpr %rcx, %rdx, 13
    mix_gpr %rdx, %rsi, 18
    mix_gpr %rsi, %rdi, 23
    mix_gpr %rdi, %rbp, 29
    mix_gpr %rbp, %r8, 31
    mix_gpr %r8, %r9, 37
    mix_gpr %r9, %r10, 41
    mix_gpr %r10, %r11, 43
    mix_gpr %r11, %r12, 47
    mix_gpr %r12, %r13, 53
    mix_gpr %r13, %r14, 59
    mix_gpr %r14, %r15, 61
    imul $0x2545f491, %r15, %r15
# All flags live across instructions that leave them alone, then taken into a register.
    add %r15, %rax
    bswap %rbx
    not %rcx
    xchg %rdx, %rsi
    lea (%rdi, %rbp), %rdi
    adc %r8, %r9
    not %r10
    pushfq
    andq $0xcd5, (%rsp)
    xchg %r11, %r12
    push %r13
    mov 8(%rsp), %r13
    lea (%r14, %r13), %r14
    pop %r13
    lea 8(%rsp), %rsp

    testb ${X87_BIT}, MASK(%rsp)
    jz 1f
# All the way around the stack. Two registers: x = 1 - a x^2, in [-1, 1], chaotic but for the last bits of small
# numbers. Six: exchanged and negated, which keeps every bit.
.rept 2
    fmul %st(0), %st
    fmuls x87_factor
    fsubrs x87_one
    fincstp
.endr
    fchs
    fxch %st(3)
    fincstp
    fxch %st(4)
    fincstp
    fchs
    fxch %st(1)
    fincstp
    fincstp
    fchs
    fincstp
    fincstp
1:  testb ${AVX512_BIT}, MASK(%rsp)
    jz 1f
    mix_avx512 0, 1
    mix_avx512 1, 2
    mix_avx512 2, 3
    mix_avx512 3, 4
    mix_avx512 4, 5
    mix_avx512 5, 6
    mix_avx512 6, 7
    mix_avx512 7, 8
    mix_avx512 8, 9
    mix_avx512 9, 10
    mix_avx512 10, 11
    mix_avx512 11, 12
    mix_avx512 12, 13
    mix_avx512 13, 14
    mix_avx512 14, 15
    mix_avx512 15, 16
    mix_avx512 16, 17
    mix_avx512 17, 18
    mix_avx512 18, 19
    mix_avx512 19, 20
    mix_avx512 20, 21
    mix_avx512 21, 22
    mix_avx512 22, 23
    mix_avx512 23, 24
    mix_avx512 24, 25
    mix_avx512 25, 26
    mix_avx512 26, 27
    mix_avx512 27, 28
    mix_avx512 28, 29
    mix_avx512 29, 30
    mix_avx512 30, 31
    mix_avx512 31, 0
    kaddq %k1, %k0, %k0
    kaddq %k2, %k1, %k1
    kaddq %k3, %k2, %k2
    kaddq %k4, %k3, %k3
    kaddq %k5, %k4, %k4
    kaddq %k6, %k5, %k5
    kaddq %k7, %k6, %k6
    kaddq %k0, %k7, %k7
    vpaddb %zmm20, %zmm3, %zmm3{{%k3}}
    jmp 3f
1:  testb ${AVX_BIT}, MASK(%rsp)
    jz 2f
    mix_avx 0, 1
    mix_avx 1, 2
    mix_avx 2, 3
    mix_avx 3, 4
    mix_avx 4, 5
    mix_avx 5, 6
    mix_avx 6, 7
    mix_avx 7, 8
    mix_avx 8, 9
    mix_avx 9, 10
    mix_avx 10, 11
    mix_avx 11, 12
    mix_avx 12, 13
    mix_avx 13, 14
    mix_avx 14, 15
    mix_avx 15, 0
    jmp 3f
2:  testb ${SSE_BIT}, MASK(%rsp)
    jz 3f
    mix_sse 0, 1
    mix_sse 1, 2
    mix_sse 2, 3
    mix_sse 3, 4
    mix_sse 4, 5
    mix_sse 5, 6
    mix_sse 6, 7
    mix_sse 7, 8
    mix_sse 8, 9
    mix_sse 9, 10
    mix_sse 10, 11
    mix_sse 11, 12
    mix_sse 12, 13
    mix_sse 13, 14
    mix_sse 14, 15
    mix_sse 15, 0
3:  decq INNER(%rsp)
    jnz registers_inner

    testb ${RING0_BIT}, MASK(%rsp)
    jz 1f
# To ring 0 and back with the carry live.
    cmp %rax, %rbx
    .byte 0x48, 0xa1
    .quad {NOTHING_ADDRESS}
    adc $0, %rcx
    cmp %rcx, %rdx
.global registers_ud2
registers_ud2:
    ud2
    adc $0, %rsi
1:  incq DONE(%rsp)
    decq LEFT(%rsp)
    jnz registers_round

    add %rax, %rbx
    each_gpr store_gpr
    pushfq
    andq $0xcd5, (%rsp)
    popq FLAGS(%rsp)
    cld
    stmxcsr CONTROL(%rsp)
    ldmxcsr sse_default
    testb ${X87_BIT}, MASK(%rsp)
    jz 1f
    fnstcw CONTROL + 4(%rsp)
    fnstsw CONTROL + 6(%rsp)
.irp index, 0,1,2,3,4,5,6,7
    fstpt X87 + 10 * \index(%rsp)
.endr
    fninit
1:  testb ${AVX512_BIT}, MASK(%rsp)
    jz 1f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    store_vector zmm, \index, vmovdqu64
.endr
.irp index, 0,1,2,3,4,5,6,7
    kmovq %k\index, K + 8 * \index(%rsp)
.endr
    vzeroupper
    jmp 3f
1:  testb ${AVX_BIT}, MASK(%rsp)
    jz 2f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    store_vector ymm, \index, vmovups
.endr
    vzeroupper
    jmp 3f
2:  testb ${SSE_BIT}, MASK(%rsp)
    jz 3f
.irp index, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    store_vector xmm, \index, movups
.endr
3:  mov SAVED_RSP(%rsp), %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret

.section .rodata.registers, "a"
.balign 4
x87_one:
    .float 1.0
x87_factor:
    .float 1.9921875
# Everything masked; rounding up in SSE, down in x87, so that lost control registers are noticed.
sse_control:
    .long 0x5f80
sse_default:
    .long 0x1f80
x87_control:
    .short 0x077f
