// AllReduce in one kernel, on buffers that all ranks have mapped.
//
// * One-shot: every rank reads the inputs of all ranks. For small sizes: it is over after one exchange, and reads everything.
// * Two-shot: every rank reduces its slice of all inputs, and puts the result into the outputs of all ranks.
//
// Both add in the order of the ranks, so all ranks have the same bits. In place, a one-shot rank keeps its results aside until all
// peers have read its input. A two-shot rank needs not: only one thread of all ranks reads an element, and it also writes it.
//
// The host has made sure that the kernels are called as peers.cuh says.

#include "peers.cuh"

// What is constant for the compiler costs nothing: sums read all inputs before they add, so that one delay of the memory serves them all.
template <typename Element>
__device__ __forceinline__ Vector<Element> sum_of_vectors(const Block &block, u64 at) {
    const u32 lanes = 16 / sizeof(typename Element::Raw);
    Vector<Element> x[MOST_RANKS];
    #pragma unroll
    for (u32 peer = 0; peer < MOST_RANKS; peer++) {
        if (peer < block.ranks) x[peer].whole = ((const uint4 *)block.peers[peer].input)[at];
    }
    #pragma unroll
    for (u32 peer = 1; peer < MOST_RANKS; peer++) {
        if (peer < block.ranks) {
            #pragma unroll
            for (u32 lane = 0; lane < lanes; lane++) x[0].lane[lane] = Element::combine(SUM, x[0].lane[lane], x[peer].lane[lane]);
        }
    }
    return x[0];
}

template <typename Element>
__device__ __forceinline__ Vector<Element> reduction_of_vectors(const Block &block, u64 at) {
    const u32 lanes = 16 / sizeof(typename Element::Raw);
    Vector<Element> x, y;
    x.whole = ((const uint4 *)block.peers[0].input)[at];
    #pragma unroll 1
    for (u32 peer = 1; peer < block.ranks; peer++) {
        y.whole = ((const uint4 *)block.peers[peer].input)[at];
        #pragma unroll
        for (u32 lane = 0; lane < lanes; lane++) x.lane[lane] = Element::combine(block.operation, x.lane[lane], y.lane[lane]);
    }
    return x;
}

template <typename Element>
__device__ __forceinline__ typename Element::Raw reduction_of_elements(const Block &block, u64 at) {
    typedef typename Element::Raw Raw;
    Raw x = ((const Raw *)block.peers[0].input)[at];
    #pragma unroll 1
    for (u32 peer = 1; peer < block.ranks; peer++) {
        x = Element::combine(block.operation, x, ((const Raw *)block.peers[peer].input)[at]);
    }
    return block.divisor ? Element::divide(x, block.divisor) : x;
}

// Puts a result where it belongs: at this rank, or at all.
template <typename Value>
__device__ __forceinline__ void put(const Block &block, u64 at, Value value) {
    if (!block.is_two_shot) {
        ((Value *)(block.scratch ? block.scratch : block.peers[block.rank].output))[at] = value;
        return;
    }
    #pragma unroll
    for (u32 peer = 0; peer < MOST_RANKS; peer++) {
        if (peer < block.ranks) ((Value *)block.peers[peer].output)[at] = value;
    }
}

template <typename Element>
struct AllReduce {
    typedef typename Element::Raw Raw;

    static __device__ __forceinline__ void work(const Block &block) {
        const u32 lanes = 16 / sizeof(Raw);
        const Range range = range_of<Element>(block);
        #pragma unroll 1
        for (u64 at = range.vector + threadIdx.x; at < range.vectors_end; at += blockDim.x) {
            Vector<Element> x =
                block.operation == SUM ? sum_of_vectors<Element>(block, at) : reduction_of_vectors<Element>(block, at);
            if (block.divisor) {
                #pragma unroll
                for (u32 lane = 0; lane < lanes; lane++) x.lane[lane] = Element::divide(x.lane[lane], block.divisor);
            }
            put(block, at, x.whole);
        }
        #pragma unroll 1
        for (u64 at = range.element + threadIdx.x; at < range.elements_end; at += blockDim.x) {
            put(block, at, reduction_of_elements<Element>(block, at));
        }
    }

    // Each thread copies what it has written itself.
    static __device__ __forceinline__ void rest(const Block &block) {
        if (!block.scratch) return;
        const u64 output = block.peers[block.rank].output;
        const Range range = range_of<Element>(block);
        #pragma unroll 1
        for (u64 at = range.vector + threadIdx.x; at < range.vectors_end; at += blockDim.x) {
            ((uint4 *)output)[at] = ((const uint4 *)block.scratch)[at];
        }
        #pragma unroll 1
        for (u64 at = range.element + threadIdx.x; at < range.elements_end; at += blockDim.x) {
            ((Raw *)output)[at] = ((const Raw *)block.scratch)[at];
        }
    }
};

#define KERNEL(name, Element) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const Block *blocks) { call<AllReduce<Element>>(blocks); }

KERNEL(antiphon_allreduce_f32, F32)
KERNEL(antiphon_allreduce_f64, F64)
KERNEL(antiphon_allreduce_i32, I32)
KERNEL(antiphon_allreduce_i64, I64)
KERNEL(antiphon_allreduce_u8, U8)
KERNEL(antiphon_allreduce_f16, F16)
KERNEL(antiphon_allreduce_bf16, BF16)
