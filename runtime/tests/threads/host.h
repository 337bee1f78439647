/* What the kernels use of CUDA, for g++: a thread of a block is a thread of the system.
 *
 * The test puts this before the kernel's source, and run.h after it. It replaces the instructions of PTX in the source by the
 * functions that begin with host_. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sched.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Dimension {
    unsigned x;
};

/* A block: what its threads share. */
struct HostBlock {
    pthread_barrier_t barrier;
    alignas(16) unsigned char shared[1 << 16];
};

static thread_local Dimension threadIdx, blockIdx, blockDim;
static thread_local HostBlock *host_block;

static void __syncthreads() { pthread_barrier_wait(&host_block->barrier); }

/* Variables of a block: each has its place. */
template <typename T>
static T &host_shared(unsigned place) { return *(T *)(host_block->shared + place); }

template <typename T>
static T host_load(unsigned long long address, int order) {
    /* Who waits lets others run. */
    sched_yield();
    T value;
    if (order == __ATOMIC_ACQUIRE) __atomic_load((T *)address, &value, __ATOMIC_ACQUIRE);
    else __atomic_load((T *)address, &value, __ATOMIC_RELAXED);
    return value;
}

template <typename T>
static void host_store(unsigned long long address, T value, int order) {
    if (order == __ATOMIC_RELEASE) __atomic_store((T *)address, &value, __ATOMIC_RELEASE);
    else __atomic_store((T *)address, &value, __ATOMIC_RELAXED);
}

/* Two-byte floats of IEEE are left to the PTX machine. */
static float host_wide(unsigned short) { abort(); }
static unsigned short host_narrow(float) { abort(); }

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }

template <typename To, typename From>
static inline To host_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
#define __float_as_uint(x) host_bits<unsigned, float>(x)
#define __uint_as_float(x) host_bits<float, unsigned>(x)
#define __double_as_longlong(x) host_bits<long long, double>(x)
#define __longlong_as_double(x) host_bits<double, long long>(x)
