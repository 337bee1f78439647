/* AllReduce back to back, as the OSU benchmarks do: the time of one call, for libantiphon or, with -DUSE_MPI, for MPI. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef USE_MPI
#include <mpi.h>
static void begin(int *rank) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
}
static void call(double *send, double *recv, size_t count) {
    MPI_Allreduce(send, recv, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
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
static void begin(int *rank) {
    check(antiphon_comm_from_env(&comm));
    check(antiphon_comm_rank(comm, rank));
}
static void call(double *send, double *recv, size_t count) {
    check(antiphon_all_reduce(send, recv, count, ANTIPHON_F64, ANTIPHON_SUM, comm));
}
static void end(void) { check(antiphon_comm_free(&comm)); }
#endif

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    const size_t sizes[] = {8, 64, 1024, 8192, 65536, 1048576, 8388608, 67108864};
    int rank;
    begin(&rank);
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        size_t count = sizes[index] / sizeof(double);
        double *send = calloc(count, sizeof *send), *recv = calloc(count, sizeof *recv);
        /* Nine batches of about 50 ms each; the median says more than the mean on a computer that does other work. */
        double batches[9], start = now();
        long calls = 1;
        for (int trial = 0; trial < 3; trial++) call(send, recv, count);
        start = now();
        for (int trial = 0; trial < 3; trial++) call(send, recv, count);
        double each = (now() - start) / 3, agreed = 0;
        /* All ranks must make as many calls: the one sum of what all suppose. */
        send[0] = each < 0.2 ? 0.2 : each;
        call(send, recv, count);
        agreed = recv[0];
        send[0] = 0;
        calls = (long)(100000 / agreed) + 1;
        for (int batch = 0; batch < 9; batch++) {
            start = now();
            for (long trial = 0; trial < calls; trial++) call(send, recv, count);
            batches[batch] = (now() - start) / (double)calls;
        }
        qsort(batches, 9, sizeof *batches, by_size);
        if (rank == 0) printf("%zu %.3f\n", sizes[index], batches[4]);
        free(send);
        free(recv);
    }
    end();
    return 0;
}
