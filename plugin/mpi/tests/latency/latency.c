/* How long collectives take: the median of many calls, on the rank where it is longest. With libantiphon_mpi, PMPI_ is what
 * MPI does by itself, in the same run.
 *
 *   mpirun -n N env LD_PRELOAD=libantiphon_mpi.so ./latency [SECONDS]     SECONDS for each size, 0.2 if not given
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 20000, BATCH = 10 };

typedef int (*reduction)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a call. Rank 0 says how many are made. */
static double median(reduction reduce, const double *in, double *out, int count, double seconds) {
    static double times[MOST];
    int calls = 0, goes_on = 1;
    double begin = MPI_Wtime(), worst;
    for (int warm = 0; warm < 3; warm++) reduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    while (goes_on) {
        for (int call = 0; call < BATCH; call++) {
            double start = MPI_Wtime();
            reduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            times[calls++] = (MPI_Wtime() - start) * 1e6;
        }
        goes_on = calls + BATCH <= MOST && MPI_Wtime() - begin < seconds;
        PMPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    PMPI_Allreduce(&times[calls / 2], &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return worst;
}

int main(int argc, char **argv) {
    int rank, ranks;
    double seconds = argc > 1 ? atof(argv[1]) : 0.2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) printf("%d ranks, allreduce\n%10s %12s %12s\n", ranks, "bytes", "MPI_ [us]", "PMPI_ [us]");
    for (size_t bytes = 8; bytes <= 8 << 20; bytes *= 4) {
        double *in = calloc(1, bytes), *out = calloc(1, bytes);
        double first = median(MPI_Allreduce, in, out, (int)(bytes / 8), seconds);
        double second = median(PMPI_Allreduce, in, out, (int)(bytes / 8), seconds);
        if (rank == 0) printf("%10zu %12.2f %12.2f\n", bytes, first, second);
        free(in);
        free(out);
    }
    MPI_Finalize();
    return 0;
}
