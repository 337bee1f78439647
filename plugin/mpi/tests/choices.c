/* So many calls that libantiphon and MPI are compared, where that is asked for, and one of both serves the last of them. */
#include "check.h"

enum { CALLS = 40, LONGEST = 5000 };
static const int lengths[] = {1, 100, LONGEST};

/* What all ranks have at a place, added up. */
static long total(int size, long at) {
    long sum = 0;
    for (int rank = 0; rank < size; rank++) sum += value(rank, at);
    return sum;
}

static void fill(long *vector, int rank, long count) {
    for (long at = 0; at < count; at++) vector[at] = value(rank, at);
}

static void one_of_each(MPI_Comm comm, int count, int number) {
    int rank = rank_of(comm), size = size_of(comm), root = number % size;
    long *own = longs((size_t)(count * size)), *all = longs((size_t)(count * size));
    fill(own, rank, (long)count * size);
    OK(MPI_Allreduce(own, all, count, MPI_LONG, MPI_SUM, comm));
    for (long at = 0; at < count; at++) CHECK(all[at] == total(size, at));
    OK(MPI_Reduce(own, all, count, MPI_LONG, MPI_SUM, root, comm));
    for (long at = 0; rank == root && at < count; at++) CHECK(all[at] == total(size, at));
    OK(MPI_Reduce_scatter_block(own, all, count, MPI_LONG, MPI_SUM, comm));
    for (long at = 0; at < count; at++) CHECK(all[at] == total(size, (long)rank * count + at));
    OK(MPI_Allgather(own, count, MPI_LONG, all, count, MPI_LONG, comm));
    for (long at = 0; at < (long)count * size; at++) CHECK(all[at] == value((int)(at / count), at % count));
    OK(MPI_Alltoall(own, count, MPI_LONG, all, count, MPI_LONG, comm));
    for (long at = 0; at < (long)count * size; at++)
        CHECK(all[at] == value((int)(at / count), (long)rank * count + at % count));
    OK(MPI_Gather(own, count, MPI_LONG, all, count, MPI_LONG, root, comm));
    for (long at = 0; rank == root && at < (long)count * size; at++)
        CHECK(all[at] == value((int)(at / count), at % count));
    OK(MPI_Scatter(own, count, MPI_LONG, all, count, MPI_LONG, root, comm));
    for (long at = 0; at < count; at++) CHECK(all[at] == value(root, (long)rank * count + at));
    OK(MPI_Barrier(comm));
    OK(MPI_Bcast(own, count, MPI_LONG, root, comm));
    for (long at = 0; at < count; at++) CHECK(own[at] == value(root, at));
    /* A call that is only begun between calls that are compared. */
    MPI_Request request;
    fill(own, rank, count);
    OK(MPI_Iallreduce(own, all, count, MPI_LONG, MPI_SUM, comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (long at = 0; at < count; at++) CHECK(all[at] == total(size, at));
    free(own);
    free(all);
}

void choices(MPI_Comm comm) {
    for (int number = 0; number < CALLS; number++)
        for (size_t index = 0; index < sizeof lengths / sizeof *lengths; index++)
            one_of_each(comm, lengths[index], number);
}
