//! Sums and other reductions of unusual numbers: the kernel gives the bits of the CPU runtime.

use super::job::{Job, MODULE, Terms, with_op};
use crate::device::kernel_plan::KernelPlan;
use crate::dtype::DType;
use program::testing::schedules::{Random, ring_allreduce};
use program::testing::{checked, lowered};
use schedule::ReduceOp;

/// Bits of elements: special ones, and any.
pub(super) fn elements(dtype: DType, random: &mut Random, count: usize) -> Vec<u8> {
    let special: &[u64] = match dtype {
        DType::F32 => {
            &[0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xffc0_0000, 0x7f80_0001, 1, 0x8000_0001, 0x7f7f_ffff]
        }
        DType::F64 => {
            &[0, 1 << 63, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff8_0000_0000_0001, 0xfff8 << 48, 1, 0x7fef_ffff_ffff_ffff]
        }
        DType::F16 => &[0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0xfe00, 0x7c01, 1, 0x8001, 0x7bff, 0x3c01, 0x0400],
        DType::Bf16 => &[0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xffc0, 0x7f81, 1, 0x8001, 0x7f7f, 0x3f81, 0x0080],
        DType::I32 | DType::I64 | DType::U8 => {
            &[0, 1, u64::MAX, 1 << 63, 1 << 31, 0x7fff_ffff, i64::MAX as u64, 0x80, 0x7f]
        }
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let value = if random.below(2) == 0 { special[random.below(special.len())] } else { random.draw() };
        bytes.extend_from_slice(&value.to_le_bytes()[..dtype.size()]);
    }
    bytes
}

#[test]
fn unusual_numbers_give_the_bits_of_the_cpu() {
    let mut random = Random(3);
    let base = checked(lowered(&ring_allreduce(2, 1), false));
    for &dtype in DType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
            let program = with_op(base.clone(), op);
            let count = 331;
            let terms = Terms { count, dtype, seed: random.draw(), calls: 1, ..Terms::PLAIN };
            let plan = KernelPlan::new(&program, count, dtype, terms.tile_bytes).unwrap();
            let mut job = Job::new(program.program(), &plan, terms, |_, _| {}).unwrap();
            let inputs = [0, 1].map(|_| elements(dtype, &mut random, count as usize));
            for (memory, input) in job.ranks.iter().zip(&inputs) {
                job.machine.write(memory.input, input).unwrap();
            }
            job.launch(&MODULE, 0).unwrap();
            let mut expected = vec![0; inputs[0].len()];
            (dtype.kernel(op).combine)(&mut expected, &inputs[0], &inputs[1]);
            if op == ReduceOp::Avg {
                dtype.divide(&mut expected, 2);
            }
            for memory in &job.ranks {
                let found = job.machine.read(memory.output, expected.len()).unwrap();
                let size = dtype.size();
                for (at, (found, expected)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
                    let operands = [0, 1].map(|rank| &inputs[rank][at * size..][..size]);
                    assert_eq!(found, expected, "{dtype} {op} of {operands:x?}");
                }
            }
        }
    }
}
