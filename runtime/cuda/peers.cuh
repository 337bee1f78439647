// Kernels whose ranks work on each other's registered buffers, with no messages: block `part` of each rank meets the blocks `part`
// of all peers when a call begins, and again when it ends.
//
// * At the beginning: every rank is in the call, so its input is there, and its output is no longer used by what came before.
// * At the end: every rank has read what it needs of its peers, and has put what they need of it.
//
// So no rank can begin the next call, or change its input, while a peer still reads. The flags only grow: call number `epoch` raises
// them to 2 * epoch + 1 and then to 2 * epoch + 2. Each block counts its own calls in device memory, so a CUDA graph may repeat a
// launch. All blocks of all ranks must be resident at the same time.
//
// The structures are those of runtime/src/device/peers.rs.

#include "elements.cuh"
#include "flags.cuh"

#define MOST_RANKS 8u

// What a rank sees of another one, or of itself.
struct Peer {
    u64 input, output;
    u64 flags;  // for each part and each rank, a word (u64) that the rank raises
};

// What a block of the grid does.
struct Block {
    Peer peers[MOST_RANKS];
    u64 scratch;        // one-shot in place: where results lie until all peers have read the input; otherwise 0
    u64 epoch;          // how many calls this block has finished; only this block uses it
    u64 abort;          // the abort word (u32), in memory of the host
    u64 reports;        // for each rank, where a block says at which meeting it waited in vain for this rank (u64)
    u64 poll_limit;     // how often one wait may poll
    u64 count;          // elements
    u32 rank, ranks;
    u32 part;           // which of the blocks of its rank it is
    u32 share, shares;  // which elements it works on
    u32 operation;
    u32 divisor;        // of averages: the number of ranks; otherwise 0
    u32 is_aligned;     // all buffers begin at multiples of 16 bytes
    u32 is_two_shot;
    u32 unused;
};

enum Meeting { BEGIN = 1, END = 2 };

__device__ __forceinline__ u64 flag_of(const Block &block, u32 owner, u32 from) {
    return block.peers[owner].flags + ((u64)block.part * MOST_RANKS + from) * 8;
}

// One thread signals one peer, and waits for it. What all threads have done before a barrier before the meeting happens before what
// the peers do after it. False: the call is aborted.
__device__ __forceinline__ bool meet(const Block &block, u32 *stop, u64 epoch, Meeting meeting) {
    const u64 target = 2 * epoch + meeting;
    // There may be fewer threads than peers.
    for (u32 peer = threadIdx.x; peer < block.ranks; peer += blockDim.x) {
        if (peer != block.rank) release_to_system(flag_of(block, peer, block.rank), target);
    }
    for (u32 peer = threadIdx.x; peer < block.ranks; peer += blockDim.x) {
        if (peer != block.rank && !wait_for<true>(block, flag_of(block, block.rank, peer), target)) {
            stop[peer] = 1;
            ((u64 *)block.reports)[peer] = meeting;
        }
    }
    __syncthreads();
    u32 stops = 0;
    #pragma unroll
    for (u32 peer = 0; peer < MOST_RANKS; peer++) stops |= stop[peer];
    return stops == 0;
}

// Some of the elements: whole vectors first, then elements one by one.
struct Range {
    u64 vector, vectors_end;
    u64 element, elements_end;
};

// The share of a block. It begins at a vector; only the last share ends between vectors.
template <typename Element>
__device__ __forceinline__ Range range_of(const Block &block) {
    const u32 lanes = 16 / sizeof(typename Element::Raw);
    u64 vectors = (block.count + lanes - 1) / lanes;
    Range range;
    range.vector = cut(vectors, block.share, block.shares);
    u64 end = cut(vectors, block.share + 1, block.shares) * lanes;
    range.elements_end = end < block.count ? end : block.count;
    range.vectors_end = block.is_aligned ? range.elements_end / lanes : range.vector;
    range.element = range.vectors_end * lanes;
    return range;
}

// A call of one block. `work` is what lies between the two meetings, `rest` what follows them.
template <typename Work>
__device__ __forceinline__ void call(const Block *blocks) {
    // In shared memory, where it takes no registers.
    __shared__ Block block;
    __shared__ u64 epoch;
    __shared__ u32 stop[MOST_RANKS];
    for (u32 word = threadIdx.x; word < sizeof(Block) / 8; word += blockDim.x) {
        ((u64 *)&block)[word] = ((const u64 *)&blocks[blockIdx.x])[word];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        epoch = *(const u64 *)block.epoch;
        #pragma unroll
        for (u32 peer = 0; peer < MOST_RANKS; peer++) stop[peer] = 0;
        // No thread waits for its own rank, so this word does not change any more.
        stop[block.rank] = is_aborted(block.abort);
    }
    __syncthreads();
    if (stop[block.rank]) return;
    if (!meet(block, stop, epoch, BEGIN)) return;
    Work::work(block);
    __syncthreads();
    if (!meet(block, stop, epoch, END)) return;
    Work::rest(block);
    if (threadIdx.x == 0) *(u64 *)block.epoch = epoch + 1;
}
