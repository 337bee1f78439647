/* Times collectives of MPI as `antiphon run` does: every repetition starts at a moment that rank 0 announces, and takes
 * from the first start to the last end of any rank. All ranks must be on one computer, whose clock they share.
 *
 *   mpirun -n N ./mpi SECONDS COLLECTIVE:BYTES ...
 *
 * Each measurement repeats for about SECONDS, and prints one line of JSON with its median in microseconds.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST = 3, MOST = 2000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

/* Waits for a moment in µs; the last 60 µs without sleeping, because waking up takes that long. */
static void wait_until(double moment) {
    for (double left; (left = moment - now()) > 0;) {
        if (left > 60) {
            struct timespec pause = {0, (long)((left - 60) * 1e3)};
            if (left > 1e6) pause = (struct timespec){1, 0};
            nanosleep(&pause, NULL);
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

/* The global span of one repetition, on rank 0. */
static double span(const char *collective, float *in, float *out, int count, int ranks) {
    MPI_Barrier(MPI_COMM_WORLD);
    double moment = now() + 3000, edges[2], all[2];
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
        float *in = calloc(count + 1, 4), *out = calloc(count + 1, 4);
        if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 3);
        double first = span(collective, in, out, count, ranks);
        int turns = (int)(seconds * 1e6 / (first + 3000));
        turns = turns < LEAST ? LEAST : turns > MOST ? MOST : turns;
        MPI_Bcast(&turns, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int turn = 0; turn < turns; turn++) times[turn] = span(collective, in, out, count, ranks);
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
