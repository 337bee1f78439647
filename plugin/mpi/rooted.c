/* The collectives with a root. What a rank says matters only where MPI says so; see collectives.c for the decisions. */
#include "antiphon_mpi.h"

/* Begins to describe a call: why it goes to MPI, as far as the communicator and the root tell. */
static enum antiphon_mpi_reason described(struct antiphon_mpi_call *call, struct antiphon_mpi_group *group,
                                          enum antiphon_mpi_kind kind, int root) {
    *call = (struct antiphon_mpi_call){.kind = kind, .dtype = ANTIPHON_U8, .root = root};
    if (!group) return ANTIPHON_MPI_FOREIGN;
    return root < 0 || root >= group->size ? ANTIPHON_MPI_ARGUMENT : ANTIPHON_MPI_OURS;
}

static struct antiphon_mpi_group *bcast(struct antiphon_mpi_call *call, void *buffer, int count, MPI_Datatype type,
                                        int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_BCAST, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_BCAST, reason);
    struct antiphon_mpi_side *side = group->rank == root ? &call->in : &call->out;
    if (!antiphon_mpi_side(side, buffer, count, type, 1)) return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, group, antiphon_mpi_block(side, 0), false));
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = bcast(&call, buffer, count, type, root, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Bcast(buffer, count, type, root, comm);
}

int MPI_Ibcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = bcast(&call, buffer, count, type, root, comm);
    return group ? antiphon_mpi_request(group, &call, request) : PMPI_Ibcast(buffer, count, type, root, comm, request);
}

static struct antiphon_mpi_group *reduce(struct antiphon_mpi_call *call, const void *send, void *recv, int count,
                                         MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_REDUCE, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_REDUCE, reason);
    bool is_root = group->rank == root;
    const void *wrong = is_root ? recv : send;
    if (count < 0 || wrong == MPI_IN_PLACE) reason = ANTIPHON_MPI_ARGUMENT;
    else if (count == 0) reason = ANTIPHON_MPI_EMPTY;
    else if (!antiphon_mpi_reduction(type, op, call)) reason = ANTIPHON_MPI_TYPE;
    call->send = send == MPI_IN_PLACE ? recv : send;
    call->recv = is_root ? recv : NULL;
    call->count = (size_t)count;
    return antiphon_mpi_decided(group, call->kind, reason);
}

int MPI_Reduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce(&call, send, recv, count, type, op, root, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Reduce(send, recv, count, type, op, root, comm);
}

int MPI_Ireduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = reduce(&call, send, recv, count, type, op, root, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Ireduce(send, recv, count, type, op, root, comm, request);
}

static struct antiphon_mpi_group *gather(struct antiphon_mpi_call *call, const void *send, int count, MPI_Datatype type,
                                         void *recv, int rcount, MPI_Datatype rtype, int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_GATHER, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_GATHER, reason);
    bool is_root = group->rank == root, in_place = is_root && send == MPI_IN_PLACE;
    if ((is_root ? recv : send) == MPI_IN_PLACE ||
        (is_root && !antiphon_mpi_side(&call->out, recv, rcount, rtype, group->size)) ||
        (!in_place && !antiphon_mpi_side(&call->in, send, count, type, 1)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    size_t bytes = antiphon_mpi_block(is_root ? &call->out : &call->in, 0);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, group, bytes, in_place));
}

int MPI_Gather(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype, int root,
               MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = gather(&call, send, count, type, recv, rcount, rtype, root, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Gather(send, count, type, recv, rcount, rtype, root, comm);
}

int MPI_Igather(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype, int root,
                MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = gather(&call, send, count, type, recv, rcount, rtype, root, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Igather(send, count, type, recv, rcount, rtype, root, comm, request);
}

static struct antiphon_mpi_group *scatter(struct antiphon_mpi_call *call, const void *send, int count,
                                          MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype, int root,
                                          MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_SCATTER, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_SCATTER, reason);
    bool is_root = group->rank == root, in_place = is_root && recv == MPI_IN_PLACE;
    if ((is_root ? send : recv) == MPI_IN_PLACE ||
        (is_root && !antiphon_mpi_side(&call->in, send, count, type, group->size)) ||
        (!in_place && !antiphon_mpi_side(&call->out, recv, rcount, rtype, 1)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    size_t bytes = antiphon_mpi_block(is_root ? &call->in : &call->out, 0);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, group, bytes, in_place));
}

int MPI_Scatter(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype, int root,
                MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = scatter(&call, send, count, type, recv, rcount, rtype, root, comm);
    return group ? antiphon_mpi_run(group, &call) : PMPI_Scatter(send, count, type, recv, rcount, rtype, root, comm);
}

int MPI_Iscatter(const void *send, int count, MPI_Datatype type, void *recv, int rcount, MPI_Datatype rtype, int root,
                 MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = scatter(&call, send, count, type, recv, rcount, rtype, root, comm);
    return group ? antiphon_mpi_request(group, &call, request)
                 : PMPI_Iscatter(send, count, type, recv, rcount, rtype, root, comm, request);
}
