/* Calls under way: many at once, among messages, completed by every function that completes requests. */
#include "check.h"

/* MPI 4.1 has more functions that look at requests. */
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
#define HAS_STATUS_OF_MANY 1
#else
#define HAS_STATUS_OF_MANY 0
#endif

enum { CALLS = 12, HOW = 9 + 3 * HAS_STATUS_OF_MANY };

struct work {
    MPI_Request requests[CALLS];
    long *in[CALLS], *out[CALLS];
    int count;
};

/* Reductions, broadcasts, barriers, and messages around a ring. */
static void begin(struct work *work, MPI_Comm comm, int count) {
    int rank = rank_of(comm), ranks = size_of(comm);
    work->count = count;
    for (int call = 0; call < CALLS; call++) {
        MPI_Request *request = &work->requests[call];
        long *in = work->in[call] = longs((size_t)count), *out = work->out[call] = longs((size_t)count);
        for (int at = 0; at < count; at++) in[at] = value(rank, at + call);
        switch (call % 6) {
        case 0: OK(MPI_Iallreduce(in, out, count, MPI_LONG, MPI_SUM, comm, request)); break;
        case 1: OK(MPI_Irecv(out, count, MPI_LONG, (rank + ranks - 1) % ranks, call, comm, request)); break;
        case 2: OK(MPI_Isend(in, count, MPI_LONG, (rank + 1) % ranks, call - 1, comm, request)); break;
        case 3: OK(MPI_Ibcast(in, count, MPI_LONG, call % ranks, comm, request)); break;
        case 4: OK(MPI_Ibarrier(comm, request)); break;
        default: OK(MPI_Iallreduce(in, out, count, MPI_LONG, MPI_BOR, comm, request)); break;
        }
    }
}

static void check(struct work *work, MPI_Comm comm) {
    int rank = rank_of(comm), ranks = size_of(comm);
    for (int call = 0; call < CALLS; call++) {
        CHECK(work->requests[call] == MPI_REQUEST_NULL);
        for (int at = 0; at < work->count; at++) {
            long all = 0, bits = 0;
            for (int other = 0; other < ranks; other++) {
                all += value(other, at + call);
                bits |= value(other, at + call);
            }
            if (call % 6 == 0) CHECK(work->out[call][at] == all);
            if (call % 6 == 1) CHECK(work->out[call][at] == value((rank + ranks - 1) % ranks, at + call + 1));
            if (call % 6 == 3) CHECK(work->in[call][at] == value(call % ranks, at + call));
            if (call % 6 == 5) CHECK(work->out[call][at] == bits);
        }
        free(work->in[call]);
        free(work->out[call]);
    }
}

#if HAS_STATUS_OF_MANY
/* Asks until requests are over, and completes those; how many. */
static int looked(struct work *work, int how) {
    int done = 0, flag = 0, index = 0, indices[CALLS];
    MPI_Status status, statuses[CALLS];
    if (how == 9) {
        while (!flag) OK(MPI_Request_get_status_all(CALLS, work->requests, &flag, statuses));
        OK(MPI_Testall(CALLS, work->requests, &flag, statuses));
        CHECK(flag);
        return CALLS;
    }
    if (how == 10) {
        while (!flag) OK(MPI_Request_get_status_any(CALLS, work->requests, &index, &flag, &status));
        indices[done++] = index;
    } else {
        while (done == 0) OK(MPI_Request_get_status_some(CALLS, work->requests, &done, indices, statuses));
    }
    for (int at = 0; at < done; at++) {
        CHECK(indices[at] >= 0 && indices[at] < CALLS);
        OK(MPI_Test(&work->requests[indices[at]], &flag, &status));
        CHECK(flag);
    }
    return done;
}
#endif

/* Completes what it can of the requests; how many are over. */
static int some(struct work *work, int how) {
    int done = 0, flag = 0, index, indices[CALLS];
    MPI_Status status, statuses[CALLS];
    switch (how) {
    case 0: OK(MPI_Waitall(CALLS, work->requests, statuses)); return CALLS;
    case 1: OK(MPI_Waitany(CALLS, work->requests, &index, &status)); CHECK(index >= 0 && index < CALLS); return 1;
    case 2: OK(MPI_Waitsome(CALLS, work->requests, &done, indices, statuses)); return done;
    case 3: OK(MPI_Testall(CALLS, work->requests, &flag, MPI_STATUSES_IGNORE)); return flag ? CALLS : 0;
    case 4: OK(MPI_Testany(CALLS, work->requests, &index, &flag, &status)); return flag;
    case 5: OK(MPI_Testsome(CALLS, work->requests, &done, indices, statuses)); return done;
#if HAS_STATUS_OF_MANY
    case 9: case 10: case 11: return looked(work, how);
#endif
    default: break;
    }
    for (int at = 0; at < CALLS; at++) {
        int call = how == 6 ? CALLS - 1 - at : at;
        MPI_Request *request = &work->requests[call];
        if (*request == MPI_REQUEST_NULL) continue;
        if (how == 6) OK(MPI_Wait(request, &status));
        if (how == 8) OK(MPI_Request_get_status(*request, &flag, &status));
        if (how == 7 || (how == 8 && flag)) OK(MPI_Test(request, &flag, MPI_STATUS_IGNORE));
        done += *request == MPI_REQUEST_NULL;
    }
    return done;
}

void requests(MPI_Comm comm) {
    static const int counts[] = {1, 300, 50000};
    for (int index = 0; index < 3; index++)
        for (int how = 0; how < HOW; how++) {
            struct work work;
            /* Ranks complete their requests in different ways. */
            int own = (how + rank_of(comm)) % HOW;
            begin(&work, comm, counts[index]);
            for (int left = CALLS; left > 0;) left -= some(&work, own);
            check(&work, comm);
        }
}

/* The type and the communicator are freed before the call is over. */
static void freed_early(void) {
    MPI_Comm comm;
    MPI_Datatype type;
    MPI_Request request;
    long *buffer = longs(2000);
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Type_vector(1000, 1, 2, MPI_LONG, &type));
    OK(MPI_Type_commit(&type));
    for (int at = 0; at < 1000 && rank_of(comm) == 0; at++) buffer[2 * at] = at;
    OK(MPI_Ibcast(buffer, 1, type, 0, comm, &request));
    OK(MPI_Type_free(&type));
    /* Open MPI 4.1 does not keep the communicator for its own calls under way. */
    int is_early = is_preloaded();
    if (is_early) OK(MPI_Comm_free(&comm));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int at = 0; at < 1000; at++) CHECK(buffer[2 * at] == at && buffer[2 * at + 1] == -1);
    if (!is_early) OK(MPI_Comm_free(&comm));
    free(buffer);
}

/* One rank waits inside of one library for what another rank does after it has waited inside of the other. */
void progress(void) {
    MPI_Comm comm = MPI_COMM_WORLD;
    int rank = rank_of(comm), ranks = size_of(comm), peer = rank ^ 1, count = 500000;
    long *buffer = longs((size_t)count), *other = longs((size_t)count), sum = 0, one = 1;
    MPI_Request request;
    freed_early();
    if (peer < ranks && rank % 2 == 0) OK(MPI_Isend(buffer, count, MPI_LONG, peer, 1, comm, &request));
    if (peer < ranks && rank % 2 == 1) OK(MPI_Recv(other, count, MPI_LONG, peer, 1, comm, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(comm));
    if (peer < ranks && rank % 2 == 0) OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    /* Rank 0 receives in the middle of its reduction. */
    OK(MPI_Iallreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, comm, &request));
    for (int from = 1; from < ranks && rank == 0; from++)
        OK(MPI_Recv(other, 1, MPI_LONG, from, 2, comm, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    if (rank != 0) OK(MPI_Send(&one, 1, MPI_LONG, 0, 2, comm));
    CHECK(sum == ranks);
    free(buffer);
    free(other);
}
