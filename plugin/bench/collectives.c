/* The time of each collective, as the OSU benchmarks take it, for libantiphon or, with -DUSE_MPI, for MPI.
 *
 *   collectives COLLECTIVES SIZES     both lists with commas; rank 0 prints lines: collective, bytes, microseconds
 *
 * A size is that of `count` elements: a vector, or one rank's block where there are blocks. A collective in which every
 * rank waits for all is called back to back. In one with a root, a rank may be done while the others are not, and would
 * begin the next call early: so every call is timed by itself, and a barrier that is not timed comes before the next
 * one. The time is the mean of all ranks' times. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BARRIER, BROADCAST, REDUCE, GATHER, SCATTER, KINDS };
enum { BATCHES = 9, BATCH_MICROSECONDS = 20000 };

static const char *const names[KINDS] = {"allreduce", "allgather", "reduce_scatter_block", "alltoall", "barrier",
                                         "broadcast", "reduce",    "gather",               "scatter"};

#ifdef USE_MPI
#include <mpi.h>
#define WORLD MPI_COMM_WORLD
static void begin(int *rank, int *ranks) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(WORLD, rank);
    MPI_Comm_size(WORLD, ranks);
}
static void call(enum kind kind, double *send, double *recv, size_t elements) {
    int count = (int)elements;
    switch (kind) {
    case ALLREDUCE: MPI_Allreduce(send, recv, count, MPI_DOUBLE, MPI_SUM, WORLD); break;
    case ALLGATHER: MPI_Allgather(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(send, recv, count, MPI_DOUBLE, MPI_SUM, WORLD); break;
    case ALLTOALL: MPI_Alltoall(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, WORLD); break;
    case BROADCAST: MPI_Bcast(send, count, MPI_DOUBLE, 0, WORLD); break;
    case REDUCE: MPI_Reduce(send, recv, count, MPI_DOUBLE, MPI_SUM, 0, WORLD); break;
    case GATHER: MPI_Gather(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, 0, WORLD); break;
    case SCATTER: MPI_Scatter(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, 0, WORLD); break;
    default: MPI_Barrier(WORLD);
    }
}
static void end(void) { MPI_Finalize(); }
#else
#include <antiphon.h>
static antiphon_comm_t comm;
static void check(antiphon_result_t result) {
    if (result == ANTIPHON_SUCCESS) return;
    fprintf(stderr, "%s\n", antiphon_last_error());
    exit(1);
}
static void begin(int *rank, int *ranks) {
    check(antiphon_comm_from_env(&comm));
    check(antiphon_comm_rank(comm, rank));
    check(antiphon_comm_size(comm, ranks));
}
static void call(enum kind kind, double *send, double *recv, size_t count) {
    switch (kind) {
    case ALLREDUCE: check(antiphon_all_reduce(send, recv, count, ANTIPHON_F64, ANTIPHON_SUM, comm)); break;
    case ALLGATHER: check(antiphon_all_gather(send, recv, count, ANTIPHON_F64, comm)); break;
    case REDUCE_SCATTER: check(antiphon_reduce_scatter(send, recv, count, ANTIPHON_F64, ANTIPHON_SUM, comm)); break;
    case ALLTOALL: check(antiphon_all_to_all(send, recv, count, ANTIPHON_F64, comm)); break;
    case BROADCAST: check(antiphon_broadcast(send, count, ANTIPHON_F64, 0, comm)); break;
    case REDUCE: check(antiphon_reduce(send, recv, count, ANTIPHON_F64, ANTIPHON_SUM, 0, comm)); break;
    case GATHER: check(antiphon_gather(send, recv, count, ANTIPHON_F64, 0, comm)); break;
    case SCATTER: check(antiphon_scatter(send, recv, count, ANTIPHON_F64, 0, comm)); break;
    default: check(antiphon_barrier(comm));
    }
}
static void end(void) { check(antiphon_comm_free(&comm)); }
#endif

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* Microseconds of a call, of this rank. */
static double batch(enum kind kind, double *send, double *recv, size_t count, long calls) {
    double total = 0, start = now();
    if (kind < BROADCAST) {
        for (long trial = 0; trial < calls; trial++) call(kind, send, recv, count);
        total = now() - start;
    } else {
        for (long trial = 0; trial < calls; trial++) {
            start = now();
            call(kind, send, recv, count);
            total += now() - start;
            call(BARRIER, NULL, NULL, 0);
        }
    }
    return total / (double)calls;
}

/* The mean of what the ranks have measured: all get the same, so that all make as many calls. */
static double mean(double own, int ranks) {
    double sum = 0;
    call(ALLREDUCE, &own, &sum, 1);
    return sum / ranks;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of nine batches says more than a mean on a computer that does other work. */
static double measured(enum kind kind, size_t count, int ranks) {
    size_t most = (count ? count : 1) * (size_t)ranks;
    double *send = calloc(most, sizeof *send), *recv = calloc(most, sizeof *recv), batches[BATCHES];
    if (!send || !recv) exit(1);
    batch(kind, send, recv, count, 3);
    double start = now();
    batch(kind, send, recv, count, 3);
    /* With the barriers. */
    double each = mean((now() - start) / 3, ranks);
    long calls = (long)(BATCH_MICROSECONDS / (each < 0.2 ? 0.2 : each)) + 1;
    for (int at = 0; at < BATCHES; at++) batches[at] = mean(batch(kind, send, recv, count, calls), ranks);
    qsort(batches, BATCHES, sizeof *batches, by_size);
    free(send);
    free(recv);
    return batches[BATCHES / 2];
}

static bool is_listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
    }
    return false;
}

int main(int argc, char **argv) {
    int rank, ranks;
    if (argc != 3) return 2;
    begin(&rank, &ranks);
    for (int kind = 0; kind < KINDS; kind++) {
        if (!is_listed(argv[1], names[kind])) continue;
        char *next = argv[2];
        while (*next) {
            size_t bytes = strtoull(next, &next, 10);
            next += *next == ',';
            double time = measured(kind, kind == BARRIER ? 0 : bytes / sizeof(double), ranks);
            if (rank == 0) printf("%s %zu %.3f\n", names[kind], kind == BARRIER ? 0 : bytes, time);
            if (kind == BARRIER) break;
        }
    }
    end();
    return 0;
}
