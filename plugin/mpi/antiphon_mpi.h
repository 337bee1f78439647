/* What the files of libantiphon_mpi share. See README.md for what the library does, and collectives.c for how all ranks
 * come to the same decision. */
#ifndef ANTIPHON_MPI_H
#define ANTIPHON_MPI_H

/* Everything else is hidden; what mpi.h declares is what this library is for. */
#pragma GCC visibility push(default)
#include <mpi.h>
#pragma GCC visibility pop

#include "antiphon.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum antiphon_mpi_kind {
    ANTIPHON_MPI_ALLREDUCE,
    ANTIPHON_MPI_ALLGATHER,
    ANTIPHON_MPI_REDUCE_SCATTER,
    ANTIPHON_MPI_ALLTOALL,
    ANTIPHON_MPI_ALLTOALLV,
    ANTIPHON_MPI_BCAST,
    ANTIPHON_MPI_REDUCE,
    ANTIPHON_MPI_GATHER,
    ANTIPHON_MPI_SCATTER,
    ANTIPHON_MPI_BARRIER,
    ANTIPHON_MPI_KINDS
};

/* Why a call goes to MPI. */
enum antiphon_mpi_reason {
    ANTIPHON_MPI_FOREIGN,  /* the communicator has no handle of ours */
    ANTIPHON_MPI_TYPE,     /* libantiphon does not reduce this type, or not so */
    ANTIPHON_MPI_UNEQUAL,  /* reduce_scatter of unequal blocks */
    ANTIPHON_MPI_EMPTY,    /* no bytes */
    ANTIPHON_MPI_LARGE,    /* a block is too large to be packed */
    ANTIPHON_MPI_ARGUMENT, /* an argument makes no sense; MPI says so better */
    ANTIPHON_MPI_COMPARED, /* both make some calls in turn */
    ANTIPHON_MPI_FASTER,   /* MPI was faster */
    ANTIPHON_MPI_REASONS,
    ANTIPHON_MPI_OURS      /* it does not go to MPI */
};

/* Our handle of a communicator. The attribute of the communicator owns it, and so does every request under way. */
struct antiphon_mpi_group {
    antiphon_comm_t handle;
    MPI_Comm comm; /* MPI_COMM_NULL once it was freed */
    int rank, size;
    int owners;
    struct antiphon_mpi_choice *choices[ANTIPHON_MPI_KINDS]; /* by size class, once they are needed */
    struct antiphon_mpi_group *next;
};

/* An array of the caller's: int, or in the variants with large counts MPI_Count or MPI_Aint. */
struct antiphon_mpi_list {
    const void *values;
    size_t width; /* bytes of a value */
};

/* One side of a call that moves data: blocks of elements of a type. */
struct antiphon_mpi_side {
    char *buffer;
    MPI_Datatype type;
    size_t size;      /* bytes of data in an element */
    ptrdiff_t extent; /* from one element to the next */
    bool is_plain;    /* the data lie in memory as they are sent */
    bool is_ours;     /* the type is our copy */
    int blocks;
    size_t count;                 /* elements of each block, if they are equal */
    struct antiphon_mpi_list counts, offsets; /* of each block otherwise, in elements */
    char *packed;                 /* the data one after the other, if the buffer cannot be used */
};

/* What libantiphon is asked for. */
struct antiphon_mpi_call {
    enum antiphon_mpi_kind kind;
    size_t count;
    antiphon_dtype_t dtype;
    antiphon_op_t op;
    int root;
    const void *send;
    void *recv;
    size_t *blocks;                     /* alltoallv: counts, offsets, received counts, their offsets; then the caller's */
    struct antiphon_mpi_side in, out;   /* unused by reductions and barriers */
    bool in_place;
    antiphon_request_t request;
    struct antiphon_mpi_choice *choice; /* for which the call is timed, or NULL */
    struct antiphon_mpi_group *group;   /* of a call that is timed */
    double began;                       /* when, in seconds */
};

/* A call under way that the application holds a request for. */
struct antiphon_mpi_begun {
    struct antiphon_mpi_call call;
    struct antiphon_mpi_group *group;
    MPI_Request request;
    bool is_over;
    antiphon_result_t result;
    int code; /* what MPI_Wait returns */
    char *text;
    struct antiphon_mpi_begun *next;
};

/* The type of elements for which candidates.c makes a table. */
enum { ANTIPHON_MPI_MEASURED = ANTIPHON_F64, ANTIPHON_MPI_MEASURED_BYTES = 8 };
enum { ANTIPHON_MPI_TYPES = 40, ANTIPHON_MPI_PLANS = 64, ANTIPHON_MPI_PLAN_NAME = 96 };

struct antiphon_mpi_type {
    MPI_Datatype type;
    int dtype;       /* what it is to a reduction, or -1 */
    unsigned ops;    /* which reductions: a bit for each antiphon_op */
    size_t size;
};

struct antiphon_mpi_plan {
    enum antiphon_mpi_kind kind;
    char name[ANTIPHON_MPI_PLAN_NAME];
    unsigned long calls;
};

/* All that the library knows. */
struct antiphon_mpi_state {
    bool is_active;
    bool is_one_machine;
    bool wants_statistics;
    bool compares;   /* whether calls of both are timed (choices.c) */
    char *choices_file;                       /* on rank 0 */
    struct antiphon_mpi_known *known_choices; /* of the file */
    int keyval;      /* of our handles */
    int end;         /* of the attribute whose end is the end of MPI */
    MPI_Comm comm;   /* of our own, for progress and for the last barrier */
    MPI_Comm tuned;  /* of our own, for calls that a table leaves to MPI (candidates.c) */
    bool has_table;  /* whether that table is used */
    unsigned looks;  /* how often a waiting call looks before it lets others run */
    struct antiphon_mpi_type types[ANTIPHON_MPI_TYPES];
    int known;       /* how many types */

    pthread_mutex_t lock; /* of all that follows; MPI is never called under it */
    struct antiphon_mpi_group *groups;
    struct antiphon_mpi_begun *begun;
    atomic_int under_way; /* how many have begun */
    pthread_cond_t work;
    pthread_t helper;
    bool has_helper, is_over;
    struct antiphon_mpi_plan plans[ANTIPHON_MPI_PLANS];
    unsigned long passed[ANTIPHON_MPI_KINDS][ANTIPHON_MPI_REASONS];
    struct antiphon_mpi_known *new_choices;
};

extern struct antiphon_mpi_state antiphon_mpi_state;

/* state.c */
void antiphon_mpi_start(void);

/* types.c */
void antiphon_mpi_know_types(void);
const struct antiphon_mpi_type *antiphon_mpi_type(MPI_Datatype type);
bool antiphon_mpi_reduction(MPI_Datatype type, MPI_Op op, struct antiphon_mpi_call *call);
bool antiphon_mpi_side(struct antiphon_mpi_side *side, const void *buffer, MPI_Count count, MPI_Datatype type, int blocks);

/* collectives.c and rooted.c: they describe a call, and return the group that makes it, or NULL if it goes to MPI */
struct antiphon_mpi_group *antiphon_mpi_allreduce(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                  MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_reduce_scatter(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                       MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_reduce_scatter_of(struct antiphon_mpi_call *call, const void *send, void *recv,
                                                          struct antiphon_mpi_list counts, MPI_Datatype type, MPI_Op op,
                                                          MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_exchange(struct antiphon_mpi_call *call, enum antiphon_mpi_kind kind,
                                                 const void *send, MPI_Count count, MPI_Datatype type, void *recv,
                                                 MPI_Count rcount, MPI_Datatype rtype, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_alltoallv(struct antiphon_mpi_call *call, const void *send,
                                                  struct antiphon_mpi_list counts, struct antiphon_mpi_list offsets,
                                                  MPI_Datatype type, void *recv, struct antiphon_mpi_list rcounts,
                                                  struct antiphon_mpi_list roffsets, MPI_Datatype rtype, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_barrier(struct antiphon_mpi_call *call, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_bcast(struct antiphon_mpi_call *call, void *buffer, MPI_Count count,
                                              MPI_Datatype type, int root, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_reduce(struct antiphon_mpi_call *call, const void *send, void *recv,
                                               MPI_Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_gather(struct antiphon_mpi_call *call, const void *send, MPI_Count count,
                                               MPI_Datatype type, void *recv, MPI_Count rcount, MPI_Datatype rtype,
                                               int root, MPI_Comm comm);
struct antiphon_mpi_group *antiphon_mpi_scatter(struct antiphon_mpi_call *call, const void *send, MPI_Count count,
                                                MPI_Datatype type, void *recv, MPI_Count rcount, MPI_Datatype rtype,
                                                int root, MPI_Comm comm);

/* pack.c */
ptrdiff_t antiphon_mpi_at(struct antiphon_mpi_list list, int index);
int antiphon_mpi_unpack(struct antiphon_mpi_side *side);
int antiphon_mpi_keep_type(struct antiphon_mpi_side *side);
void antiphon_mpi_drop(struct antiphon_mpi_call *call);
size_t antiphon_mpi_block(const struct antiphon_mpi_side *side, int block);
enum antiphon_mpi_reason antiphon_mpi_move(struct antiphon_mpi_call *call, size_t bytes, bool in_place);
int antiphon_mpi_arrange(struct antiphon_mpi_call *call, const struct antiphon_mpi_group *group);

/* groups.c */
struct antiphon_mpi_group *antiphon_mpi_group(MPI_Comm comm);
int antiphon_mpi_attach(MPI_Comm comm, antiphon_comm_t handle);
int antiphon_mpi_adopt(struct antiphon_mpi_group *parent, MPI_Comm made);
void antiphon_mpi_hold(struct antiphon_mpi_group *group);
void antiphon_mpi_release(struct antiphon_mpi_group *group);
int antiphon_mpi_forget(MPI_Comm comm, int keyval, void *group, void *extra);

/* choices.c */
size_t antiphon_mpi_element(antiphon_dtype_t dtype);
bool antiphon_mpi_ours(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call);
bool antiphon_mpi_ours_begun(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call);
void antiphon_mpi_timed(const struct antiphon_mpi_call *call);
int antiphon_mpi_theirs(const struct antiphon_mpi_call *call, int code);
void antiphon_mpi_forget_choices(struct antiphon_mpi_group *group);
void antiphon_mpi_begin_choices(int rank);
void antiphon_mpi_end_choices(void);

/* candidates.c */
bool antiphon_mpi_begin_table(int rank, int size, antiphon_comm_t handle);
void antiphon_mpi_end_table(void);

/* run.c */
int antiphon_mpi_run(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call);
antiphon_result_t antiphon_mpi_begin(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call);
void antiphon_mpi_awaiting(void *context);
void antiphon_mpi_idle(unsigned *looks);
int antiphon_mpi_fail(MPI_Comm comm, antiphon_result_t result, const char *text);

/* requests.c */
int antiphon_mpi_request(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call, MPI_Request *request);
bool antiphon_mpi_progress(MPI_Request request);
void antiphon_mpi_stop(void);

/* statistics.c */
extern const char *const antiphon_mpi_names[ANTIPHON_MPI_KINDS];
void antiphon_mpi_ran(struct antiphon_mpi_group *group, enum antiphon_mpi_kind kind);
struct antiphon_mpi_group *antiphon_mpi_decided(struct antiphon_mpi_group *group, enum antiphon_mpi_kind kind,
                                                enum antiphon_mpi_reason reason);
void antiphon_mpi_report(void);

#endif
