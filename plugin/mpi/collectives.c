/* What the collectives without a root do with a call. The functions themselves are in functions.c.
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
 * What remains: ranks that call different functions for one collective call, of which one is not ours: in Open MPI the
 * functions of Fortran. */
#include "antiphon_mpi.h"

static enum antiphon_mpi_reason reduce(struct antiphon_mpi_call *call, const void *send, void *recv, MPI_Count count,
                                       MPI_Datatype type, MPI_Op op) {
    if (count < 0 || recv == MPI_IN_PLACE) return ANTIPHON_MPI_ARGUMENT;
    if (count == 0) return ANTIPHON_MPI_EMPTY;
    if (!antiphon_mpi_reduction(type, op, call)) return ANTIPHON_MPI_TYPE;
    call->send = send == MPI_IN_PLACE ? recv : send;
    call->recv = recv;
    call->count = (size_t)count;
    return ANTIPHON_MPI_OURS;
}

struct antiphon_mpi_group *antiphon_mpi_allreduce(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                  MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_ALLREDUCE};
    return antiphon_mpi_decided(group, call->kind, group ? reduce(call, send, recv, count, type, op) : ANTIPHON_MPI_FOREIGN);
}

struct antiphon_mpi_group *antiphon_mpi_reduce_scatter(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                       MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_REDUCE_SCATTER};
    return antiphon_mpi_decided(group, call->kind, group ? reduce(call, send, recv, count, type, op) : ANTIPHON_MPI_FOREIGN);
}

/* All ranks give the same counts. */
struct antiphon_mpi_group *antiphon_mpi_reduce_scatter_of(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                          struct antiphon_mpi_list counts, MPI_Datatype type, MPI_Op op,
                                                          MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool is_equal = true;
    if (!group || !counts.values)
        return antiphon_mpi_decided(group, ANTIPHON_MPI_REDUCE_SCATTER, group ? ANTIPHON_MPI_ARGUMENT : ANTIPHON_MPI_FOREIGN);
    for (int rank = 1; rank < group->size; rank++) is_equal &= antiphon_mpi_at(counts, rank) == antiphon_mpi_at(counts, 0);
    if (!is_equal) return antiphon_mpi_decided(group, ANTIPHON_MPI_REDUCE_SCATTER, ANTIPHON_MPI_UNEQUAL);
    return antiphon_mpi_reduce_scatter(call, send, recv, antiphon_mpi_at(counts, 0), type, op, comm);
}

/* Both have a send side of one block (allgather), or of as many as there are ranks (alltoall). */
struct antiphon_mpi_group *antiphon_mpi_exchange(struct antiphon_mpi_call *call, enum antiphon_mpi_kind kind,
                                                 const void *send, MPI_Count count, MPI_Datatype type, void *recv,
                                                 MPI_Count rcount, MPI_Datatype rtype, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool in_place = send == MPI_IN_PLACE;
    *call = (struct antiphon_mpi_call){.kind = kind, .dtype = ANTIPHON_U8};
    if (!group) return antiphon_mpi_decided(group, kind, ANTIPHON_MPI_FOREIGN);
    int blocks = kind == ANTIPHON_MPI_ALLGATHER ? 1 : group->size;
    if (recv == MPI_IN_PLACE || !antiphon_mpi_side(&call->out, recv, rcount, rtype, group->size) ||
        (!in_place && !antiphon_mpi_side(&call->in, send, count, type, blocks)))
        return antiphon_mpi_decided(group, kind, ANTIPHON_MPI_ARGUMENT);
    return antiphon_mpi_decided(group, kind, antiphon_mpi_move(call, antiphon_mpi_block(&call->out, 0), in_place));
}

static bool side_of(struct antiphon_mpi_side *side, const void *buffer, struct antiphon_mpi_list counts,
                    struct antiphon_mpi_list offsets, MPI_Datatype type, int size) {
    if (!counts.values || !offsets.values || !antiphon_mpi_side(side, buffer, 0, type, size)) return false;
    for (int rank = 0; rank < size; rank++)
        if (antiphon_mpi_at(counts, rank) < 0) return false;
    side->counts = counts;
    side->offsets = offsets;
    return true;
}

struct antiphon_mpi_group *antiphon_mpi_alltoallv(struct antiphon_mpi_call *call, const void *send,
                                                  struct antiphon_mpi_list counts, struct antiphon_mpi_list offsets,
                                                  MPI_Datatype type, void *recv, struct antiphon_mpi_list rcounts,
                                                  struct antiphon_mpi_list roffsets, MPI_Datatype rtype, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    bool in_place = send == MPI_IN_PLACE;
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_ALLTOALLV, .dtype = ANTIPHON_U8};
    if (!group) return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_FOREIGN);
    if (recv == MPI_IN_PLACE || !side_of(&call->out, recv, rcounts, roffsets, rtype, group->size) ||
        (!in_place && !side_of(&call->in, send, counts, offsets, type, group->size)))
        return antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_ARGUMENT);
    call->in_place = in_place;
    return group;
}

struct antiphon_mpi_group *antiphon_mpi_barrier(struct antiphon_mpi_call *call, MPI_Comm comm) {
    struct antiphon_mpi_group *group = antiphon_mpi_group(comm);
    *call = (struct antiphon_mpi_call){.kind = ANTIPHON_MPI_BARRIER};
    return antiphon_mpi_decided(group, call->kind, group ? ANTIPHON_MPI_OURS : ANTIPHON_MPI_FOREIGN);
}
