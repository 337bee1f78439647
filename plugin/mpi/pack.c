/* The memory of calls that move data.
 *
 * libantiphon moves bytes. Where a type does not lie in memory as its data are sent, the data are packed before the call, and
 * unpacked after it. No other rank needs to know: packed data are the same bytes for all types of the same signature. */
#include "antiphon_mpi.h"
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EVERY = -1, NONE = -2 };

/* How MPI packs, and how many bytes at a time. */
#if MPI_VERSION >= 4
typedef MPI_Count packed_size;
#define PACK PMPI_Pack_c
#define UNPACK PMPI_Unpack_c
#define MOST ((size_t)PTRDIFF_MAX)
#else
typedef int packed_size;
#define PACK PMPI_Pack
#define UNPACK PMPI_Unpack
#define MOST ((size_t)INT_MAX)
#endif

ptrdiff_t antiphon_mpi_at(struct antiphon_mpi_list list, int index) {
    if (list.width == sizeof(int)) return ((const int *)list.values)[index];
    return (ptrdiff_t)((const int64_t *)list.values)[index];
}

static size_t elements(const struct antiphon_mpi_side *side, int block) {
    return side->counts.values ? (size_t)antiphon_mpi_at(side->counts, block) : side->count;
}

size_t antiphon_mpi_block(const struct antiphon_mpi_side *side, int block) {
    return elements(side, block) * side->size;
}

static char *start(const struct antiphon_mpi_side *side, int block) {
    ptrdiff_t at = side->offsets.values ? antiphon_mpi_at(side->offsets, block) : (ptrdiff_t)side->count * block;
    return side->buffer + at * side->extent;
}

/* In pieces of what MPI can count. */
static int convert(const struct antiphon_mpi_side *side, int block, char *packed, bool is_sent) {
    size_t left = elements(side, block);
    if (left == 0 || side->size == 0) return MPI_SUCCESS;
    char *from = start(side, block);
    if (side->is_plain) {
        memcpy(is_sent ? packed : from, is_sent ? from : packed, left * side->size);
        return MPI_SUCCESS;
    }
    if (side->size > MOST) return MPI_ERR_COUNT;
    while (left > 0) {
        size_t most = MOST / side->size, now = left < most ? left : most;
        packed_size bytes = (packed_size)(now * side->size), position = 0;
        MPI_Comm comm = antiphon_mpi_state.comm;
        int code = is_sent ? PACK(from, (packed_size)now, side->type, packed, bytes, &position, comm)
                           : UNPACK(packed, bytes, &position, from, (packed_size)now, side->type, comm);
        if (code != MPI_SUCCESS) return code;
        if (position != bytes) return MPI_ERR_TYPE;
        from += (ptrdiff_t)now * side->extent;
        packed += bytes;
        left -= now;
    }
    return MPI_SUCCESS;
}

static int convert_blocks(const struct antiphon_mpi_side *side, int only, bool is_sent) {
    char *packed = side->packed;
    for (int block = 0; block < side->blocks; block++) {
        int code = only == EVERY || only == block ? convert(side, block, packed, is_sent) : MPI_SUCCESS;
        if (code != MPI_SUCCESS) return code;
        packed += antiphon_mpi_block(side, block);
    }
    return MPI_SUCCESS;
}

/* Makes room for the packed data, and packs all blocks, only one, or none. */
static int pack(struct antiphon_mpi_side *side, int only) {
    size_t bytes = 0;
    for (int block = 0; block < side->blocks; block++) bytes += antiphon_mpi_block(side, block);
    side->packed = calloc(bytes ? bytes : 1, 1);
    if (!side->packed) return MPI_ERR_NO_MEM;
    return convert_blocks(side, only, true);
}

int antiphon_mpi_unpack(struct antiphon_mpi_side *side) {
    return side->packed ? convert_blocks(side, EVERY, false) : MPI_SUCCESS;
}

/* The application may free a type while a call that uses it is under way. */
int antiphon_mpi_keep_type(struct antiphon_mpi_side *side) {
    if (!side->packed || side->is_plain) return MPI_SUCCESS;
    int code = PMPI_Type_dup(side->type, &side->type);
    side->is_ours = code == MPI_SUCCESS;
    return code;
}

void antiphon_mpi_drop(struct antiphon_mpi_call *call) {
    struct antiphon_mpi_side *sides[] = {&call->in, &call->out};
    for (int index = 0; index < 2; index++) {
        free(sides[index]->packed);
        if (sides[index]->is_ours) PMPI_Type_free(&sides[index]->type);
        *sides[index] = (struct antiphon_mpi_side){0};
    }
    free(call->blocks);
    call->blocks = NULL;
}

/* Chooses the memory of a call with equal blocks. In place, one side is both; the other has no blocks. */
static int arrange_equal(struct antiphon_mpi_call *call, const struct antiphon_mpi_group *group) {
    struct antiphon_mpi_side *in = &call->in, *out = &call->out;
    int code = MPI_SUCCESS;
    if (call->in_place) {
        bool is_scatter = call->kind == ANTIPHON_MPI_SCATTER;
        struct antiphon_mpi_side *both = is_scatter ? in : out;
        bool is_whole = is_scatter || call->kind == ANTIPHON_MPI_ALLTOALL;
        if (!both->is_plain) code = pack(both, is_whole ? EVERY : group->rank);
        call->send = call->recv = both->packed ? both->packed : both->buffer;
        return code;
    }
    if (in->blocks && !in->is_plain) code = pack(in, EVERY);
    if (code == MPI_SUCCESS && out->blocks && !out->is_plain) code = pack(out, NONE);
    call->send = in->blocks ? in->packed ? in->packed : in->buffer : NULL;
    call->recv = out->blocks ? out->packed ? out->packed : out->buffer : NULL;
    if (call->kind == ANTIPHON_MPI_BCAST && in->blocks) call->recv = (void *)call->send;
    return code;
}

/* Why a call that moves equal blocks goes to MPI. */
enum antiphon_mpi_reason antiphon_mpi_move(struct antiphon_mpi_call *call, size_t bytes, bool in_place) {
    if (bytes == 0) return ANTIPHON_MPI_EMPTY;
    if (bytes > MOST) return ANTIPHON_MPI_LARGE;
    call->count = bytes;
    /* A function that a table names serves elements of the type that was measured. */
    if (antiphon_mpi_state.has_table && bytes % ANTIPHON_MPI_MEASURED_BYTES == 0) {
        call->count = bytes / ANTIPHON_MPI_MEASURED_BYTES;
        call->dtype = ANTIPHON_MPI_MEASURED;
    }
    call->in_place = in_place;
    return ANTIPHON_MPI_OURS;
}

/* Counts and offsets in bytes, and where they are counted from: MPI allows offsets below zero. */
static char *list(const struct antiphon_mpi_side *side, size_t *counts, size_t *offsets) {
    size_t end = 0;
    ptrdiff_t least = PTRDIFF_MAX;
    for (int block = 0; block < side->blocks; block++) {
        ptrdiff_t at = start(side, block) - side->buffer;
        counts[block] = antiphon_mpi_block(side, block);
        if (counts[block] > 0 && at < least) least = at;
    }
    for (int block = 0; block < side->blocks; block++) {
        ptrdiff_t at = start(side, block) - side->buffer;
        offsets[block] = counts[block] == 0 ? 0 : side->packed ? end : (size_t)(at - least);
        end += counts[block];
    }
    return side->packed ? side->packed : end > 0 ? side->buffer + least : NULL;
}

/* Chooses the memory of an alltoallv. libantiphon has none in place: what is sent is a copy. The caller's arrays are copied,
 * because unpacking needs them after the call has returned. */
static int arrange_unequal(struct antiphon_mpi_call *call, const struct antiphon_mpi_group *group) {
    struct antiphon_mpi_side *in = &call->in, *out = &call->out;
    size_t size = (size_t)group->size, *blocks;
    if (call->in_place) *in = *out;
    blocks = call->blocks = malloc(size * (4 * sizeof *blocks + out->counts.width + out->offsets.width));
    if (!blocks) return MPI_ERR_NO_MEM;
    int code = call->in_place || !in->is_plain ? pack(in, EVERY) : MPI_SUCCESS;
    if (code == MPI_SUCCESS && !out->is_plain) code = pack(out, NONE);
    if (code != MPI_SUCCESS) return code;
    call->send = list(in, blocks, blocks + size);
    call->recv = list(out, blocks + 2 * size, blocks + 3 * size);
    size_t *counts = blocks + 4 * size;
    char *offsets = (char *)counts + size * out->counts.width;
    out->counts.values = memcpy(counts, out->counts.values, size * out->counts.width);
    out->offsets.values = memcpy(offsets, out->offsets.values, size * out->offsets.width);
    return MPI_SUCCESS;
}

/* Chooses the memory of a call that libantiphon makes. */
int antiphon_mpi_arrange(struct antiphon_mpi_call *call, const struct antiphon_mpi_group *group) {
    switch (call->kind) {
    case ANTIPHON_MPI_ALLREDUCE:
    case ANTIPHON_MPI_REDUCE_SCATTER:
    case ANTIPHON_MPI_REDUCE:
    case ANTIPHON_MPI_BARRIER: return MPI_SUCCESS;
    case ANTIPHON_MPI_ALLTOALLV: return arrange_unequal(call, group);
    default: return arrange_equal(call, group);
    }
}
