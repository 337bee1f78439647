/* How much longer the first call of a size takes than the third one, for every collective: rank 0 prints microseconds. With an
 * argument, only how long joining and the first barriers take. */
#include "antiphon.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 3, MOST_RANKS = 64, MOST_BYTES = 4 << 20 };

static const char *const names[] = {"allreduce", "allreduce in place", "allgather", "reducescatter", "alltoall", "alltoallv",
                                    "broadcast", "reduce",             "gather",    "scatter",       "barrier"};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void must(antiphon_result_t result) {
    if (result == ANTIPHON_SUCCESS) return;
    fprintf(stderr, "%s\n", antiphon_last_error());
    exit(1);
}

/* One call of a kind: `count` elements, or `each` for every rank. */
static antiphon_result_t call(antiphon_comm_t comm, int kind, char *in, char *out, size_t count, size_t each, int ranks) {
    size_t counts[MOST_RANKS], offsets[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++) counts[rank] = each, offsets[rank] = each * (size_t)rank;
    switch (kind) {
    case 0: return antiphon_all_reduce(in, out, count, ANTIPHON_F32, ANTIPHON_SUM, comm);
    case 1: return antiphon_all_reduce(in, in, count, ANTIPHON_F32, ANTIPHON_SUM, comm);
    case 2: return antiphon_all_gather(in, out, each, ANTIPHON_F32, comm);
    case 3: return antiphon_reduce_scatter(in, out, each, ANTIPHON_F32, ANTIPHON_SUM, comm);
    case 4: return antiphon_all_to_all(in, out, each, ANTIPHON_F32, comm);
    case 5: return antiphon_all_to_all_v(in, counts, offsets, out, counts, offsets, ANTIPHON_F32, comm);
    case 6: return antiphon_broadcast(in, count, ANTIPHON_F32, 0, comm);
    case 7: return antiphon_reduce(in, out, count, ANTIPHON_F32, ANTIPHON_SUM, 0, comm);
    case 8: return antiphon_gather(in, out, each, ANTIPHON_F32, 0, comm);
    case 9: return antiphon_scatter(in, out, each, ANTIPHON_F32, 0, comm);
    default: return antiphon_barrier(comm);
    }
}

static void first_calls(antiphon_comm_t comm, int rank, int ranks) {
    static const size_t sizes[] = {8, 1 << 10, 64 << 10, MOST_BYTES};
    char *in = malloc(MOST_BYTES * 2), *out = malloc(MOST_BYTES * 2);
    if (!in || !out || ranks > MOST_RANKS) exit(1);
    memset(in, 0, MOST_BYTES * 2);
    memset(out, 0, MOST_BYTES * 2);
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (int kind = 0; kind < (int)(sizeof names / sizeof *names); kind++) {
            size_t count = sizes[size] / 4, each = count / (size_t)ranks ? count / (size_t)ranks : 1;
            double times[CALLS];
            for (int at = 0; at < CALLS; at++) {
                must(antiphon_barrier(comm));
                must(antiphon_barrier(comm));
                double begin = now();
                must(call(comm, kind, in, out, count, each, ranks));
                times[at] = now() - begin;
            }
            if (rank == 0) printf("%10zu B %10.1f %10.1f  %s\n", sizes[size], times[0], times[2], names[kind]);
        }
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    antiphon_comm_t comm;
    int rank, ranks;
    double begin = now();
    (void)argv;
    must(antiphon_comm_from_env(&comm));
    must(antiphon_comm_rank(comm, &rank));
    must(antiphon_comm_size(comm, &ranks));
    double joined = now();
    for (int times = 0; times < 3; times++) must(antiphon_barrier(comm));
    if (rank == 0) printf("%d ranks: joined in %.0f us, three barriers in %.0f us\n", ranks, joined - begin, now() - joined);
    if (argc < 2) first_calls(comm, rank, ranks);
    must(antiphon_comm_free(&comm));
    return 0;
}
