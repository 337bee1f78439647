/* What the tests of libantiphon_mpi share. Every result is compared with a few plain lines that say what it must be, so the
 * same program also tests MPI alone. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The same tests with large counts, which came with MPI 4. */
#ifdef LARGE_COUNTS
typedef MPI_Count count_t;
typedef MPI_Aint offset_t;
#define MPI_Allreduce MPI_Allreduce_c
#define MPI_Iallreduce MPI_Iallreduce_c
#define MPI_Allgather MPI_Allgather_c
#define MPI_Iallgather MPI_Iallgather_c
#define MPI_Reduce_scatter MPI_Reduce_scatter_c
#define MPI_Ireduce_scatter MPI_Ireduce_scatter_c
#define MPI_Reduce_scatter_block MPI_Reduce_scatter_block_c
#define MPI_Ireduce_scatter_block MPI_Ireduce_scatter_block_c
#define MPI_Alltoall MPI_Alltoall_c
#define MPI_Ialltoall MPI_Ialltoall_c
#define MPI_Alltoallv MPI_Alltoallv_c
#define MPI_Ialltoallv MPI_Ialltoallv_c
#define MPI_Bcast MPI_Bcast_c
#define MPI_Ibcast MPI_Ibcast_c
#define MPI_Reduce MPI_Reduce_c
#define MPI_Ireduce MPI_Ireduce_c
#define MPI_Gather MPI_Gather_c
#define MPI_Igather MPI_Igather_c
#define MPI_Scatter MPI_Scatter_c
#define MPI_Iscatter MPI_Iscatter_c
#else
typedef int count_t;
typedef int offset_t;
#endif

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

/* A call, or its twin that begins it. */
#define EITHER(begun, call, start) \
    do { \
        MPI_Request request; \
        if (begun) { \
            OK(start); \
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE)); \
            CHECK(request == MPI_REQUEST_NULL); \
        } else { \
            OK(call); \
        } \
    } while (0)

static inline int rank_of(MPI_Comm comm) {
    int rank;
    OK(MPI_Comm_rank(comm, &rank));
    return rank;
}

static inline int size_of(MPI_Comm comm) {
    int size;
    OK(MPI_Comm_size(comm, &size));
    return size;
}

/* Some calls are left out where MPI alone fails. */
static inline int is_preloaded(void) {
    const char *library = getenv("LD_PRELOAD");
    return library && *library;
}

/* What a rank has at a place. */
static inline long value(int rank, long at) {
    return 1 + (rank * 7 + at * 3) % 11;
}

static inline long *longs(size_t count) {
    long *made = malloc((count + 1) * sizeof *made);
    CHECK(made);
    for (size_t at = 0; at <= count; at++) made[at] = -1;
    return made;
}

void reductions(MPI_Comm comm);
void moves(MPI_Comm comm);
void requests(MPI_Comm comm);
void progress(void);
void communicators(void (*tests)(MPI_Comm));
void errors(void);
void threads(void);
void choices(MPI_Comm comm);
void tables(MPI_Comm comm);

#endif
