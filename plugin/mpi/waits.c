/* Everything that completes requests. Ours are looked at first; MPI does the rest, also where both are in one array. */
#include "antiphon_mpi.h"

static bool is_quiet(void) {
    return atomic_load(&antiphon_mpi_state.under_way) == 0;
}

static bool all_progress(int count, const MPI_Request *requests) {
    bool all = true;
    for (int index = 0; index < count; index++) all &= antiphon_mpi_progress(requests[index]);
    return all;
}

/* Requests of MPI go on meanwhile. */
static void wait_for_ours(int count, const MPI_Request *requests) {
    unsigned looks = 0;
    while (!is_quiet() && !all_progress(count, requests)) antiphon_mpi_idle(&looks);
}

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    if (!is_quiet() && request) wait_for_ours(1, request);
    return PMPI_Wait(request, status);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status *statuses) {
    if (!is_quiet() && requests) wait_for_ours(count, requests);
    return PMPI_Waitall(count, requests, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status) {
    unsigned looks = 0;
    for (int flag; !is_quiet() && requests;) {
        if (all_progress(count, requests)) break;
        int code = PMPI_Testany(count, requests, index, &flag, status);
        if (code != MPI_SUCCESS || flag) return code;
        antiphon_mpi_idle(&looks);
    }
    return PMPI_Waitany(count, requests, index, status);
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int *indices, MPI_Status *statuses) {
    unsigned looks = 0;
    while (!is_quiet() && requests) {
        if (all_progress(count, requests)) break;
        int code = PMPI_Testsome(count, requests, done, indices, statuses);
        if (code != MPI_SUCCESS || *done != 0) return code;
        antiphon_mpi_idle(&looks);
    }
    return PMPI_Waitsome(count, requests, done, indices, statuses);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    if (!is_quiet() && request) all_progress(1, request);
    return PMPI_Test(request, flag, status);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status *statuses) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Testall(count, requests, flag, statuses);
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Testany(count, requests, index, flag, status);
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int *indices, MPI_Status *statuses) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Testsome(count, requests, done, indices, statuses);
}

int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status) {
    if (!is_quiet()) antiphon_mpi_progress(request);
    return PMPI_Request_get_status(request, flag, status);
}

/* These came with MPI 4.1. */
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
int MPI_Request_get_status_all(int count, const MPI_Request requests[], int *flag, MPI_Status *statuses) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Request_get_status_all(count, requests, flag, statuses);
}

int MPI_Request_get_status_any(int count, const MPI_Request requests[], int *index, int *flag, MPI_Status *status) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Request_get_status_any(count, requests, index, flag, status);
}

int MPI_Request_get_status_some(int count, const MPI_Request requests[], int *done, int *indices, MPI_Status *statuses) {
    if (!is_quiet() && requests) all_progress(count, requests);
    return PMPI_Request_get_status_some(count, requests, done, indices, statuses);
}
#endif

/* MPI does not allow this for collective calls under way. Where a program does it all the same, the call is waited for. */
int MPI_Request_free(MPI_Request *request) {
    if (!is_quiet() && request) wait_for_ours(1, request);
    return PMPI_Request_free(request);
}
