/* The same for the collectives with a root. What a rank says matters only where MPI says so; collectives.c has the rules. */
#include "antiphon_mpi.h"

/* Begins to describe a call: why it goes to MPI, as far as the communicator and the root tell. */
static enum antiphon_mpi_reason described(struct antiphon_mpi_call *call, struct antiphon_mpi_group *group,
                                          enum antiphon_mpi_kind kind, int root) {
    *call = (struct antiphon_mpi_call){.kind = kind, .dtype = ANTIPHON_U8, .root = root};
    if (!group) return ANTIPHON_MPI_FOREIGN;
    return root < 0 || root >= group->size ? ANTIPHON_MPI_ARGUMENT : ANTIPHON_MPI_OURS;
}

struct antiphon_mpi_group *antiphon_mpi_bcast(struct antiphon_mpi_call *call, void *buffer, MPI_Count count,
                                              MPI_Datatype type, int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_BCAST, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_BCAST, reason);
    struct antiphon_mpi_side *side = group->rank == root ? &call->in : &call->out;
    if (!antiphon_mpi_side(side, buffer, count, type, 1)) return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, antiphon_mpi_block(side, 0), false));
}

struct antiphon_mpi_group *antiphon_mpi_reduce(struct antiphon_mpi_call *call, const void *send, void *recv,
                                               MPI_Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
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

struct antiphon_mpi_group *antiphon_mpi_gather(struct antiphon_mpi_call *call, const void *send, MPI_Count count,
                                               MPI_Datatype type, void *recv, MPI_Count rcount, MPI_Datatype rtype,
                                               int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_GATHER, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_GATHER, reason);
    bool is_root = group->rank == root, in_place = is_root && send == MPI_IN_PLACE;
    if ((is_root ? recv : send) == MPI_IN_PLACE ||
        (is_root && !antiphon_mpi_side(&call->out, recv, rcount, rtype, group->size)) ||
        (!in_place && !antiphon_mpi_side(&call->in, send, count, type, 1)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    size_t bytes = antiphon_mpi_block(is_root ? &call->out : &call->in, 0);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, bytes, in_place));
}

struct antiphon_mpi_group *antiphon_mpi_scatter(struct antiphon_mpi_call *call, const void *send, MPI_Count count,
                                                MPI_Datatype type, void *recv, MPI_Count rcount, MPI_Datatype rtype,
                                                int root, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    enum antiphon_mpi_reason reason = described(call, group, ANTIPHON_MPI_SCATTER, root);
    if (reason != ANTIPHON_MPI_OURS) return antiphon_mpi_decided(group, ANTIPHON_MPI_SCATTER, reason);
    bool is_root = group->rank == root, in_place = is_root && recv == MPI_IN_PLACE;
    if ((is_root ? send : recv) == MPI_IN_PLACE ||
        (is_root && !antiphon_mpi_side(&call->in, send, count, type, group->size)) ||
        (!in_place && !antiphon_mpi_side(&call->out, recv, rcount, rtype, 1)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    size_t bytes = antiphon_mpi_block(is_root ? &call->in : &call->out, 0);
    return antiphon_mpi_decided(group, call->kind, antiphon_mpi_move(call, bytes, in_place));
}
