/* Communicators of all kinds, errors, and threads. */
#include "check.h"
#include <pthread.h>

static void use(MPI_Comm *comm, void (*tests)(MPI_Comm)) {
    if (*comm == MPI_COMM_NULL) return;
    tests(*comm);
    OK(MPI_Comm_free(comm));
}

static void derived(void (*tests)(MPI_Comm)) {
    MPI_Comm world = MPI_COMM_WORLD, comm, inner;
    MPI_Group group, part;
    MPI_Request request;
    int rank = rank_of(world), ranks = size_of(world);
    OK(MPI_Comm_dup(world, &comm));
    OK(MPI_Comm_split(comm, rank % 2, -rank, &inner)); /* the other way round */
    OK(MPI_Comm_free(&comm));
    use(&inner, tests);
    OK(MPI_Comm_split(world, rank == 0 ? MPI_UNDEFINED : 5, rank, &comm));
    use(&comm, tests);
    OK(MPI_Comm_dup_with_info(world, MPI_INFO_NULL, &comm));
    use(&comm, tests);
    OK(MPI_Comm_idup(world, &comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    use(&comm, tests);
    OK(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &comm));
    use(&comm, tests);
    int range[1][3] = {{ranks - 1, 0, -2}};
    OK(MPI_Comm_group(world, &group));
    OK(MPI_Group_range_incl(group, 1, range, &part));
    OK(MPI_Comm_create(world, part, &comm));
    use(&comm, tests);
    if ((ranks - 1 - rank) % 2 == 0) {
        OK(MPI_Comm_create_group(world, part, 3, &comm));
        use(&comm, tests);
    }
    OK(MPI_Group_free(&part));
    OK(MPI_Group_free(&group));
}

static void topologies(void (*tests)(MPI_Comm)) {
    MPI_Comm world = MPI_COMM_WORLD, comm, inner;
    int rank = rank_of(world), ranks = size_of(world);
    int dims[2] = {ranks > 1 ? ranks / 2 : 1, ranks > 1 ? 2 : 1}, periods[2] = {0, 1}, keep[2] = {1, 0};
    OK(MPI_Cart_create(world, 2, dims, periods, 1, &comm));
    if (comm != MPI_COMM_NULL) {
        OK(MPI_Cart_sub(comm, keep, &inner));
        use(&inner, tests);
        use(&comm, tests);
    }
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    OK(MPI_Dist_graph_create_adjacent(world, 1, &left, MPI_UNWEIGHTED, 1, &right, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &comm));
    use(&comm, tests);
    int degree = 1;
    OK(MPI_Dist_graph_create(world, 1, &rank, &degree, &right, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &comm));
    use(&comm, tests);
}

/* The collectives between two groups go to MPI. */
static void between(void (*tests)(MPI_Comm)) {
    MPI_Comm world = MPI_COMM_WORLD, half, inter, twin, merged;
    int rank = rank_of(world), ranks = size_of(world);
    if (ranks < 2) return;
    OK(MPI_Comm_split(world, rank % 2, rank, &half));
    OK(MPI_Intercomm_create(half, 0, world, rank % 2 ? 0 : 1, 9, &inter));
    OK(MPI_Comm_dup(inter, &twin));
    long own = rank, sum = 0, others = 0;
    OK(MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, twin));
    for (int other = 0; other < ranks; other++) others += other % 2 != rank % 2 ? other : 0;
    CHECK(sum == others);
    OK(MPI_Barrier(inter));
    OK(MPI_Intercomm_merge(inter, rank % 2, &merged));
    use(&merged, tests);
    OK(MPI_Comm_free(&twin));
    OK(MPI_Comm_free(&inter));
    OK(MPI_Comm_free(&half));
}

void communicators(void (*tests)(MPI_Comm)) {
    tests(MPI_COMM_WORLD);
    tests(MPI_COMM_SELF);
    derived(tests);
    topologies(tests);
    between(tests);
}

void errors(void) {
    MPI_Comm comm;
    long in = 1, out;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    CHECK(MPI_Bcast(&in, 1, MPI_LONG, size_of(comm), comm) != MPI_SUCCESS);
    CHECK(MPI_Bcast(&in, -1, MPI_LONG, 0, comm) != MPI_SUCCESS);
    CHECK(MPI_Allreduce(&in, &out, 1, MPI_DATATYPE_NULL, MPI_SUM, comm) != MPI_SUCCESS);
    CHECK(MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_OP_NULL, comm) != MPI_SUCCESS);
    OK(MPI_Allreduce(&in, &out, 1, MPI_LONG, MPI_SUM, comm));
    CHECK(out == size_of(comm));
    OK(MPI_Comm_free(&comm));
}

static void *thread(void *given) {
    MPI_Comm comm = *(MPI_Comm *)given, own;
    int ranks = size_of(comm);
    OK(MPI_Comm_dup(comm, &own));
    for (int round = 0; round < 300; round++) {
        int count = round % 50 == 0 ? 40000 : 1 + round;
        long *in = longs((size_t)count), *out = longs((size_t)count), *cast = longs((size_t)count);
        MPI_Request request;
        for (int at = 0; at < count; at++) in[at] = cast[at] = value(rank_of(own), at);
        OK(MPI_Iallreduce(in, out, count, MPI_LONG, MPI_SUM, own, &request));
        OK(MPI_Bcast(cast, count, MPI_LONG, round % ranks, comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        for (int at = 0; at < count; at++) {
            long sum = 0;
            for (int rank = 0; rank < ranks; rank++) sum += value(rank, at);
            CHECK(cast[at] == value(round % ranks, at) && out[at] == sum);
        }
        free(in);
        free(out);
        free(cast);
    }
    OK(MPI_Comm_free(&own));
    return NULL;
}

void threads(void) {
    enum { THREADS = 3 };
    MPI_Comm comms[THREADS];
    pthread_t made[THREADS];
    for (int index = 0; index < THREADS; index++) OK(MPI_Comm_dup(MPI_COMM_WORLD, &comms[index]));
    for (int index = 0; index < THREADS; index++) CHECK(!pthread_create(&made[index], NULL, thread, &comms[index]));
    for (int index = 0; index < THREADS; index++) CHECK(!pthread_join(made[index], NULL));
    for (int index = 0; index < THREADS; index++) OK(MPI_Comm_free(&comms[index]));
}
