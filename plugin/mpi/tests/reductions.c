/* All reductions, of types and operations that libantiphon has and of others. */
#include "check.h"

enum type { INT, LONG, LONGLONG, FLOAT, DOUBLE, UCHAR, SCHAR, SHORT, UNSIGNED, INT32, INT64, UINT8, LDOUBLE, TYPES };
enum op { SUM, PROD, MIN, MAX, BAND, OWN, OPS };

static MPI_Datatype type_of(enum type type) {
    MPI_Datatype types[TYPES] = {MPI_INT,         MPI_LONG,  MPI_LONG_LONG, MPI_FLOAT,   MPI_DOUBLE,  MPI_UNSIGNED_CHAR,
                                 MPI_SIGNED_CHAR, MPI_SHORT, MPI_UNSIGNED,  MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T,
                                 MPI_LONG_DOUBLE};
    return types[type];
}

#define FOR_TYPE(type, DO) \
    switch (type) { \
    case INT: case INT32: DO(int) break; \
    case LONG: case INT64: DO(long) break; \
    case LONGLONG: DO(long long) break; \
    case FLOAT: DO(float) break; \
    case DOUBLE: DO(double) break; \
    case UCHAR: case UINT8: DO(unsigned char) break; \
    case SCHAR: DO(signed char) break; \
    case SHORT: DO(short) break; \
    case UNSIGNED: DO(unsigned) break; \
    default: DO(long double) break; \
    }

static void put(void *buffer, enum type type, long at, long what) {
#define PUT(of) ((of *)buffer)[at] = (of)what;
    FOR_TYPE(type, PUT)
}

static long get(const void *buffer, enum type type, long at) {
    long what = 0;
#define GET(of) what = (long)((const of *)buffer)[at];
    FOR_TYPE(type, GET)
    return what;
}

static long combined(enum op op, int ranks, long at) {
    long all = value(0, at);
    for (int rank = 1; rank < ranks; rank++) {
        long next = value(rank, at);
        all = op == SUM || op == OWN ? all + next : op == PROD ? all * next : op == BAND ? all & next
            : (op == MIN) == (next < all) ? next : all;
    }
    return all;
}

static void own_sum(void *in, void *inout, int *count, MPI_Datatype *type) {
    for (int at = 0; at < *count; at++)
        for (int kind = 0; kind < TYPES; kind++)
            if (*type == type_of((enum type)kind)) {
                put(inout, (enum type)kind, at, get(inout, (enum type)kind, at) + get(in, (enum type)kind, at));
                break;
            }
}

/* As the type would have it. */
static int is_right(const void *buffer, enum type type, long at, enum op op, int ranks, long from) {
    char room[32];
    put(room, type, 0, combined(op, ranks, from));
    return get(buffer, type, at) == get(room, type, 0);
}

static void fill(void *buffer, enum type type, long count, int rank) {
    for (long at = 0; at < count; at++) put(buffer, type, at, value(rank, at));
}

/* MPICH 4.0 crashes in a long MPI_Reduce in place, and in MPI_Reduce_scatter of unequal blocks in place. */
static int can_be_in_place(enum type kind, enum op op, int count) {
#ifdef OPEN_MPI
    (void)kind, (void)op, (void)count;
    return 1;
#else
    return count < 200 || (is_preloaded() && op <= MAX && kind <= UCHAR);
#endif
}

static void to_all(MPI_Comm comm, enum type kind, enum op op, MPI_Op how, int count, int begun) {
    int rank = rank_of(comm), ranks = size_of(comm);
    MPI_Datatype type = type_of(kind);
    char *in = malloc((size_t)count * 16), *out = malloc((size_t)count * 16);
    fill(in, kind, count, rank);
    EITHER(begun, MPI_Allreduce(in, out, count, type, how, comm), MPI_Iallreduce(in, out, count, type, how, comm, &request));
    for (long at = 0; at < count; at++) {
        CHECK(is_right(out, kind, at, op, ranks, at));
        CHECK(get(in, kind, at) == value(rank, at));
    }
    EITHER(begun, MPI_Allreduce(MPI_IN_PLACE, in, count, type, how, comm),
           MPI_Iallreduce(MPI_IN_PLACE, in, count, type, how, comm, &request));
    for (long at = 0; at < count; at++) CHECK(is_right(in, kind, at, op, ranks, at));
    free(in);
    free(out);
}

static void to_root(MPI_Comm comm, enum type kind, enum op op, MPI_Op how, int count, int begun, int root) {
    int rank = rank_of(comm), ranks = size_of(comm), is_root = rank == root;
    MPI_Datatype type = type_of(kind);
    char *in = malloc((size_t)count * 16), *out = is_root ? malloc((size_t)count * 16) : NULL;
    fill(in, kind, count, rank);
    /* What other ranks receive into does not matter. */
    EITHER(begun, MPI_Reduce(in, is_root ? out : in, count, type, how, root, comm),
           MPI_Ireduce(in, is_root ? out : in, count, type, how, root, comm, &request));
    for (long at = 0; at < count && is_root; at++) CHECK(is_right(out, kind, at, op, ranks, at));
    int in_place = can_be_in_place(kind, op, count);
    if (in_place)
        EITHER(begun, MPI_Reduce(is_root ? MPI_IN_PLACE : in, is_root ? in : NULL, count, type, how, root, comm),
               MPI_Ireduce(is_root ? MPI_IN_PLACE : in, is_root ? in : NULL, count, type, how, root, comm, &request));
    for (long at = 0; at < count && is_root && in_place; at++) CHECK(is_right(in, kind, at, op, ranks, at));
    free(in);
    free(out);
}

static void scattered(MPI_Comm comm, enum type kind, enum op op, MPI_Op how, int count, int begun) {
    int rank = rank_of(comm), ranks = size_of(comm);
    count_t counts[64];
    MPI_Datatype type = type_of(kind);
    for (int variant = 0; variant < 6; variant++) {
        int is_block = variant < 2, is_unequal = variant >= 4, in_place = variant % 2;
        long first = 0, all = 0;
        if (is_unequal && in_place && !can_be_in_place(kind, OPS, count)) continue;
        for (int at = 0; at < ranks; at++) {
            counts[at] = count + (is_unequal ? at : 0);
            if (at < rank) first += counts[at];
            all += counts[at];
        }
        char *in = malloc((size_t)all * 16), *out = in_place ? in : malloc((size_t)counts[rank] * 16);
        void *from = in_place ? MPI_IN_PLACE : in;
        fill(in, kind, all, rank);
        if (is_block)
            EITHER(begun, MPI_Reduce_scatter_block(from, out, count, type, how, comm),
                   MPI_Ireduce_scatter_block(from, out, count, type, how, comm, &request));
        else
            EITHER(begun, MPI_Reduce_scatter(from, out, counts, type, how, comm),
                   MPI_Ireduce_scatter(from, out, counts, type, how, comm, &request));
        for (long at = 0; at < counts[rank]; at++) CHECK(is_right(out, kind, at, op, ranks, first + at));
        free(in);
        if (!in_place) free(out);
    }
}

static void places(MPI_Comm comm, int begun) {
    struct { double value; int rank; } in = {value(rank_of(comm), 5), rank_of(comm)}, out;
    EITHER(begun, MPI_Allreduce(&in, &out, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm),
           MPI_Iallreduce(&in, &out, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm, &request));
    CHECK(out.value == combined(MAX, size_of(comm), 5) && value(out.rank, 5) == (long)out.value);
}

void reductions(MPI_Comm comm) {
    static const int counts[] = {1, 2, 5, 1000, 30011};
    MPI_Op own, ops[OPS] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND};
    OK(MPI_Op_create(own_sum, 1, &own));
    ops[OWN] = own;
    for (int type = 0; type < TYPES; type++)
        for (int op = 0; op < OPS; op++)
            for (int index = 0; index < 5; index++) {
                int is_real = type == FLOAT || type == DOUBLE || type == LDOUBLE;
                /* A float holds whole numbers below 2^24; signed characters overflow as they like. */
                if ((op == BAND && is_real) || (type == SCHAR && op == PROD)) continue;
                if (counts[index] > 1000 && type != DOUBLE && type != INT && type != UCHAR) continue;
                int begun = (type + op + index) % 2;
                to_all(comm, type, op, ops[op], counts[index], begun);
                to_root(comm, type, op, ops[op], counts[index], begun, (type + index) % size_of(comm));
                scattered(comm, type, op, ops[op], counts[index], begun);
            }
    places(comm, 0);
    places(comm, 1);
    for (int begun = 0; begun < 2; begun++)
        EITHER(begun, MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, comm),
               MPI_Iallreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, comm, &request));
    OK(MPI_Op_free(&own));
}
