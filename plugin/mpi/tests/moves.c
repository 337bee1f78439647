/* All collectives that move data. Ranks describe the same data by different types, and in place where MPI allows it. */
#include "check.h"

/* How pairs of longs lie in memory. */
struct layout {
    MPI_Datatype type;
    int each;   /* longs in an element */
    int stride; /* from one long to the next */
    int is_turned;
    int is_derived;
};

enum { LAYOUTS = 4 };

static struct layout layout_of(int number) {
    struct layout layout = {MPI_LONG, 1, 1, 0, number % LAYOUTS != 0};
    int turned[] = {1, 0};
    switch (number % LAYOUTS) {
    case 1: /* gaps */
        layout.stride = 2;
        OK(MPI_Type_create_resized(MPI_LONG, 0, 2 * sizeof(long), &layout.type));
        break;
    case 2: /* no gaps, but another order */
        layout.each = 2;
        layout.is_turned = 1;
        OK(MPI_Type_create_indexed_block(2, 1, turned, MPI_LONG, &layout.type));
        break;
    case 3:
        layout.each = 2;
        OK(MPI_Type_contiguous(2, MPI_LONG, &layout.type));
        break;
    default: return layout;
    }
    OK(MPI_Type_commit(&layout.type));
    return layout;
}

static void drop(struct layout *layout) {
    if (layout->is_derived) OK(MPI_Type_free(&layout->type));
}

static long at(struct layout layout, long index) {
    return (layout.is_turned ? index ^ 1 : index) * layout.stride;
}

/* What one rank has for another. */
static long item(int from, int to, long index) {
    return from * 1000003L + to * 1009 + index;
}

static void give(long *buffer, struct layout layout, long block, long count, int from, int to) {
    for (long index = 0; index < count; index++) buffer[at(layout, block * count + index)] = item(from, to, index);
}

static void has(const long *buffer, struct layout layout, long block, long count, int from, int to) {
    for (long index = 0; index < count; index++)
        CHECK(buffer[at(layout, block * count + index)] == item(from, to, index));
}

/* Nobody has written between the data. */
static void is_clean(const long *buffer, struct layout layout, long count) {
    for (long index = 0; index < count && layout.stride > 1; index++) CHECK(buffer[index * layout.stride + 1] == -1);
}

static void bcast(MPI_Comm comm, int longs_each, int begun, int root) {
    struct layout layout = layout_of(rank_of(comm) + begun);
    long *buffer = longs((size_t)longs_each * 2);
    int count = longs_each / layout.each;
    if (rank_of(comm) == root) give(buffer, layout, 0, longs_each, root, 0);
    EITHER(begun, MPI_Bcast(buffer, count, layout.type, root, comm),
           MPI_Ibcast(buffer, count, layout.type, root, comm, &request));
    has(buffer, layout, 0, longs_each, root, 0);
    is_clean(buffer, layout, longs_each);
    drop(&layout);
    free(buffer);
}

static void gather(MPI_Comm comm, int each, int begun, int root, int in_place) {
    int rank = rank_of(comm), ranks = size_of(comm), is_root = rank == root;
    struct layout in = layout_of(rank + 1), out = layout_of(root + each);
    long *send = longs((size_t)each * 2), *recv = is_root ? longs((size_t)each * ranks * 2) : NULL;
    give(send, in, 0, each, rank, 0);
    void *from = send;
    if (is_root && in_place) {
        give(recv, out, rank, each, rank, 0);
        from = MPI_IN_PLACE;
    }
    /* What the others say of the received blocks does not matter. */
    int count = each / in.each, rcount = is_root ? each / out.each : -7;
    EITHER(begun, MPI_Gather(from, count, in.type, recv, rcount, out.type, root, comm),
           MPI_Igather(from, count, in.type, recv, rcount, out.type, root, comm, &request));
    for (int source = 0; source < ranks && is_root; source++) has(recv, out, source, each, source, 0);
    if (is_root) is_clean(recv, out, (long)each * ranks);
    drop(&in);
    drop(&out);
    free(send);
    free(recv);
}

static void scatter(MPI_Comm comm, int each, int begun, int root, int in_place) {
    int rank = rank_of(comm), ranks = size_of(comm), is_root = rank == root;
    struct layout in = layout_of(root + each), out = layout_of(rank + 1);
    long *send = is_root ? longs((size_t)each * ranks * 2) : NULL, *recv = longs((size_t)each * 2);
    for (int to = 0; to < ranks && is_root; to++) give(send, in, to, each, root, to);
    void *into = is_root && in_place ? MPI_IN_PLACE : recv;
    int count = is_root ? each / in.each : -7, rcount = each / out.each;
    EITHER(begun, MPI_Scatter(send, count, in.type, into, rcount, out.type, root, comm),
           MPI_Iscatter(send, count, in.type, into, rcount, out.type, root, comm, &request));
    if (into == recv) has(recv, out, 0, each, root, rank);
    for (int to = 0; to < ranks && is_root; to++) has(send, in, to, each, root, to);
    drop(&in);
    drop(&out);
    free(send);
    free(recv);
}

static void allgather(MPI_Comm comm, int each, int begun, int in_place) {
    int rank = rank_of(comm), ranks = size_of(comm);
    struct layout in = layout_of(rank), out = layout_of(rank + each);
    long *send = longs((size_t)each * 2), *recv = longs((size_t)each * ranks * 2);
    give(in_place ? recv : send, in_place ? out : in, in_place ? rank : 0, each, rank, 0);
    void *from = in_place ? MPI_IN_PLACE : send;
    int count = each / in.each, rcount = each / out.each;
    EITHER(begun, MPI_Allgather(from, count, in.type, recv, rcount, out.type, comm),
           MPI_Iallgather(from, count, in.type, recv, rcount, out.type, comm, &request));
    for (int source = 0; source < ranks; source++) has(recv, out, source, each, source, 0);
    is_clean(recv, out, (long)each * ranks);
    drop(&in);
    drop(&out);
    free(send);
    free(recv);
}

static void alltoall(MPI_Comm comm, int each, int begun, int in_place) {
    int rank = rank_of(comm), ranks = size_of(comm);
    struct layout in = layout_of(rank), out = layout_of(rank + each);
    long *send = longs((size_t)each * ranks * 2), *recv = longs((size_t)each * ranks * 2);
    for (int to = 0; to < ranks; to++)
        give(in_place ? recv : send, in_place ? out : in, to, each, rank, to);
    void *from = in_place ? MPI_IN_PLACE : send;
    int count = each / in.each, rcount = each / out.each;
    EITHER(begun, MPI_Alltoall(from, count, in.type, recv, rcount, out.type, comm),
           MPI_Ialltoall(from, count, in.type, recv, rcount, out.type, comm, &request));
    for (int source = 0; source < ranks; source++) has(recv, out, source, each, source, rank);
    is_clean(recv, out, (long)each * ranks);
    drop(&in);
    drop(&out);
    free(send);
    free(recv);
}

/* Between two ranks go (a + b) % 3 times `each` longs both ways; the blocks lie in the opposite order, with gaps of one block.
 * With `is_below`, offsets are counted from the end of the buffer. */
static void alltoallv(MPI_Comm comm, int each, int begun, int in_place, int is_below) {
    int rank = rank_of(comm), ranks = size_of(comm);
    struct layout in = layout_of(rank), out = layout_of(rank + 1);
    count_t counts[64], rcounts[64];
    offset_t offsets[64], roffsets[64];
    long room = (long)each * 4 * ranks;
    long *send = longs((size_t)room * 2), *recv = longs((size_t)room * 2);
    for (int peer = 0; peer < ranks; peer++) {
        int length = each * ((rank + peer) % 3), begin = each * 4 * (ranks - 1 - peer);
        counts[peer] = length / in.each;
        rcounts[peer] = length / out.each;
        offsets[peer] = (begin - (is_below ? (int)room : 0)) / in.each;
        roffsets[peer] = (begin - (is_below ? (int)room : 0)) / out.each;
        for (long index = 0; index < length; index++) {
            if (in_place) recv[at(out, begin + index)] = item(rank, peer, index);
            else send[at(in, begin + index)] = item(rank, peer, index);
        }
    }
    void *from = in_place ? MPI_IN_PLACE : (void *)(send + (is_below ? room * in.stride : 0));
    long *into = recv + (is_below ? room * out.stride : 0);
    EITHER(begun, MPI_Alltoallv(from, counts, offsets, in.type, into, rcounts, roffsets, out.type, comm),
           MPI_Ialltoallv(from, counts, offsets, in.type, into, rcounts, roffsets, out.type, comm, &request));
    for (int peer = 0; peer < ranks; peer++) {
        long begin = (long)each * 4 * (ranks - 1 - peer), length = each * ((rank + peer) % 3);
        for (long index = 0; index < each * 4; index++)
            CHECK(recv[at(out, begin + index)] == (index < length ? item(peer, rank, index) : -1));
    }
    is_clean(recv, out, room);
    drop(&in);
    drop(&out);
    free(send);
    free(recv);
}

/* Types that MPI has by itself, of which some have gaps. */
static void predefined(MPI_Comm comm) {
    struct { double value; int place; } pair = {0}, all[64];
    MPI_Datatype types[] = {MPI_CHAR,  MPI_SIGNED_CHAR, MPI_SHORT,       MPI_UNSIGNED_SHORT, MPI_WCHAR,
                            MPI_FLOAT, MPI_C_BOOL,      MPI_LONG_DOUBLE, MPI_UINT64_T,       MPI_2INT};
    int rank = rank_of(comm), ranks = size_of(comm);
    pair.value = rank + 0.5;
    pair.place = rank;
    OK(MPI_Allgather(&pair, 1, MPI_DOUBLE_INT, all, 1, MPI_DOUBLE_INT, comm));
    for (int source = 0; source < ranks; source++) CHECK(all[source].value == source + 0.5 && all[source].place == source);
    for (size_t index = 0; index < sizeof types / sizeof *types; index++) {
        unsigned char in[32] = {0}, out[64 * 32];
        int size;
        OK(MPI_Type_size(types[index], &size));
        for (int byte = 0; byte < size; byte++) in[byte] = (unsigned char)(rank + byte + 1);
        OK(MPI_Allgather(in, 1, types[index], out, 1, types[index], comm));
        for (int byte = 0; byte < size * ranks; byte++) CHECK(out[byte] == (byte / size) + byte % size + 1);
    }
}

void moves(MPI_Comm comm) {
    static const int counts[] = {2, 6, 500, 20000};
    for (int index = 0; index < 4; index++)
        for (int begun = 0; begun < 2; begun++) {
            int each = counts[index], root = (index + begun) % size_of(comm);
            bcast(comm, each, begun, root);
            for (int in_place = 0; in_place < 2; in_place++) {
                gather(comm, each, begun, root, in_place);
                scatter(comm, each, begun, root, in_place);
                allgather(comm, each, begun, in_place);
                alltoall(comm, each, begun, in_place);
                /* Open MPI 4.1 mixes up the blocks of an MPI_Ialltoallv in place if types differ between ranks. */
                if (in_place && begun && (!is_preloaded() || comm != MPI_COMM_WORLD)) continue;
                alltoallv(comm, each, begun, in_place, 0);
                alltoallv(comm, each, begun, in_place, 1);
            }
            EITHER(begun, MPI_Barrier(comm), MPI_Ibarrier(comm, &request));
            EITHER(begun, MPI_Bcast(NULL, 0, MPI_INT, root, comm), MPI_Ibcast(NULL, 0, MPI_INT, root, comm, &request));
        }
    predefined(comm);
}
