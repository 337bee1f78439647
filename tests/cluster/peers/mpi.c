/* Times collectives of MPI as `antiphon run` does: every repetition starts at a moment that rank 0 announces, and takes
 * from the first start to the last end of any rank. All ranks must be on one computer, whose clock they share. Buffers are
 * filled before every repetition, and results checked after the first and the last; what is wrong ends the job.
 *
 *   mpirun -n N ./mpi SECONDS COLLECTIVE:BYTES ...
 *
 * Each measurement repeats for about SECONDS, and prints one line of JSON with its median in microseconds.
 */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST = 3, MOST = 2000, LEAD = 1000, AWAKE = 300 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

/* Waits for a moment in µs; the last of it without sleeping, because waking up takes that long. */
static void wait_until(double moment) {
    for (double left; (left = moment - now()) > 0;) {
        if (left > AWAKE) {
            struct timespec pause = {0, (long)((left - AWAKE) * 1e3)};
            if (left > 1e6) pause = (struct timespec){1, 0};
            nanosleep(&pause, NULL);
        } else {
            sched_yield();
        }
    }
}

static void call(const char *collective, float *in, float *out, int count, int ranks) {
    MPI_Comm world = MPI_COMM_WORLD;
    if (!strcmp(collective, "allreduce")) {
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, world);
    } else if (!strcmp(collective, "allgather")) {
        MPI_Allgather(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, world);
    } else if (!strcmp(collective, "reducescatter")) {
        int counts[1024];
        for (int rank = 0; rank < ranks; rank++) counts[rank] = count / ranks;
        MPI_Reduce_scatter(in, out, counts, MPI_FLOAT, MPI_SUM, world);
    } else if (!strcmp(collective, "alltoall")) {
        MPI_Alltoall(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, world);
    } else if (!strcmp(collective, "broadcast")) {
        MPI_Bcast(in, count, MPI_FLOAT, 0, world);
    } else {
        fprintf(stderr, "no collective is called %s\n", collective);
        MPI_Abort(world, 2);
    }
}

/* A small whole number, so that sums are exact. */
static float value(int rank, int index) { return (float)((index + 3 * rank) & 63); }

/* What is sent; a broadcast works in place, and only rank 0 has anything. */
static void fill(const char *collective, float *in, float *out, int count, int rank) {
    int mine = strcmp(collective, "broadcast") ? rank : 0;
    for (int index = 0; index < count; index++) in[index] = rank == mine ? value(mine, index) : -1;
    for (int index = 0; index < count; index++) out[index] = -1;
}

/* The element of the result, by the definition of the collective. */
static float expected(const char *collective, int index, int count, int rank, int ranks) {
    int part = count / ranks, block = part ? index / part : 0, at = part ? index % part : 0;
    float sum = 0;
    if (!strcmp(collective, "broadcast")) return value(0, index);
    if (!strcmp(collective, "allgather")) return value(block, at);
    if (!strcmp(collective, "alltoall")) return value(block, rank * part + at);
    int place = strcmp(collective, "reducescatter") ? index : rank * part + index;
    for (int other = 0; other < ranks; other++) sum += value(other, place);
    return sum;
}

static void check(const char *collective, const float *in, const float *out, int count, int rank, int ranks) {
    const float *result = strcmp(collective, "broadcast") ? out : in;
    int length = strcmp(collective, "reducescatter") ? count : count / ranks;
    for (int index = 0; index < length; index++) {
        if (result[index] == expected(collective, index, count, rank, ranks)) continue;
        fprintf(stderr, "%s: element %d of rank %d is %g\n", collective, index, rank, result[index]);
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
}

/* The global span of one repetition, on rank 0. */
static double span(const char *collective, float *in, float *out, int count, int rank, int ranks) {
    fill(collective, in, out, count, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double moment = now() + LEAD, edges[2], all[2];
    MPI_Bcast(&moment, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    wait_until(moment);
    edges[0] = -now();
    call(collective, in, out, count, ranks);
    edges[1] = now();
    MPI_Reduce(edges, all, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return all[0] + all[1];
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3 || ranks > 1024) MPI_Abort(MPI_COMM_WORLD, 2);
    double seconds = atof(argv[1]);
    static double times[MOST];
    for (int cell = 2; cell < argc; cell++) {
        char *collective = strdup(argv[cell]), *colon = strchr(collective, ':');
        if (!colon) MPI_Abort(MPI_COMM_WORLD, 2);
        *colon = 0;
        int count = (int)(atol(colon + 1) / 4 / ranks * ranks);
        float *in = malloc(4L * count + 4), *out = malloc(4L * count + 4);
        if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 3);
        double first = span(collective, in, out, count, rank, ranks);
        check(collective, in, out, count, rank, ranks);
        int turns = (int)(seconds * 1e6 / (first + LEAD));
        /* Less than a tenth of a second asks which is faster, and not how fast. */
        int least = seconds < 0.1 ? 1 : LEAST;
        turns = turns < least ? least : turns > MOST ? MOST : turns;
        MPI_Bcast(&turns, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int turn = 0; turn < turns; turn++) times[turn] = span(collective, in, out, count, rank, ranks);
        check(collective, in, out, count, rank, ranks);
        if (rank == 0) {
            qsort(times, turns, sizeof *times, ascending);
            printf("{\"collective\": \"%s\", \"size_bytes\": %ld, \"time_us\": %.1f}\n", collective,
                   atol(colon + 1), times[turns / 2]);
            fflush(stdout);
        }
        free(in), free(out), free(collective);
    }
    return MPI_Finalize();
}
