// Runs programs on GPUs: one thread block of the grid for each threadblock of a program.
//
// A rank's memory is mapped into the address space of its peers. A message is put into the receiver's inbox, a ring of slots
// for each connection; then the sender signals, and the receiver waits, as flags.cuh says.
//
// All counters only grow. Each block counts its own calls in device memory, so a CUDA graph may repeat a launch. All blocks of a
// launch must be resident at the same time.
//
// No other headers are needed. The structures are those of runtime/src/device/tables.rs. `make kernels` makes interpreter.ptx anew.

#include "elements.cuh"
#include "flags.cuh"

// What a block of the grid does.
struct Block {
    u64 steps;       // its first Step
    u64 pieces;      // the Pieces of its rank
    u64 waits;       // the Waits of its rank
    u64 channels;    // the Channels of its rank, as it sees them
    u64 buffers;     // addresses of input, output, scratch
    u64 epoch;       // how many calls this block has finished; only this block uses it
    u64 progress;    // how many steps it has finished, over all tiles and calls
    u64 abort;       // the abort word (u32), in memory of the host
    u64 report;      // where a block that gives up says at which step (u64)
    u64 poll_limit;  // how often one wait may poll
    u32 step_count;
    u32 tiles;
    u32 operation;
    u32 unused;
};

struct Step {
    u32 kind;
    u32 first_piece, piece_count;  // at least one
    u32 first_wait, wait_count;
    u32 in_channel, in_ordinal;    // the message that it takes, among those of the channel in one tile
    u32 out_channel, out_ordinal;  // the message that it puts
    u32 divisor;
    u32 unused[2];
};

// A slot of a buffer: where it lies in its source and its destination, in elements.
struct Piece {
    u64 length;
    u64 source, destination;
    u32 source_buffer, destination_buffer;
};

// Another block of the rank must have finished so many of its steps of the same tile.
struct Wait {
    u64 progress;
    u32 steps, step_count;
};

struct Channel {
    u64 inbox;       // at the receiver
    u64 arrived;     // at the receiver: how many messages were put
    u64 taken;       // at the sender: how many messages were taken
    u64 slot_bytes;  // a multiple of 16
    u32 mask;        // the number of slots, a power of two, less one
    u32 per_tile;    // how many messages a tile has
};

enum Kind { RECEIVES = 1, SENDS = 2, READS = 4, STORES = 8, REDUCES = 16, DIVIDES = 32, PUBLISHES = 64 };

// How many steps are kept in shared memory.
#define WINDOW 32u
// How many vectors a thread reads before it writes one.
#define BATCH 4u

// The work of one piece: where its operands and results lie. An address that is not used is 0.
struct Move {
    u64 first, second;  // operands; the second one is reduced into the first
    u64 stored, sent;   // results
    u32 kind, operation, divisor;
};

template <typename Element>
__device__ __forceinline__ typename Element::Raw result(const Move &move, typename Element::Raw x, typename Element::Raw y) {
    if (move.kind & REDUCES) x = Element::combine(move.operation, x, y);
    if (move.kind & DIVIDES) x = Element::divide(x, move.divisor);
    return x;
}

// Moves vectors `at`, `at + blockDim.x` and so on. All are read before one is written, so that one delay of the memory serves them all.
// What is constant for the compiler costs nothing.
template <typename Element, u32 COUNT>
__device__ __forceinline__ void move_vectors(const Move &move, u32 operation, u64 at) {
    Vector<Element> x[COUNT], y[COUNT];
    #pragma unroll
    for (u32 next = 0; next < COUNT; next++) x[next].whole = ((const uint4 *)move.first)[at + next * blockDim.x];
    if (move.kind & REDUCES) {
        #pragma unroll
        for (u32 next = 0; next < COUNT; next++) y[next].whole = ((const uint4 *)move.second)[at + next * blockDim.x];
        #pragma unroll
        for (u32 next = 0; next < COUNT; next++) {
            #pragma unroll
            for (u32 lane = 0; lane < 16 / sizeof(typename Element::Raw); lane++) {
                x[next].lane[lane] = Element::combine(operation, x[next].lane[lane], y[next].lane[lane]);
            }
        }
    }
    if (move.kind & STORES) {
        #pragma unroll
        for (u32 next = 0; next < COUNT; next++) ((uint4 *)move.stored)[at + next * blockDim.x] = x[next].whole;
    }
    if (move.kind & SENDS) {
        #pragma unroll
        for (u32 next = 0; next < COUNT; next++) ((uint4 *)move.sent)[at + next * blockDim.x] = x[next].whole;
    }
}

template <typename Element>
__device__ __forceinline__ void move_piece(const Move &move, u64 elements) {
    typedef typename Element::Raw Raw;
    u64 done = 0;
    if (((move.first | move.second | move.stored | move.sent) & 15) == 0 && !(move.kind & DIVIDES)) {
        const u32 lanes = 16 / sizeof(Raw);
        u64 vectors = elements / lanes;
        u64 at = threadIdx.x;
        if (!(move.kind & REDUCES) || move.operation == SUM) {
            #pragma unroll 1
            for (; at + (BATCH - 1) * blockDim.x < vectors; at += BATCH * blockDim.x) move_vectors<Element, BATCH>(move, SUM, at);
        }
        #pragma unroll 1
        for (; at < vectors; at += blockDim.x) move_vectors<Element, 1>(move, move.operation, at);
        done = vectors * lanes;
    }
    #pragma unroll 1
    for (u64 at = done + threadIdx.x; at < elements; at += blockDim.x) {
        Raw x = ((const Raw *)move.first)[at];
        Raw y = move.kind & REDUCES ? ((const Raw *)move.second)[at] : (Raw)0;
        x = result<Element>(move, x, y);
        if (move.kind & STORES) ((Raw *)move.stored)[at] = x;
        if (move.kind & SENDS) ((Raw *)move.sent)[at] = x;
    }
}

// The number of a message, counted from the first call on.
__device__ __forceinline__ u64 message(const Channel &channel, u32 ordinal, u64 round) {
    return round * channel.per_tile + ordinal;
}

// What a step waits for and tells is divided among threads of different warps, so that the delays of memory do not add up.
enum Duty { OWN_RANK, INCOMING, OUTGOING, DUTIES };

// Whether this thread has the duty: also in blocks of few threads one has.
__device__ __forceinline__ bool has_duty(u32 duty) { return threadIdx.x == min(duty * 32, blockDim.x - 1); }

// False: the call is aborted.
__device__ __forceinline__ bool wait_for_all(const Block &block, const Step &step, u64 round) {
    bool goes_on = true;
    if (has_duty(OWN_RANK)) {
        const Wait *waits = (const Wait *)block.waits + step.first_wait;
        for (u32 at = 0; goes_on && at < step.wait_count; at++) {
            goes_on = wait_for<false>(block, waits[at].progress, round * waits[at].step_count + waits[at].steps);
        }
    }
    const Channel *channels = (const Channel *)block.channels;
    if (has_duty(INCOMING) && goes_on && step.kind & RECEIVES) {
        const Channel &channel = channels[step.in_channel];
        goes_on = wait_for<true>(block, channel.arrived, message(channel, step.in_ordinal, round) + 1);
    }
    if (has_duty(OUTGOING) && goes_on && step.kind & SENDS) {
        const Channel &channel = channels[step.out_channel];
        u64 number = message(channel, step.out_ordinal, round);
        // The slot is free when the message that was in it has been taken.
        if (number > channel.mask) goes_on = wait_for<true>(block, channel.taken, number - channel.mask);
    }
    return goes_on;
}

// The slot of a message in an inbox.
__device__ __forceinline__ u64 slot(const Channel &channel, u32 ordinal, u64 round) {
    return channel.inbox + (message(channel, ordinal, round) & channel.mask) * channel.slot_bytes;
}

// The work of one piece of a step. In the message it lies at `inbox` or `outbox`.
struct Work {
    Move move;
    u64 elements;
};

template <typename Element>
__device__ __forceinline__ Work work_of(const Block &block, const Step &step, u32 index, u32 tile, u64 inbox, u64 outbox) {
    const Piece &piece = ((const Piece *)block.pieces)[step.first_piece + index];
    const u64 *buffers = (const u64 *)block.buffers;
    const u64 size = sizeof(typename Element::Raw);
    u64 begin = cut(piece.length, tile, block.tiles);
    u64 source = step.kind & READS ? buffers[piece.source_buffer] + (piece.source + begin) * size : 0;
    u64 destination = step.kind & STORES ? buffers[piece.destination_buffer] + (piece.destination + begin) * size : 0;
    Work work;
    work.elements = cut(piece.length, tile + 1, block.tiles) - begin;
    work.move.first = step.kind & RECEIVES ? inbox : source;
    work.move.second = !(step.kind & REDUCES) ? 0 : step.kind & RECEIVES ? source : destination;
    work.move.stored = destination;
    work.move.sent = outbox;
    work.move.kind = step.kind;
    work.move.operation = block.operation;
    work.move.divisor = step.divisor;
    return work;
}

// Tells others that a step is done: peers that a message has arrived or was taken, and blocks of this rank.
__device__ __forceinline__ void signal_all(const Block &block, const Step &step, u64 round, u32 at) {
    const Channel *channels = (const Channel *)block.channels;
    if (has_duty(OUTGOING) && step.kind & SENDS) {
        const Channel &channel = channels[step.out_channel];
        release_to_system(channel.arrived, message(channel, step.out_ordinal, round) + 1);
    }
    if (has_duty(INCOMING) && step.kind & RECEIVES) {
        const Channel &channel = channels[step.in_channel];
        release_to_system(channel.taken, message(channel, step.in_ordinal, round) + 1);
    }
    if (has_duty(OWN_RANK) && step.kind & PUBLISHES) release_to_device(block.progress, round * block.step_count + at + 1);
}

template <typename Element>
__device__ __forceinline__ void run(const Block *blocks) {
    __shared__ Step window[WINDOW];
    __shared__ u64 epoch;
    __shared__ u32 stop[DUTIES];
    // In shared memory, where it takes no registers.
    __shared__ Block block;
    for (u32 word = threadIdx.x; word < sizeof(Block) / 8; word += blockDim.x) {
        ((u64 *)&block)[word] = ((const u64 *)&blocks[blockIdx.x])[word];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        epoch = *(const u64 *)block.epoch;
        stop[OWN_RANK] = is_aborted(block.abort);
        stop[INCOMING] = 0;
        stop[OUTGOING] = 0;
    }
    __syncthreads();
    if (stop[OWN_RANK]) return;
    const u64 first_round = epoch * block.tiles;
    const Channel *channels = (const Channel *)block.channels;
    #pragma unroll 1
    for (u32 tile = 0; tile < block.tiles; tile++) {
        const u64 round = first_round + tile;
        #pragma unroll 1
        for (u32 at = 0; at < block.step_count; at++) {
            if (at % WINDOW == 0 && (tile == 0 || block.step_count > WINDOW)) {
                u32 count = min(block.step_count - at, WINDOW);
                const u32 *from = (const u32 *)((const Step *)block.steps + at);
                for (u32 word = threadIdx.x; word < count * (sizeof(Step) / 4); word += blockDim.x) {
                    ((u32 *)window)[word] = from[word];
                }
                __syncthreads();
            }
            const Step step = window[at % WINDOW];
            // Before the wait, which takes what is known from the nearest cache.
            u64 inbox = step.kind & RECEIVES ? slot(channels[step.in_channel], step.in_ordinal, round) : 0;
            u64 outbox = step.kind & SENDS ? slot(channels[step.out_channel], step.out_ordinal, round) : 0;
            Work work = work_of<Element>(block, step, 0, tile, inbox, outbox);
            if (!wait_for_all(block, step, round)) stop[threadIdx.x == 0 ? OWN_RANK : has_duty(INCOMING) ? INCOMING : OUTGOING] = 1;
            __syncthreads();
            if (stop[OWN_RANK] | stop[INCOMING] | stop[OUTGOING]) {
                if (threadIdx.x == 0) *(u64 *)block.report = ((u64)tile << 32 | at) + 1;
                return;
            }
            #pragma unroll 1
            for (u32 index = 0;;) {
                move_piece<Element>(work.move, work.elements);
                if (++index >= step.piece_count) break;
                // Each piece of a message begins at a multiple of 16 bytes.
                u64 bytes = (work.elements * sizeof(typename Element::Raw) + 15) & ~(u64)15;
                if (step.kind & RECEIVES) inbox += bytes;
                if (step.kind & SENDS) outbox += bytes;
                work = work_of<Element>(block, step, index, tile, inbox, outbox);
            }
            __syncthreads();
            signal_all(block, step, round, at);
        }
    }
    if (threadIdx.x == 0) *(u64 *)block.epoch = epoch + 1;
}

#define KERNEL(name, Element) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const Block *blocks) { run<Element>(blocks); }

KERNEL(antiphon_f32, F32)
KERNEL(antiphon_f64, F64)
KERNEL(antiphon_i32, I32)
KERNEL(antiphon_i64, I64)
KERNEL(antiphon_u8, U8)
KERNEL(antiphon_f16, F16)
KERNEL(antiphon_bf16, BF16)
