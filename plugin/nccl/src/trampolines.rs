//! NCCL's names, as functions that go on to NCCL's own.
//!
//! A trampoline is a jump. It leaves all arguments where they are, whatever they are: in registers, or on the stack as a
//! unique id of 128 bytes. Only the first call of each function looks for it, and saves the registers meanwhile.
//! `ncclX` is defined here unless `collectives` or `lifecycle` defines it; `pncclX` always is here.

use crate::names::{NcclName, with_nccl_names};
use crate::real::{ADDRESSES, address};
use std::arch::naked_asm;
use std::ffi::c_void;
use std::panic::catch_unwind;

/// What the trampolines jump to at first: finds the function with this number. It never unwinds, since its caller has no frame.
extern "C" fn find(number: u32) -> *const c_void {
    let name = NcclName::ALL[number as usize].0;
    catch_unwind(|| address(name)).unwrap_or_else(|_| std::process::abort())
}

/// Saves what may hold arguments, finds the function whose number is in r11, and jumps to it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    naked_asm!(
        // The return address and seven registers: the stack is aligned to 16 bytes after them.
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov edi, r11d",
        "call {find}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "jmp r11",
        find = sym find,
    )
}

/// Saves what may hold arguments, finds the function whose number is in w17, and jumps to it.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        // x8 says where a large result goes.
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov w0, w17",
        "bl {find}",
        "mov x16, x0",
        "ldp q6, q7, [sp, #192]",
        "ldp q4, q5, [sp, #160]",
        "ldp q2, q3, [sp, #128]",
        "ldp q0, q1, [sp, #96]",
        "ldr x8, [sp, #80]",
        "ldp x6, x7, [sp, #64]",
        "ldp x4, x5, [sp, #48]",
        "ldp x2, x3, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #224",
        "br x16",
        find = sym find,
    )
}

/// The body of a trampoline.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident) => {
        naked_asm!(
            "mov r11, qword ptr [rip + {addresses} + {offset}]",
            "test r11, r11",
            "je 2f",
            "jmp r11",
            "2:",
            "mov r11d, {number}",
            "jmp {first_call}",
            addresses = sym ADDRESSES,
            offset = const NcclName::$name as usize * size_of::<usize>(),
            number = const NcclName::$name as u32,
            first_call = sym first_call,
        )
    };
}

/// The body of a trampoline.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident) => {
        naked_asm!(
            "adrp x16, {addresses} + {offset}",
            "add x16, x16, :lo12:{addresses} + {offset}",
            // Acquire, as what another thread has found was written before its address.
            "ldar x16, [x16]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "mov w17, {number}",
            "b {first_call}",
            addresses = sym ADDRESSES,
            offset = const NcclName::$name as usize * size_of::<usize>(),
            number = const NcclName::$name as u32,
            first_call = sym first_call,
        )
    };
}

macro_rules! trampolines {
    (counted { $($kind:ident: $($counted:ident)+;)+ } forwarded { $($other_kind:ident: $($forwarded:ident)+;)+ }) => {
        mod public {
            use super::*;
            $($(
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $forwarded() { jump!($forwarded) }
            )+)+
        }

        #[expect(non_snake_case, reason = "these are the names of NCCL")]
        mod always_nccl {
            use super::*;
            $($(
                #[unsafe(naked)]
                #[unsafe(export_name = concat!("p", stringify!($counted)))]
                unsafe extern "C" fn $counted() { jump!($counted) }
            )+)+
            $($(
                #[unsafe(naked)]
                #[unsafe(export_name = concat!("p", stringify!($forwarded)))]
                unsafe extern "C" fn $forwarded() { jump!($forwarded) }
            )+)+
        }
    };
}
with_nccl_names!(trampolines);
