/* The collectives that move data, as MPI has them. functions.c includes this file once for each width of counts: NAME is
 * the name of a function, COUNT the type of a count, and OFFSET that of an offset in an array. */

#define LIST(values) ((struct antiphon_mpi_list){values, sizeof *(values)})

int NAME(MPI_Allreduce)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_allreduce(&call, send, recv, count, type, op, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Allreduce)(send, recv, count, type, op, comm));
}

int NAME(MPI_Iallreduce)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                         MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_allreduce(&call, send, recv, count, type, op, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Iallreduce)(send, recv, count, type, op, comm, request);
}

int NAME(MPI_Reduce_scatter_block)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce_scatter(&call, send, recv, count, type, op, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Reduce_scatter_block)(send, recv, count, type, op, comm));
}

int NAME(MPI_Ireduce_scatter_block)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                    MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce_scatter(&call, send, recv, count, type, op, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ireduce_scatter_block)(send, recv, count, type, op, comm, request);
}

int NAME(MPI_Reduce_scatter)(const void *send, void *recv, const COUNT counts[], MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce_scatter_of(&call, send, recv, LIST(counts), type, op, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Reduce_scatter)(send, recv, counts, type, op, comm));
}

int NAME(MPI_Ireduce_scatter)(const void *send, void *recv, const COUNT counts[], MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce_scatter_of(&call, send, recv, LIST(counts), type, op, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ireduce_scatter)(send, recv, counts, type, op, comm, request);
}

int NAME(MPI_Allgather)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                        MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_exchange(&call, ANTIPHON_MPI_ALLGATHER, send, count, type, recv, rcount, rtype, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Allgather)(send, count, type, recv, rcount, rtype, comm));
}

int NAME(MPI_Iallgather)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                         MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_exchange(&call, ANTIPHON_MPI_ALLGATHER, send, count, type, recv, rcount, rtype, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Iallgather)(send, count, type, recv, rcount, rtype, comm, request);
}

int NAME(MPI_Alltoall)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                       MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_exchange(&call, ANTIPHON_MPI_ALLTOALL, send, count, type, recv, rcount, rtype, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Alltoall)(send, count, type, recv, rcount, rtype, comm));
}

int NAME(MPI_Ialltoall)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                        MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_exchange(&call, ANTIPHON_MPI_ALLTOALL, send, count, type, recv, rcount, rtype, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ialltoall)(send, count, type, recv, rcount, rtype, comm, request);
}

int NAME(MPI_Alltoallv)(const void *send, const COUNT counts[], const OFFSET offsets[], MPI_Datatype type, void *recv,
                        const COUNT rcounts[], const OFFSET roffsets[], MPI_Datatype rtype, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_alltoallv(&call, send, LIST(counts), LIST(offsets), type, recv, LIST(rcounts), LIST(roffsets), rtype,
                               comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Alltoallv)(send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm));
}

int NAME(MPI_Ialltoallv)(const void *send, const COUNT counts[], const OFFSET offsets[], MPI_Datatype type, void *recv,
                         const COUNT rcounts[], const OFFSET roffsets[], MPI_Datatype rtype, MPI_Comm comm,
                         MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group =
        antiphon_mpi_alltoallv(&call, send, LIST(counts), LIST(offsets), type, recv, LIST(rcounts), LIST(roffsets), rtype,
                               comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ialltoallv)(send, counts, offsets, type, recv, rcounts, roffsets, rtype, comm, request);
}

int NAME(MPI_Bcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_bcast(&call, buffer, count, type, root, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(&call, NAME(PMPI_Bcast)(buffer, count, type, root, comm));
}

int NAME(MPI_Ibcast)(void *buffer, COUNT count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_bcast(&call, buffer, count, type, root, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ibcast)(buffer, count, type, root, comm, request);
}

int NAME(MPI_Reduce)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce(&call, send, recv, count, type, op, root, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Reduce)(send, recv, count, type, op, root, comm));
}

int NAME(MPI_Ireduce)(const void *send, void *recv, COUNT count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                      MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_reduce(&call, send, recv, count, type, op, root, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Ireduce)(send, recv, count, type, op, root, comm, request);
}

int NAME(MPI_Gather)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                     int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_gather(&call, send, count, type, recv, rcount, rtype, root, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Gather)(send, count, type, recv, rcount, rtype, root, comm));
}

int NAME(MPI_Igather)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                      int root, MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_gather(&call, send, count, type, recv, rcount, rtype, root, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Igather)(send, count, type, recv, rcount, rtype, root, comm, request);
}

int NAME(MPI_Scatter)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                      int root, MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_scatter(&call, send, count, type, recv, rcount, rtype, root, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(
                       &call, NAME(PMPI_Scatter)(send, count, type, recv, rcount, rtype, root, comm));
}

int NAME(MPI_Iscatter)(const void *send, COUNT count, MPI_Datatype type, void *recv, COUNT rcount, MPI_Datatype rtype,
                       int root, MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_scatter(&call, send, count, type, recv, rcount, rtype, root, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                 : NAME(PMPI_Iscatter)(send, count, type, recv, rcount, rtype, root, comm, request);
}

#undef LIST
#undef NAME
#undef COUNT
#undef OFFSET
