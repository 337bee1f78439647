/* Communicators: an attribute holds our handle. */
#include "antiphon_mpi.h"
#include <stdlib.h>

struct antiphon_mpi_group *antiphon_mpi_group(MPI_Comm comm) {
    struct antiphon_mpi_group *group = NULL;
    int found = 0;
    if (!antiphon_mpi_state.is_active || comm == MPI_COMM_NULL) return NULL;
    int code = PMPI_Comm_get_attr(comm, antiphon_mpi_state.keyval, &group, &found);
    return code == MPI_SUCCESS && found ? group : NULL;
}

/* Takes the handle, also if it fails. */
int antiphon_mpi_attach(MPI_Comm comm, antiphon_comm_t handle) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    struct antiphon_mpi_group *group = malloc(sizeof *group);
    if (!group) {
        antiphon_comm_free(&handle);
        return MPI_ERR_NO_MEM;
    }
    *group = (struct antiphon_mpi_group){.handle = handle, .comm = comm, .owners = 1};
    PMPI_Comm_rank(comm, &group->rank);
    PMPI_Comm_size(comm, &group->size);
    pthread_mutex_lock(&state->lock);
    group->next = state->groups;
    state->groups = group;
    pthread_mutex_unlock(&state->lock);
    int code = PMPI_Comm_set_attr(comm, state->keyval, group);
    if (code != MPI_SUCCESS) antiphon_mpi_release(group);
    return code;
}

void antiphon_mpi_hold(struct antiphon_mpi_group *group) {
    pthread_mutex_lock(&antiphon_mpi_state.lock);
    group->owners++;
    pthread_mutex_unlock(&antiphon_mpi_state.lock);
}

void antiphon_mpi_release(struct antiphon_mpi_group *group) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    pthread_mutex_lock(&state->lock);
    bool is_last = --group->owners == 0;
    for (struct antiphon_mpi_group **at = &state->groups; is_last && *at; at = &(*at)->next)
        if (*at == group) {
            *at = group->next;
            break;
        }
    pthread_mutex_unlock(&state->lock);
    if (!is_last) return;
    antiphon_comm_free(&group->handle);
    antiphon_mpi_forget_choices(group);
    free(group);
}

/* MPI calls this when it frees a communicator. Requests may still need our handle. */
int antiphon_mpi_forget(MPI_Comm comm, int keyval, void *attribute, void *extra) {
    struct antiphon_mpi_group *group = attribute;
    (void)comm, (void)keyval, (void)extra;
    pthread_mutex_lock(&antiphon_mpi_state.lock);
    group->comm = MPI_COMM_NULL;
    pthread_mutex_unlock(&antiphon_mpi_state.lock);
    antiphon_mpi_release(group);
    return MPI_SUCCESS;
}

/* Which of the parent's ranks is the first of a new communicator. */
static int leader(struct antiphon_mpi_group *parent, MPI_Comm made) {
    MPI_Group old, new;
    int first = 0, number = MPI_UNDEFINED;
    PMPI_Comm_group(parent->comm, &old);
    PMPI_Comm_group(made, &new);
    PMPI_Group_translate_ranks(new, 1, &first, old, &number);
    PMPI_Group_free(&old);
    PMPI_Group_free(&new);
    return number;
}

/* Gives handles to the communicators that all ranks of `parent` have just made, each of its own or none. Those who are in the
 * same one name the same first rank, and others name others; so nothing needs to be known of how it was made. */
int antiphon_mpi_adopt(struct antiphon_mpi_group *parent, MPI_Comm made) {
    antiphon_comm_t handle = NULL;
    antiphon_request_t barrier = NULL;
    unsigned looks = 0;
    int size = 0, rank = 0, color = -1, done = 0;
    if (made != MPI_COMM_NULL) {
        PMPI_Comm_size(made, &size);
        PMPI_Comm_rank(made, &rank);
        if (size > 1) color = leader(parent, made);
    }
    /* While a rank splits, MPI makes no progress. After this barrier no other rank needs any to get here. */
    antiphon_result_t result = antiphon_barrier_start(parent->handle, &barrier);
    while (result == ANTIPHON_SUCCESS && !done) {
        result = antiphon_test(&barrier, &done);
        if (!done) antiphon_mpi_idle(&looks);
    }
    if (result == ANTIPHON_SUCCESS) result = antiphon_comm_split(parent->handle, color, rank, &handle);
    if (result != ANTIPHON_SUCCESS) return antiphon_mpi_fail(parent->comm, result, antiphon_last_error());
    return handle ? antiphon_mpi_attach(made, handle) : MPI_SUCCESS;
}
