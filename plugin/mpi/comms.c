/* Functions that make communicators. All of these are called by all ranks of the parent, so all of them get handles. The
 * others (MPI_Comm_create_group, MPI_Comm_idup, intercommunicators, spawned processes) get none: their calls go to MPI. */
#include "antiphon_mpi.h"

static int made(MPI_Comm parent, int code, const MPI_Comm *comm) {
    struct antiphon_mpi_group *group = code == MPI_SUCCESS ? antiphon_mpi_group(parent) : NULL;
    return group ? antiphon_mpi_adopt(group, *comm) : code;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *new) {
    return made(comm, PMPI_Comm_dup(comm, new), new);
}

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *new) {
    return made(comm, PMPI_Comm_dup_with_info(comm, info, new), new);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *new) {
    return made(comm, PMPI_Comm_split(comm, color, key, new), new);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new) {
    return made(comm, PMPI_Comm_split_type(comm, type, key, info, new), new);
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *new) {
    return made(comm, PMPI_Comm_create(comm, group, new), new);
}

int MPI_Cart_create(MPI_Comm comm, int ndims, const int dims[], const int periods[], int reorder, MPI_Comm *new) {
    return made(comm, PMPI_Cart_create(comm, ndims, dims, periods, reorder, new), new);
}

int MPI_Cart_sub(MPI_Comm comm, const int remain_dims[], MPI_Comm *new) {
    return made(comm, PMPI_Cart_sub(comm, remain_dims, new), new);
}

int MPI_Graph_create(MPI_Comm comm, int nnodes, const int index[], const int edges[], int reorder, MPI_Comm *new) {
    return made(comm, PMPI_Graph_create(comm, nnodes, index, edges, reorder, new), new);
}

int MPI_Dist_graph_create(MPI_Comm comm, int n, const int nodes[], const int degrees[], const int targets[],
                          const int weights[], MPI_Info info, int reorder, MPI_Comm *new) {
    return made(comm, PMPI_Dist_graph_create(comm, n, nodes, degrees, targets, weights, info, reorder, new), new);
}

int MPI_Dist_graph_create_adjacent(MPI_Comm comm, int indegree, const int sources[], const int sourceweights[],
                                   int outdegree, const int destinations[], const int destweights[], MPI_Info info,
                                   int reorder, MPI_Comm *new) {
    return made(comm,
                PMPI_Dist_graph_create_adjacent(comm, indegree, sources, sourceweights, outdegree, destinations,
                                                destweights, info, reorder, new),
                new);
}
