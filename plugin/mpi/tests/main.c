/* Runs the tests that are named: reductions, moves, requests, comms, choices, tables, threads; all but threads without a name. */
#include "check.h"

static int wants(int argc, char **argv, const char *test) {
    if (argc < 2) return strcmp(test, "threads") != 0;
    for (int index = 1; index < argc; index++)
        if (strcmp(argv[index], test) == 0) return 1;
    return 0;
}

static void few(MPI_Comm comm) {
    long one = 1, sum;
    OK(MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, comm));
    CHECK(sum == size_of(comm));
    moves(comm);
}

int main(int argc, char **argv) {
    int is_threaded = argc > 1 && wants(argc, argv, "threads"), provided = MPI_THREAD_SINGLE;
    if (is_threaded) OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
    else OK(MPI_Init(&argc, &argv));
    if (wants(argc, argv, "reductions")) {
        reductions(MPI_COMM_WORLD);
    }
    if (wants(argc, argv, "moves")) moves(MPI_COMM_WORLD);
    if (wants(argc, argv, "requests")) {
        requests(MPI_COMM_WORLD);
        progress();
    }
    if (wants(argc, argv, "comms")) {
        communicators(few);
        errors();
    }
    if (wants(argc, argv, "choices")) {
        MPI_Comm twin;
        choices(MPI_COMM_WORLD);
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &twin));
        choices(twin);
        OK(MPI_Comm_free(&twin));
    }
    if (wants(argc, argv, "tables")) tables(MPI_COMM_WORLD);
    if (is_threaded && provided == MPI_THREAD_MULTIPLE) threads();
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank_of(MPI_COMM_WORLD) == 0) printf("all as it must be on %d ranks\n", size_of(MPI_COMM_WORLD));
    OK(MPI_Finalize());
    return 0;
}
