/* The collectives, as the application calls them: each makes the call with libantiphon, or hands it to MPI as it is. */
#include "antiphon_mpi.h"

#define NAME(name) name
#define COUNT int
#define OFFSET int
#include "functions.h"

/* The variants with large counts came with MPI 4. */
#if MPI_VERSION >= 4
#define NAME(name) name##_c
#define COUNT MPI_Count
#define OFFSET MPI_Aint
#include "functions.h"
#endif

int MPI_Barrier(MPI_Comm comm) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_barrier(&call, comm);
    return antiphon_mpi_ours(group, &call) ? antiphon_mpi_run(group, &call)
                                           : antiphon_mpi_theirs(&call, PMPI_Barrier(comm));
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group = antiphon_mpi_barrier(&call, comm);
    return antiphon_mpi_ours_begun(group, &call) ? antiphon_mpi_request(group, &call, request)
                                                 : PMPI_Ibarrier(comm, request);
}
