// Flags between blocks, for all kernels: memory in order, and waits that end.
//
// Everything that a flag protects is written before a release and read after an acquire, at the scope of the system between ranks,
// and of the GPU within a rank. One thread does so for its block; barriers before a release and after an acquire extend it to all
// threads of the block. A wait ends when the abort word is set, and sets it when it has polled too often.
//
// It comes after elements.cuh, which names the types of numbers.

// After so many polls a wait looks at the abort word.
#define POLLS 64u

__device__ __forceinline__ u64 acquire_from_system(u64 address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ u64 acquire_from_device(u64 address) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void release_to_system(u64 address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void release_to_device(u64 address, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ bool is_aborted(u64 address) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value != 0;
}

__device__ __forceinline__ void set_abort(u64 address) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(address), "r"(1u) : "memory");
}

// Waits until the counter has reached `target`. False: the call is aborted. The block says where the abort word is, and how often one
// wait may poll.
template <bool OTHER_RANKS, typename Block>
__device__ __forceinline__ bool wait_for(const Block &block, u64 counter, u64 target) {
    u64 polls = 0;
    while ((OTHER_RANKS ? acquire_from_system(counter) : acquire_from_device(counter)) < target) {
        polls++;
        if (polls % POLLS != 0) continue;
        if (is_aborted(block.abort)) return false;
        if (polls >= block.poll_limit) {
            set_abort(block.abort);
            return false;
        }
    }
    return true;
}
