/* Calls that a table may serve: blocking sums in place, of a few lengths that come in turn, among messages that MPI has to carry on
 * while a rank waits in a sum. */
#include "check.h"

enum { SUMS = 600, UNIT = 60, LENGTHS = 3, MESSAGE = 200000, EVERY = 50 };

void tables(MPI_Comm comm) {
    int rank = rank_of(comm), ranks = size_of(comm), to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    long *vector = longs(UNIT * LENGTHS), *out = longs(MESSAGE), *in = longs(MESSAGE);
    for (int number = 0; number < SUMS; number++) {
        int count = UNIT * (1 + number % LENGTHS), sends = number % EVERY == 0 && ranks > 1;
        MPI_Request request;
        for (int at = 0; at < count; at++) vector[at] = value(rank, number + at);
        /* One rank after the other: each receives before it comes to the sum, in which its peer waits. */
        if (sends && rank != ranks - 1) OK(MPI_Isend(out, MESSAGE, MPI_LONG, to, number, comm, &request));
        if (sends && rank != 0) OK(MPI_Recv(in, MESSAGE, MPI_LONG, from, number, comm, MPI_STATUS_IGNORE));
        OK(MPI_Allreduce(MPI_IN_PLACE, vector, count, MPI_LONG, MPI_SUM, comm));
        for (int at = 0; at < count; at++) {
            long sum = 0;
            for (int other = 0; other < ranks; other++) sum += value(other, number + at);
            CHECK(vector[at] == sum);
        }
        if (sends && rank != ranks - 1) OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    free(vector);
    free(out);
    free(in);
}
