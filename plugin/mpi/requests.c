/* Calls under way that the application holds requests for.
 *
 * A request is a generalized request of MPI. MPI does not ask us for progress, so all functions that complete requests come
 * here first (waits.c). The call also goes on while the application is elsewhere in MPI, or not in MPI at all: while there
 * are such calls, a helper thread looks at them now and then. It never calls MPI, so it needs no thread support of MPI. */
#include "antiphon_mpi.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHORTEST_NAP = 50000, LONGEST_NAP = 1000000 };

static int query(void *extra, MPI_Status *status) {
    const struct antiphon_mpi_begun *begun = extra;
    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return begun->code;
}

static int let_go(void *extra) {
    struct antiphon_mpi_begun *begun = extra;
    free(begun->text);
    free(begun);
    return MPI_SUCCESS;
}

/* Collective calls cannot be cancelled. */
static int cancel(void *extra, int is_complete) {
    (void)extra, (void)is_complete;
    return MPI_SUCCESS;
}

/* Under the lock. */
static void look(struct antiphon_mpi_begun *begun) {
    int done = 0;
    if (begun->is_over) return;
    begun->result = antiphon_test(&begun->call.request, &done);
    if (begun->result != ANTIPHON_SUCCESS) begun->text = strdup(antiphon_last_error());
    begun->is_over = done || begun->result != ANTIPHON_SUCCESS;
}

static void *help(void *unused) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    long nap = SHORTEST_NAP;
    (void)unused;
    pthread_mutex_lock(&state->lock);
    while (!state->is_over) {
        bool is_any = false;
        for (struct antiphon_mpi_begun *begun = state->begun; begun; begun = begun->next) {
            look(begun);
            is_any |= !begun->is_over;
        }
        if (!is_any) {
            nap = SHORTEST_NAP;
            pthread_cond_wait(&state->work, &state->lock);
            continue;
        }
        pthread_mutex_unlock(&state->lock);
        nanosleep(&(struct timespec){0, nap}, NULL);
        nap = nap * 2 < LONGEST_NAP ? nap * 2 : LONGEST_NAP;
        pthread_mutex_lock(&state->lock);
    }
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

/* Under the lock. Signals are the application's. Without a helper, a call goes on only while its rank waits. */
static void call_helper(void) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    sigset_t all, before;
    if (state->has_helper) {
        pthread_cond_signal(&state->work);
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    state->has_helper = pthread_create(&state->helper, NULL, help, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void antiphon_mpi_stop(void) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    pthread_mutex_lock(&state->lock);
    state->is_over = true;
    pthread_cond_signal(&state->work);
    pthread_mutex_unlock(&state->lock);
    if (state->has_helper) pthread_join(state->helper, NULL);
    state->has_helper = false;
}

/* Ends the request of a call that is over, and that the list does not hold any more. */
static void finish(struct antiphon_mpi_begun *begun) {
    struct antiphon_mpi_group *group = begun->group;
    if (begun->result != ANTIPHON_SUCCESS) begun->code = antiphon_mpi_fail(group->comm, begun->result, begun->text);
    else begun->code = antiphon_mpi_unpack(&begun->call.out);
    antiphon_mpi_drop(&begun->call);
    antiphon_mpi_release(group);
    PMPI_Grequest_complete(begun->request);
}

/* Begins a call. */
int antiphon_mpi_request(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call, MPI_Request *request) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    struct antiphon_mpi_begun *begun = calloc(1, sizeof *begun);
    int code = begun ? antiphon_mpi_arrange(call, group) : MPI_ERR_NO_MEM;
    if (code == MPI_SUCCESS) code = antiphon_mpi_keep_type(&call->out);
    if (code == MPI_SUCCESS) code = PMPI_Grequest_start(query, let_go, cancel, begun, request);
    if (code != MPI_SUCCESS) {
        free(begun);
        antiphon_mpi_drop(call);
        PMPI_Comm_call_errhandler(group->comm, code);
        return code;
    }
    *begun = (struct antiphon_mpi_begun){.call = *call, .group = group, .request = *request};
    antiphon_mpi_hold(group);
    begun->result = antiphon_mpi_begin(group, &begun->call);
    if (begun->result != ANTIPHON_SUCCESS) {
        const char *text = antiphon_last_error();
        begun->text = text ? strdup(text) : NULL;
        finish(begun);
        code = begun->code;
        PMPI_Request_free(request);
        return code;
    }
    pthread_mutex_lock(&state->lock);
    begun->next = state->begun;
    state->begun = begun;
    atomic_fetch_add(&state->under_way, 1);
    call_helper();
    pthread_mutex_unlock(&state->lock);
    return MPI_SUCCESS;
}

/* Looks at a request. Whether MPI can complete it as far as we know: it is not ours, or it is over. */
bool antiphon_mpi_progress(MPI_Request request) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    struct antiphon_mpi_begun *found = NULL;
    if (request == MPI_REQUEST_NULL || atomic_load(&state->under_way) == 0) return true;
    pthread_mutex_lock(&state->lock);
    struct antiphon_mpi_begun **at = &state->begun;
    while (*at && (*at)->request != request) at = &(*at)->next;
    found = *at;
    if (found) {
        look(found);
        if (!found->is_over) {
            pthread_mutex_unlock(&state->lock);
            return false;
        }
        *at = found->next;
        atomic_fetch_sub(&state->under_way, 1);
    }
    pthread_mutex_unlock(&state->lock);
    if (found) finish(found);
    return true;
}
