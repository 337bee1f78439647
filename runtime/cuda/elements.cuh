// Elements and their arithmetic, for all kernels. Every type gives the bits that the documentation of `DType` promises.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum Operation { SUM, PRODUCT, LEAST, GREATEST };

template <typename Bits>
struct Integer {
    typedef Bits Raw;
    // Signed and unsigned values have the same sums and products.
    template <typename Value>
    static __device__ __forceinline__ Raw reduce(u32 operation, Raw x, Raw y) {
        switch (operation) {
        case SUM: return (Raw)(x + y);
        case PRODUCT: return (Raw)(x * y);
        case LEAST: return (Value)x < (Value)y ? x : y;
        default: return (Value)x > (Value)y ? x : y;
        }
    }
};

struct I32 : Integer<u32> {
    static __device__ __forceinline__ u32 combine(u32 operation, u32 x, u32 y) { return reduce<int>(operation, x, y); }
    static __device__ __forceinline__ u32 divide(u32 x, u32 by) { return (u32)((long long)(int)x / (long long)by); }
};

struct I64 : Integer<u64> {
    static __device__ __forceinline__ u64 combine(u32 operation, u64 x, u64 y) { return reduce<long long>(operation, x, y); }
    static __device__ __forceinline__ u64 divide(u64 x, u32 by) { return (u64)((long long)x / (long long)by); }
};

struct U8 : Integer<u8> {
    static __device__ __forceinline__ u8 combine(u32 operation, u8 x, u8 y) { return reduce<u8>(operation, x, y); }
    static __device__ __forceinline__ u8 divide(u8 x, u32 by) { return (u8)((u32)x / by); }
};

__device__ __forceinline__ u32 bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u64 bits(double x) { return (u64)__double_as_longlong(x); }
__device__ __forceinline__ float number(u32 x) { return __uint_as_float(x); }
__device__ __forceinline__ double number(u64 x) { return __longlong_as_double((long long)x); }

// NaN in, NaN out; -0 is less than +0. Which NaN it is does not matter here.
template <typename Float>
__device__ __forceinline__ Float arithmetic(u32 operation, Float x, Float y) {
    switch (operation) {
    case SUM: return x + y;
    case PRODUCT: return x * y;
    default: break;
    }
    if (x != x || y != y) return x + y;
    if (x == y) return operation == LEAST ? number(bits(x) | bits(y)) : number(bits(x) & bits(y));
    return (x < y) == (operation == LEAST) ? x : y;
}

template <typename Bits, typename Float, Bits NAN_BITS>
struct Plain {
    typedef Bits Raw;
    static __device__ __forceinline__ Raw one_nan(Float x) { return x != x ? NAN_BITS : bits(x); }
    static __device__ __forceinline__ Raw combine(u32 operation, Raw x, Raw y) {
        return one_nan(arithmetic<Float>(operation, number(x), number(y)));
    }
    static __device__ __forceinline__ Raw divide(Raw x, u32 by) { return one_nan(number(x) / (Float)by); }
};

typedef Plain<u32, float, 0x7fc00000u> F32;
typedef Plain<u64, double, 0x7ff8000000000000ull> F64;

struct F16 {
    typedef u16 Raw;
    static __device__ __forceinline__ float wide(u16 x) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
        return value;
    }
    static __device__ __forceinline__ u16 narrow(float x) {
        u16 value;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value) : "f"(x));
        return x != x ? (u16)0x7e00 : value;
    }
    static __device__ __forceinline__ u16 combine(u32 operation, u16 x, u16 y) {
        return narrow(arithmetic<float>(operation, wide(x), wide(y)));
    }
    static __device__ __forceinline__ u16 divide(u16 x, u32 by) { return narrow(wide(x) / (float)by); }
};

struct BF16 {
    typedef u16 Raw;
    static __device__ __forceinline__ float wide(u16 x) { return number((u32)x << 16); }
    static __device__ __forceinline__ u16 narrow(float x) {
        u32 value = bits(x);
        // To the nearest, ties to even.
        return x != x ? (u16)0x7fc0 : (u16)((value + 0x7fffu + ((value >> 16) & 1u)) >> 16);
    }
    static __device__ __forceinline__ u16 combine(u32 operation, u16 x, u16 y) {
        return narrow(arithmetic<float>(operation, wide(x), wide(y)));
    }
    static __device__ __forceinline__ u16 divide(u16 x, u32 by) { return narrow(wide(x) / (float)by); }
};

// Sixteen bytes, which one access moves.
template <typename Element>
union Vector {
    uint4 whole;
    typename Element::Raw lane[16 / sizeof(typename Element::Raw)];
};

// Where tile `tile` of `tiles` begins in a slot: floor(length * tile / tiles), without a product that overflows.
__device__ __forceinline__ u64 cut(u64 length, u32 tile, u32 tiles) {
    return length / tiles * tile + length % tiles * tile / tiles;
}
