// AllReduce by the switches of NVLink: sums of f32, f16 and bf16, for sm_90 and newer.
//
// NOTHING CHOOSES THIS KERNEL, and the library does not contain it. None of the machines that test this project has several GPUs and a
// switch, and the PTX machine of the tests has no multicast memory. It is compiled, and its registers are counted, so that it can be
// tried where there is such a machine. What is to be verified there first: results, and the order of `multimem` accesses with the
// flags.
//
// It is two-shot: every rank reduces its slice, which the switch reads from all inputs, and the switch stores the result into all
// outputs. `input` and `output` of the own rank are multicast addresses of these buffers; those of other ranks are not used. They
// begin at multiples of 16 bytes, and all buffers end with a whole vector, whose last elements may have any values.
//
// The switch chooses the order in which it adds, and which NaN results; sums of two-byte floats are kept as f32 until the end. All
// ranks have the same bits, since each element is added once. They may differ from those of the other kernels.

#include "peers.cuh"

#define VECTORS(Name, TYPE, ADD)                                                                              \
    struct Name {                                                                                             \
        static __device__ __forceinline__ uint4 sum(u64 address) {                                            \
            uint4 x;                                                                                          \
            asm volatile("multimem.ld_reduce.relaxed.sys.global." ADD ".v4." TYPE " {%0, %1, %2, %3}, [%4];"  \
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(address) : "memory");             \
            return x;                                                                                         \
        }                                                                                                     \
        static __device__ __forceinline__ void store(u64 address, uint4 x) {                                  \
            asm volatile("multimem.st.relaxed.sys.global.v4." TYPE " [%0], {%1, %2, %3, %4};"                 \
                         : : "l"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");                \
        }                                                                                                     \
    };

VECTORS(F32Vectors, "f32", "add")
VECTORS(F16Vectors, "f16x2", "add.acc::f32")
VECTORS(BF16Vectors, "bf16x2", "add.acc::f32")

template <typename Element, typename Vectors>
struct Multimem {
    static __device__ __forceinline__ void work(const Block &block) {
        const u32 lanes = 16 / sizeof(typename Element::Raw);
        const Peer &own = block.peers[block.rank];
        Range range = range_of<Element>(block);
        // The last vector is whole too.
        u64 end = (range.elements_end + lanes - 1) / lanes;
        #pragma unroll 1
        for (u64 at = range.vector + threadIdx.x; at < end; at += blockDim.x) {
            Vectors::store(own.output + at * 16, Vectors::sum(own.input + at * 16));
        }
    }
    static __device__ __forceinline__ void rest(const Block &) {}
};

#define KERNEL(name, Element, Vectors) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const Block *blocks) { call<Multimem<Element, Vectors>>(blocks); }

KERNEL(antiphon_multimem_f32, F32, F32Vectors)
KERNEL(antiphon_multimem_f16, F16, F16Vectors)
KERNEL(antiphon_multimem_bf16, BF16, BF16Vectors)
