/* The collectives without a root.
 *
 * Every rank must come to the same decision between libantiphon and MPI, or all wait forever. So it depends only on what MPI
 * requires to be the same on all ranks:
 *
 * - reductions: the communicator, the count, the type and the operation. MPI wants "the same arguments" there. MPI_INT on one
 *   rank and MPI_INT32_T on another is the same to us. A copy that MPI_Type_dup has made is another type.
 * - calls that move data: the communicator, and the bytes of a block. Ranks may describe the same data by different types, of
 *   which some are derived. So the type does not count: each rank packs its own data if it must (pack.c).
 * - alltoallv and barrier: the communicator alone.
 *
 * MPI_IN_PLACE must be the same on all ranks in the collectives of this file, and concerns only the root in the others.
 *
 * What remains: ranks that call different functions for one collective call, of which one is not ours. Those are the variants
 * with large counts of MPI 4 (MPI_Bcast_c), and in Open MPI the functions of Fortran. */
#include "antiphon_mpi.h"

static enum antiphon_mpi_reason reduce(struct antiphon_mpi_call *call, const void *send, void *recv, int count,
                                       MPI_Datatype type, MPI_Op op) {
    if (count < 0 || recv == MPI_IN_PLACE) return ANTIPHON_MPI_ARGUMENT;
    if (count == 0) return ANTIPHON_MPI_EMPTY;
    if (!antiphon_mpi_reduction(type, op, call)) return ANTIPHON_MPI_TYPE;
    call->send = send == MPI_IN_PLACE ? recv : send;
    call->recv = recv;
    call->count = (size_t)count;
    return ANTIPHON_MPI_OURS;
}

static struct antiphon_mpi_group *allreduce(struct antiphon_mpi_call *call, const void *send, void *recv, int count,
                                            MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_ALLREDUCE};
    return antiphon_mpi_decided(group, call->kind, group ? reduce(call, send, recv, count, type, op) : ANTIPHON_MPI_FOREIGN);
}

int MPI_Allreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = allreduce(&call, send, recv, count, type, op, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Allreduce(send, recv, count, type, op, comm);
}

int MPI_Iallreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = allreduce(&call, send, recv, count, type, op, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Iallreduce(send, recv, count, type, op, comm, request);
}

static struct antiphon_mpi_group *reduce_scatter(struct antiphon_mpi_call *call, const void *send, void *recv, int count,
                                                 MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_REDUCE_SCATTER};
    return antiphon_mpi_decided(group, call->kind, group ? reduce(call, send, recv, count, type, op) : ANTIPHON_MPI_FOREIGN);
}

int MPI_Reduce_scatter_block(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce_scatter(&call, send, recv, count, type, op, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Reduce_scatter_block(send, recv, count, type, op, comm);
}

int MPI_Ireduce_scatter_block(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce_scatter(&call, send, recv, count, type, op, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Ireduce_scatter_block(send, recv, count, type, op, comm, request);
}

/* All ranks give the same counts. */
static struct antiphon_mpi_group *reduce_scatter_of(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                    const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool is_equal = true;
    if (!group || !counts)
        return antiphon_mpi_decided(group, ANTIPHON_MPI_REDUCE_SCATTER, group ? ANTIPHON_MPI_ARGUMENT : ANTIPHON_MPI_FOREIGN);
    for (int rank = 1; rank < group->size; rank++) is_equal &= counts[rank] == counts[0];
    if (!is_equal) return antiphon_mpi_decided(group, ANTIPHON_MPI_REDUCE_SCATTER, ANTIPHON_MPI_UNEQUAL);
    return reduce_scatter(call, send, recv, counts[0], type, op, comm);
}

int MPI_Reduce_scatter(const void *send, void *recv, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce_scatter_of(&call, send, recv, counts, type, op, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Reduce_scatter(send, recv, counts, type, op, comm);
}

int MPI_Ireduce_scatter(const void *send, void *recv, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                        MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce_scatter_of(&call, send, recv, counts, type, op, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Ireduce_scatter(send, recv, counts, type, op, comm, request);
}

/* Both have a send side of one block (allgather), or of as many as there are ranks (alltoall). */
static struct antiphon_mpi_group *exchange(struct antiphon_mpi_call *call, enum antiphon_mpi_kind kind, const void *send,
                                           int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype,
                                           MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool in_place = send == MPI_IN_PLACE;
    *call = (struct antiphon_mpi_call){.kind = kind, .dtype = ANTIPHON_U8};
    if (!group) return antiphon_mpi_decided(group, kind, ANTIPHON_MPI_FOREIGN);
    int blocks = kind == ANTIPHON_MPI_ALLGATHER ? 1 : group->size;
    if (recv == MPI_IN_PLACE || !antiphon_mpi_side(&call->out, recv, rcount, rtype, group->size) ||
        (!in_place && !antiphon_mpi_side(&call->in, send, count, type, blocks)))
        return antiphon_mpi_decided(group, kind, ANTIPHON_MPI_ARGUMENT);
    return antiphon_mpi_decided(group, kind, antiphon_mpi_move(call, group, antiphon_mpi_block(&call->out, 0), in_place));
}

int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype,
                  MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        exchange(&call, ANTIPHON_MPI_ALLGATHER, send, count, type, recv, rcount, rtype, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Allgather(send, count, type, recv, rcount, rtype, comm);
}

int MPI_Iallgather(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype,
                   MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        exchange(&call, ANTIPHON_MPI_ALLGATHER, send, count, type, recv, rcount, rtype, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Iallgather(send, count, type, recv, rcount, rtype, comm, request);
}

int MPI_Alltoall(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype,
                 MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        exchange(&call, ANTIPHON_MPI_ALLTOALL, send, count, type, recv, rcount, rtype, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Alltoall(send, count, type, recv, rcount, rtype, comm);
}

int MPI_Ialltoall(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype,
                  MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        exchange(&call, ANTIPHON_MPI_ALLTOALL, send, count, type, recv, rcount, rtype, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Ialltoall(send, count, type, recv, rcount, rtype, comm, request);
}

static bool side_of(struct antiphon_mpi_side *side, const void *buffer, const int counts[], const int offsets[],
                    MPI_Datatype type, int size) {
    if (!counts || !offsets || !antiphon_mpi_side(side, buffer, 0, type, size)) return false;
    for (int rank = 0; rank < size; rank++)
        if (counts[rank] < 0) return false;
    side->counts = counts;
    side->offsets = offsets;
    return true;
}

static struct antiphon_mpi_group *alltoallv(struct antiphon_mpi_call *call, const void *send, const int counts[],
                                            const int offsets[], MPI_Datatype type, void *recv, const int rcounts[],
                                            const int roffsets[], MPI_Datatype rtype, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool in_place = send == MPI_IN_PLACE;
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_ALLTOALLV, .dtype = ANTIPHON_U8};
    if (!group) return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_FOREIGN);
    if (recv == MPI_IN_PLACE || !side_of(&call->out, recv, rcounts, roffsets, rtype, group->size) ||
        (!in_place && !side_of(&call->in, send, counts, offsets, type, group->size)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    call->code = antiphon_mpi_arrange_v(call, group, in_place);
    return group;
}

int MPI_Alltoallv(const void *send, const int counts[], const int offsets[], MPI_Datatype type, void *recv,
                  const int rcounts[], const int roffsets[], MPI_Datatype rtype, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        alltoallv(&call, send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm);
    return group ? antiphon_mpi_run(group, &call)
                 : PMPI_Alltoallv(send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm);
}

int MPI_Ialltoallv(const void *send, const int counts[], const int offsets[], MPI_Datatype type, void *recv,
                   const int rcounts[], const int roffsets[], MPI_Datatype rtype, MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        alltoallv(&call, send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Ialltoallv(send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm, request);
}

static struct antiphon_mpi_group *barrier(struct antiphon_mpi_call *call, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_BARRIER};
    return antiphon_mpi_decided(group, call->kind, group ? ANTIPHON_MPI_OURS : ANTIPHON_MPI_FOREIGN);
}

int MPI_Barrier(MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = barrier(&call, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Barrier(comm);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = barrier(&call, comm);
    return group ? antiphon_mpi_request(group, &call, request) : PMPI_Ibarrier(comm, request);
}
