/* Calls of libantiphon, and how one waits for them. */
#include "antiphon_mpi.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* How many looks lie between two calls that let MPI make progress: such a call costs more than a look. */
enum { BETWEEN = 8, ARRIVALS = 8 };

static void poke(void) {
    int flag;
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, antiphon_mpi_state.comm, &flag, MPI_STATUS_IGNORE);
}

/* What libantiphon does while it waits for a blocking call. MPI goes on meanwhile: another rank may wait for a message of this
 * one before it makes the call that we wait for. */
void antiphon_mpi_awaiting(void *context) {
    (void)context;
    poke();
}

/* The same between two looks at calls that were begun. */
void antiphon_mpi_idle(unsigned *looks) {
    unsigned now = ++*looks;
    if (now < antiphon_mpi_state.looks && now % BETWEEN != 0) return;
    poke();
    if (now < antiphon_mpi_state.looks) return;
    sched_yield();
    *looks = antiphon_mpi_state.looks;
}

/* Hands an error to the communicator's error handler. */
int antiphon_mpi_fail(MPI_Comm comm, antiphon_result_t result, const char *text) {
    int code = result == ANTIPHON_INVALID_ARGUMENT ? MPI_ERR_ARG : MPI_ERR_OTHER;
    fprintf(stderr, "antiphon: %s\n", text && *text ? text : "a call has failed");
    PMPI_Comm_call_errhandler(comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm, code);
    return code;
}

/* An allreduce of MPI_COMM_WORLD that is to be made as it was measured for a table: in place. */
static const void *sent(const struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    bool is_measured = antiphon_mpi_state.has_table && group->comm == MPI_COMM_WORLD;
    if (call->kind != ANTIPHON_MPI_ALLREDUCE || !is_measured || call->send == call->recv) return call->send;
    return memmove(call->recv, call->send, call->count * antiphon_mpi_element(call->dtype));
}

static antiphon_result_t block(const struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    antiphon_comm_t comm = group->handle;
    const void *send = sent(group, call);
    void *recv = call->recv;
    size_t count = call->count;
    antiphon_dtype_t dtype = call->dtype;
    antiphon_op_t op = call->op;
    switch (call->kind) {
    case ANTIPHON_MPI_ALLREDUCE: return antiphon_all_reduce(send, recv, count, dtype, op, comm);
    case ANTIPHON_MPI_ALLGATHER: return antiphon_all_gather(send, recv, count, dtype, comm);
    case ANTIPHON_MPI_REDUCE_SCATTER: return antiphon_reduce_scatter(send, recv, count, dtype, op, comm);
    case ANTIPHON_MPI_ALLTOALL: return antiphon_all_to_all(send, recv, count, dtype, comm);
    case ANTIPHON_MPI_BCAST: return antiphon_broadcast(recv, count, dtype, call->root, comm);
    case ANTIPHON_MPI_REDUCE: return antiphon_reduce(send, recv, count, dtype, op, call->root, comm);
    case ANTIPHON_MPI_GATHER: return antiphon_gather(send, recv, count, dtype, call->root, comm);
    case ANTIPHON_MPI_SCATTER: return antiphon_scatter(send, recv, count, dtype, call->root, comm);
    default: return antiphon_barrier(comm);
    }
}

static antiphon_result_t begin(antiphon_comm_t comm, struct antiphon_mpi_call *call) {
    const void *send = call->send;
    void *recv = call->recv;
    size_t count = call->count;
    antiphon_dtype_t dtype = call->dtype;
    antiphon_op_t op = call->op;
    antiphon_request_t *request = &call->request;
    switch (call->kind) {
    case ANTIPHON_MPI_ALLREDUCE: return antiphon_all_reduce_start(send, recv, count, dtype, op, comm, request);
    case ANTIPHON_MPI_ALLGATHER: return antiphon_all_gather_start(send, recv, count, dtype, comm, request);
    case ANTIPHON_MPI_REDUCE_SCATTER: return antiphon_reduce_scatter_start(send, recv, count, dtype, op, comm, request);
    case ANTIPHON_MPI_ALLTOALL: return antiphon_all_to_all_start(send, recv, count, dtype, comm, request);
    case ANTIPHON_MPI_BCAST: return antiphon_broadcast_start(recv, count, dtype, call->root, comm, request);
    case ANTIPHON_MPI_REDUCE: return antiphon_reduce_start(send, recv, count, dtype, op, call->root, comm, request);
    case ANTIPHON_MPI_GATHER: return antiphon_gather_start(send, recv, count, dtype, call->root, comm, request);
    case ANTIPHON_MPI_SCATTER: return antiphon_scatter_start(send, recv, count, dtype, call->root, comm, request);
    default: return antiphon_barrier_start(comm, request);
    }
}

antiphon_result_t antiphon_mpi_begin(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call) {
    antiphon_result_t result;
    if (call->kind == ANTIPHON_MPI_ALLTOALLV) {
        const size_t *blocks = call->blocks;
        size_t size = (size_t)group->size;
        result = antiphon_all_to_all_v_start(call->send, blocks, blocks + size, call->recv, blocks + 2 * size,
                                             blocks + 3 * size, call->dtype, group->handle, &call->request);
    } else {
        result = begin(group->handle, call);
    }
    if (result == ANTIPHON_SUCCESS && antiphon_mpi_state.wants_statistics) antiphon_mpi_ran(group, call->kind);
    return result;
}

/* Makes a blocking call. Only those are served by functions that a table names, and compared with stock. */
static antiphon_result_t make(struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    antiphon_result_t result;
    if (call->kind == ANTIPHON_MPI_ALLTOALLV) {
        const size_t *blocks = call->blocks;
        size_t size = (size_t)group->size;
        result = antiphon_all_to_all_v(call->send, blocks, blocks + size, call->recv, blocks + 2 * size, blocks + 3 * size,
                                       call->dtype, group->handle);
    } else {
        result = block(group, call);
    }
    if (result == ANTIPHON_SUCCESS && antiphon_mpi_state.wants_statistics) antiphon_mpi_ran(group, call->kind);
    return result;
}

/* Makes a blocking call, and frees what it used. */
int antiphon_mpi_run(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call) {
    int code = antiphon_mpi_arrange(call, group);
    antiphon_result_t result = code == MPI_SUCCESS ? make(group, call) : ANTIPHON_SUCCESS;
    /* Programs expect that what was sent before a barrier has arrived after it, although MPI promises nothing. */
    for (int times = 0; call->kind == ANTIPHON_MPI_BARRIER && times < ARRIVALS; times++) poke();
    if (result == ANTIPHON_SUCCESS && code == MPI_SUCCESS) code = antiphon_mpi_unpack(&call->out);
    antiphon_mpi_drop(call);
    if (result != ANTIPHON_SUCCESS) return antiphon_mpi_fail(group->comm, result, antiphon_last_error());
    antiphon_mpi_timed(call);
    if (code != MPI_SUCCESS) PMPI_Comm_call_errhandler(group->comm, code);
    return code;
}
