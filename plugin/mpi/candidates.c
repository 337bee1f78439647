/* MPI's own collectives as candidates of the tuner.
 *
 * With ANTIPHON_MPI_TABLE=FILE, the functions of the MPI that is there compete with libantiphon's plans. Where there is no
 * such file, MPI_Init measures all of them, and rank 0 writes the table. Where there is one, it is used, and nothing is measured.
 * From then on the table says for each size which plan serves a blocking call of MPI_COMM_WORLD, or whether MPI does.
 *
 * Rank 0 looks at the variables and at the file, and tells the others, so that no rank decides alone. Whether the functions
 * can make a call depends only on what all ranks have the same, so none of them waits in MPI for one that has refused.
 *
 * The functions use a communicator that has no handle of ours, and this library serves nothing before MPI_Init ends. So nothing
 * of it comes back here. */
#include "antiphon_mpi.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096, SIZES = 32 };

/* How long MPI_Init measures, and how long ranks wait for each other meanwhile, and after a failure, in seconds. */
static const double USUAL_BUDGET = 20, MEANWHILE = 60, PATIENCE = 10;

/* What rank 0 has found. */
struct order {
    bool wants, exists, can_write;
    char path[PATH];
    double budget; /* in seconds */
    size_t size_count;
    size_t sizes[SIZES]; /* in bytes; none for those that are usual */
};

static bool reduces(const struct antiphon_call *call) {
    return call->collective == ANTIPHON_ALL_REDUCE || call->collective == ANTIPHON_REDUCE_SCATTER ||
           call->collective == ANTIPHON_REDUCE;
}

/* MPI_DATATYPE_NULL if MPI has no such type. It moves numbers of 16 bits, but does not add them. */
static MPI_Datatype type_of(const struct antiphon_call *call) {
    switch (call->dtype) {
    case ANTIPHON_U8: return MPI_UINT8_T;
    case ANTIPHON_I32: return MPI_INT32_T;
    case ANTIPHON_I64: return MPI_INT64_T;
    case ANTIPHON_F32: return MPI_FLOAT;
    case ANTIPHON_F64: return MPI_DOUBLE;
    case ANTIPHON_F16:
    case ANTIPHON_BF16: return reduces(call) ? MPI_DATATYPE_NULL : MPI_UINT16_T;
    default: return MPI_DATATYPE_NULL;
    }
}

/* MPI_OP_NULL for an average, which MPI has not. */
static MPI_Op op_of(const struct antiphon_call *call) {
    switch (call->op) {
    case ANTIPHON_SUM: return MPI_SUM;
    case ANTIPHON_PROD: return MPI_PROD;
    case ANTIPHON_MIN: return MPI_MIN;
    case ANTIPHON_MAX: return MPI_MAX;
    default: return MPI_OP_NULL;
    }
}

/* Whether MPI can make a call. It looks at what all ranks have the same. */
static int can(const struct antiphon_call *call, void *user) {
    (void)user;
    return type_of(call) != MPI_DATATYPE_NULL && !(reduces(call) && op_of(call) == MPI_OP_NULL) && call->count <= INT_MAX;
}

/* A candidate. It is 0 after a call that MPI has made, and something else if MPI has failed. */
static int run(antiphon_comm_t comm, const struct antiphon_call *call, void *user) {
    MPI_Comm own = antiphon_mpi_state.tuned;
    MPI_Datatype type = type_of(call);
    MPI_Op op = op_of(call);
    const void *send = call->send == call->recv ? MPI_IN_PLACE : call->send;
    int count = (int)call->count, rank;
    (void)comm;
    if (!can(call, user)) return MPI_ERR_ARG;
    /* A buffer of no elements may have any address, also that of MPI_IN_PLACE. */
    PMPI_Comm_rank(own, &rank);
    const void *of_root = rank == call->root ? call->send : NULL;
    void *to_root = rank == call->root ? call->recv : NULL;
    switch (call->collective) {
    case ANTIPHON_ALL_REDUCE: return PMPI_Allreduce(send, call->recv, count, type, op, own);
    case ANTIPHON_ALL_GATHER: return PMPI_Allgather(send, count, type, call->recv, count, type, own);
    case ANTIPHON_REDUCE_SCATTER: return PMPI_Reduce_scatter_block(send, call->recv, count, type, op, own);
    case ANTIPHON_ALL_TO_ALL: return PMPI_Alltoall(send, count, type, call->recv, count, type, own);
    case ANTIPHON_BROADCAST: return PMPI_Bcast(call->recv, count, type, call->root, own);
    /* These are never in place. */
    case ANTIPHON_REDUCE: return PMPI_Reduce(call->send, to_root, count, type, op, call->root, own);
    case ANTIPHON_GATHER: return PMPI_Gather(call->send, count, type, to_root, count, type, call->root, own);
    case ANTIPHON_SCATTER: return PMPI_Scatter(of_root, count, type, call->recv, count, type, call->root, own);
    default: return MPI_ERR_ARG;
    }
}

static const int collectives[] = {ANTIPHON_ALL_REDUCE, ANTIPHON_ALL_GATHER, ANTIPHON_REDUCE_SCATTER, ANTIPHON_ALL_TO_ALL,
                                  ANTIPHON_BROADCAST,  ANTIPHON_REDUCE,     ANTIPHON_GATHER,         ANTIPHON_SCATTER};
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

static antiphon_result_t register_all(antiphon_comm_t handle) {
    antiphon_result_t result = ANTIPHON_SUCCESS;
    for (int index = 0; index < COLLECTIVES && result == ANTIPHON_SUCCESS; index++)
        result = antiphon_tune_candidate_when(handle, "MPI", collectives[index], run, can, NULL);
    return result;
}

/* A list of sizes in bytes. False if it is none. */
static bool read_sizes(const char *text, struct order *order) {
    while (text && *text) {
        char *end;
        errno = 0;
        unsigned long long size = strtoull(text, &end, 10);
        if (errno || end == text || size == 0 || (*end && *end != ',') || order->size_count == SIZES) return false;
        order->sizes[order->size_count++] = (size_t)size;
        text = *end ? end + 1 : end;
    }
    return true;
}

static bool read_budget(const char *text, struct order *order) {
    char *end = NULL;
    order->budget = text && *text ? strtod(text, &end) : USUAL_BUDGET;
    return (!end || !*end) && isfinite(order->budget) && order->budget > 0;
}

/* Finds out before the measuring, not after it, whether the table can be kept. */
static bool can_write(const char *path) {
    char part[PATH + 32];
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(part, "w");
    if (!file) return false;
    fclose(file);
    unlink(part);
    return true;
}

/* What the environment asks for, on rank 0. */
static void read_order(struct order *order) {
    const char *path = getenv("ANTIPHON_MPI_TABLE"), *why = NULL;
    if (!path || !*path) return;
    if (strlen(path) >= PATH) why = "the name of the file is too long";
    if (!read_budget(getenv("ANTIPHON_MPI_TABLE_BUDGET"), order)) why = "ANTIPHON_MPI_TABLE_BUDGET is no number of seconds";
    if (!read_sizes(getenv("ANTIPHON_MPI_TABLE_SIZES"), order))
        why = "ANTIPHON_MPI_TABLE_SIZES is no list of sizes in bytes, with commas between them";
    if (why) {
        fprintf(stderr, "antiphon: MPI's functions do not compete: %s\n", why);
        return;
    }
    strcpy(order->path, path);
    order->wants = true;
    order->exists = access(path, F_OK) == 0;
    order->can_write = order->exists || can_write(path);
    if (!order->can_write) fprintf(stderr, "antiphon: MPI's functions do not compete: %s cannot be written\n", path);
}

/* Measures, and uses what comes out. */
static antiphon_result_t tune(antiphon_comm_t handle, const struct order *order, int rank) {
    struct antiphon_tune_options options = {
        .collectives = collectives,
        .collective_count = COLLECTIVES,
        .sizes = order->size_count ? order->sizes : NULL,
        .size_count = order->size_count,
        .dtype = ANTIPHON_MPI_MEASURED,
        .op = ANTIPHON_SUM,
        .budget = order->budget,
    };
    if (rank == 0)
        fprintf(stderr, "antiphon: there is no %s: MPI_Init measures for about %g s, and makes it\n", order->path, order->budget);
    return antiphon_tune(handle, &options, order->path);
}

static antiphon_result_t use(antiphon_comm_t handle, const struct order *order) {
    antiphon_result_t result = antiphon_use_table(handle, order->path);
    return result == ANTIPHON_SUCCESS ? antiphon_use_candidates(handle) : result;
}

/* How long ranks wait for each other, unless the environment says it (connect_patiently). */
static void limit(antiphon_comm_t handle, double seconds) {
    if (!getenv("ANTIPHON_TIMEOUT")) antiphon_comm_set_timeout(handle, seconds);
}

/* Whether the communicator still makes calls on all ranks. */
static bool is_sound(antiphon_comm_t handle, int rank) {
    limit(handle, PATIENCE);
    int is_good = antiphon_barrier(handle) == ANTIPHON_SUCCESS;
    PMPI_Allreduce(MPI_IN_PLACE, &is_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!is_good && rank == 0) fprintf(stderr, "antiphon: all calls go to MPI: the communicator has failed\n");
    return is_good;
}

/* Makes MPI's functions compete, if rank 0 is asked to. All ranks call this before any of them makes another call with the handle.
 * False if the handle is of no use any more. */
bool antiphon_mpi_begin_table(int rank, int size, antiphon_comm_t handle) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    struct order order = {0};
    if (rank == 0) read_order(&order);
    PMPI_Bcast(&order, sizeof order, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (!order.wants || !order.can_write) return true;
    PMPI_Comm_dup(MPI_COMM_WORLD, &state->tuned);
    PMPI_Comm_set_errhandler(state->tuned, MPI_ERRORS_RETURN);
    limit(handle, MEANWHILE);
    antiphon_result_t result = register_all(handle);
    if (result == ANTIPHON_SUCCESS) result = order.exists ? use(handle, &order) : tune(handle, &order, rank);
    /* What this rank says is lost with its next call. */
    char why[512];
    snprintf(why, sizeof why, "%s", result == ANTIPHON_SUCCESS ? "" : antiphon_last_error());
    int failed[2] = {result == ANTIPHON_SUCCESS ? size : rank, result != ANTIPHON_SUCCESS}, first, others;
    PMPI_Allreduce(&failed[0], &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    PMPI_Allreduce(&failed[1], &others, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    /* Rank 0 alone has the table on a disk. Without that, all ranks use it all the same. */
    state->has_table = first == size || (!order.exists && others == 1 && first == 0);
    if (first == rank)
        fprintf(stderr, "antiphon: %s %s%s: %s\n", order.path,
                state->has_table ? "was not written, so that it serves this time only"
                : order.exists   ? "is not used"
                                 : "was not made",
                !state->has_table && state->is_one_machine ? ", and stock serves" : "", why);
    bool is_useful = first == size || is_sound(handle, rank);
    limit(handle, INFINITY);
    return is_useful;
}

void antiphon_mpi_end_table(void) {
    if (antiphon_mpi_state.tuned != MPI_COMM_NULL) PMPI_Comm_free(&antiphon_mpi_state.tuned);
    antiphon_mpi_state.has_table = false;
}
