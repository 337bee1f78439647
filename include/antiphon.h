/* Antiphon: collective communication. Generated from the Rust definitions: change those, then run
 * ANTIPHON_UPDATE=1 cargo test -p plugin header
 *
 * Handles are opaque. Every function returns an antiphon_result_t, which is 0 for success; where it is not, places for
 * answers stay as they were, and what buffers hold is not said. `count` means what MPI means: elements per rank for
 * allgather, gather, scatter and alltoall, the received elements for reduce_scatter, the vector's length otherwise.
 * Buffers need no alignment. A buffer of no elements may be NULL.
 *
 * Calls of a communicator, blocking or begun, are made by all its ranks in the same order. Several threads may use one
 * communicator, which does their calls one after the other, and several communicators at the same time. A call that has
 * begun goes on by itself. Messages between two ranks have an order of their own, and wait for no collective; a rank may
 * send to itself if it begins one of the two.
 *
 * A call fails if it makes no progress for 30 s (ANTIPHON_TIMEOUT, in seconds). After a failure all later calls of its
 * communicator fail on all ranks. Ranks have 60 s to join. ANTIPHON_TABLE names the plans to use, ANTIPHON_DEBUG=info says
 * which plan serves what, ANTIPHON_STATS names a file for the calls of each plan. ANTIPHON_INTERFACE names the interface
 * where ranks of other machines reach this one; ANTIPHON_TRANSPORT is auto, shm (ranks of several machines are refused) or
 * tcp (also on one machine). A process that was forked can make no calls with handles of its parent.
 *
 * Integers wrap around. ANTIPHON_AVG divides the sum, which may wrap, and rounds towards zero. Minimum and maximum follow
 * IEEE 754-2019: NaN wins, and -0 is less than 0. */

#ifndef ANTIPHON_H
#define ANTIPHON_H

#include <stddef.h>

/**
 * Results.
 */
enum antiphon_result {
  /**
   * The call is done, or has begun.
   */
  ANTIPHON_SUCCESS,
  /**
   * A value makes no sense. Nothing was sent, and the communicator stays as it is.
   */
  ANTIPHON_INVALID_ARGUMENT,
  /**
   * The library does not do this.
   */
  ANTIPHON_UNSUPPORTED,
  /**
   * The operating system refused something.
   */
  ANTIPHON_SYSTEM,
  /**
   * A rank is gone. This call and all later ones of the communicator fail.
   */
  ANTIPHON_PEER_LOST,
  /**
   * A rank did not do its part in time. This call and all later ones of the communicator fail.
   */
  ANTIPHON_TIMEOUT,
  /**
   * Ranks do not make the same call. This call and all later ones of the communicator fail.
   */
  ANTIPHON_MISMATCH,
  /**
   * A rank has called `antiphon_comm_abort`.
   */
  ANTIPHON_ABORTED,
  /**
   * A defect of the library.
   */
  ANTIPHON_INTERNAL,
};

/**
 * Types of elements.
 */
enum antiphon_dtype {
  /**
   * IEEE 754, 32 bits.
   */
  ANTIPHON_F32,
  /**
   * IEEE 754, 64 bits.
   */
  ANTIPHON_F64,
  /**
   * Signed integers of 32 bits.
   */
  ANTIPHON_I32,
  /**
   * Signed integers of 64 bits.
   */
  ANTIPHON_I64,
  /**
   * Bytes.
   */
  ANTIPHON_U8,
  /**
   * IEEE 754, 16 bits.
   */
  ANTIPHON_F16,
  /**
   * The upper half of a 32-bit number.
   */
  ANTIPHON_BF16,
};

/**
 * Reductions.
 */
enum antiphon_op {
  /**
   * The sum.
   */
  ANTIPHON_SUM,
  /**
   * The product.
   */
  ANTIPHON_PROD,
  /**
   * The least element.
   */
  ANTIPHON_MIN,
  /**
   * The greatest element.
   */
  ANTIPHON_MAX,
  /**
   * The sum, divided by the number of ranks.
   */
  ANTIPHON_AVG,
};

/**
 * Collectives that candidates may be for.
 */
enum antiphon_collective {
  /**
   * `antiphon_all_reduce`, in place.
   */
  ANTIPHON_ALL_REDUCE,
  /**
   * `antiphon_all_gather`.
   */
  ANTIPHON_ALL_GATHER,
  /**
   * `antiphon_reduce_scatter`.
   */
  ANTIPHON_REDUCE_SCATTER,
  /**
   * `antiphon_all_to_all`.
   */
  ANTIPHON_ALL_TO_ALL,
  /**
   * `antiphon_broadcast`, which is in place.
   */
  ANTIPHON_BROADCAST,
  /**
   * `antiphon_reduce`.
   */
  ANTIPHON_REDUCE,
  /**
   * `antiphon_gather`.
   */
  ANTIPHON_GATHER,
  /**
   * `antiphon_scatter`.
   */
  ANTIPHON_SCATTER,
};

/**
 * A communicator.
 */
struct antiphon_comm;

/**
 * A call under way.
 */
struct antiphon_request;

/**
 * What a function returns: one of `enum antiphon_result`.
 */
typedef int antiphon_result_t;

/**
 * The type of elements: one of `enum antiphon_dtype`.
 */
typedef int antiphon_dtype_t;

/**
 * How elements are reduced: one of `enum antiphon_op`.
 */
typedef int antiphon_op_t;

/**
 * A communicator.
 */
typedef struct antiphon_comm *antiphon_comm_t;

/**
 * A call under way.
 */
typedef struct antiphon_request *antiphon_request_t;

/**
 * What a program does while it waits.
 */
typedef void (*antiphon_idle_t)(void *context);

/**
 * A call that a candidate has to do, with the meaning that the function of the same name gives to its arguments.
 */
struct antiphon_call {
  /**
   * One of `enum antiphon_collective`.
   */
  int collective;
  /**
   * The type of elements.
   */
  antiphon_dtype_t dtype;
  /**
   * How they are reduced; 0 where nothing is.
   */
  antiphon_op_t op;
  /**
   * The root; 0 where there is none.
   */
  int root;
  /**
   * Elements, as the function of the same name counts them.
   */
  size_t count;
  /**
   * What this rank gives; equal to `recv` in place.
   */
  const void *send;
  /**
   * What it gets.
   */
  void *recv;
};

/**
 * A way to do a collective: all ranks call it at the same time, with a communicator of their own for it. It returns 0 if it has
 * done its work, and anything else if it could not. `user` is what was registered with it.
 */
typedef int (*antiphon_candidate_t)(antiphon_comm_t comm, const struct antiphon_call *call, void *user);

/**
 * Whether a candidate can do a call: 0 if not. The buffers of the call are NULL. All ranks ask, about the same calls, and must get the
 * same answer, so it looks at nothing but the call and what was registered with it.
 */
typedef int (*antiphon_predicate_t)(const struct antiphon_call *call, void *user);

/**
 * What to measure. Zeros mean the defaults of `antiphon tune`.
 */
struct antiphon_tune_options {
  /**
   * Collectives of `enum antiphon_collective`; NULL for all_reduce, all_gather, reduce_scatter, broadcast and all_to_all.
   */
  const int *collectives;
  /**
   * How many.
   */
  size_t collective_count;
  /**
   * Sizes in bytes, of all blocks together; NULL for 1 KiB, 4 KiB, … 16 MiB.
   */
  const size_t *sizes;
  /**
   * How many.
   */
  size_t size_count;
  /**
   * With elements of this type.
   */
  antiphon_dtype_t dtype;
  /**
   * The reduction, for collectives that reduce.
   */
  antiphon_op_t op;
  /**
   * How many seconds all measuring may take, about; 0 for 60.
   */
  double budget;
  /**
   * How many seconds a call may go without progress; 0 for 10.
   */
  double timeout;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Every rank gets the reduction of all ranks' vectors of `count` elements. `send == recv` means in place, on all ranks.
 */
antiphon_result_t antiphon_all_reduce(const void *send,
                                      void *recv,
                                      size_t count,
                                      antiphon_dtype_t dtype,
                                      antiphon_op_t op,
                                      antiphon_comm_t comm);

/**
 * Every rank gets the reduction of all ranks' vectors of `count` elements. `send == recv` means in place, on all ranks.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_all_reduce_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            antiphon_dtype_t dtype,
                                            antiphon_op_t op,
                                            antiphon_comm_t comm,
                                            antiphon_request_t *request);

/**
 * Every rank gets the `count` elements of each rank, in the order of ranks. `send == recv` means in place, on all ranks: a
 * rank's own elements lie at their place in `recv`.
 */
antiphon_result_t antiphon_all_gather(const void *send,
                                      void *recv,
                                      size_t count,
                                      antiphon_dtype_t dtype,
                                      antiphon_comm_t comm);

/**
 * Every rank gets the `count` elements of each rank, in the order of ranks. `send == recv` means in place, on all ranks: a
 * rank's own elements lie at their place in `recv`.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_all_gather_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            antiphon_dtype_t dtype,
                                            antiphon_comm_t comm,
                                            antiphon_request_t *request);

/**
 * Rank i gets the reduction of all ranks' i-th blocks of `count` elements. `send == recv` means in place: the result is
 * at the beginning.
 */
antiphon_result_t antiphon_reduce_scatter(const void *send,
                                          void *recv,
                                          size_t count,
                                          antiphon_dtype_t dtype,
                                          antiphon_op_t op,
                                          antiphon_comm_t comm);

/**
 * Rank i gets the reduction of all ranks' i-th blocks of `count` elements. `send == recv` means in place: the result is
 * at the beginning.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_reduce_scatter_start(const void *send,
                                                void *recv,
                                                size_t count,
                                                antiphon_dtype_t dtype,
                                                antiphon_op_t op,
                                                antiphon_comm_t comm,
                                                antiphon_request_t *request);

/**
 * Rank i gets the i-th block of `count` elements of each rank, in the order of ranks. `send == recv` means in place, on
 * all ranks.
 */
antiphon_result_t antiphon_all_to_all(const void *send,
                                      void *recv,
                                      size_t count,
                                      antiphon_dtype_t dtype,
                                      antiphon_comm_t comm);

/**
 * Rank i gets the i-th block of `count` elements of each rank, in the order of ranks. `send == recv` means in place, on
 * all ranks.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_all_to_all_start(const void *send,
                                            void *recv,
                                            size_t count,
                                            antiphon_dtype_t dtype,
                                            antiphon_comm_t comm,
                                            antiphon_request_t *request);

/**
 * Returns when all ranks have called it.
 */
antiphon_result_t antiphon_barrier(antiphon_comm_t comm);

/**
 * Begins a barrier. It is over when all ranks have begun it.
 */
antiphon_result_t antiphon_barrier_start(antiphon_comm_t comm, antiphon_request_t *request);

/**
 * Sends block i of `send` to rank i, and receives block i of `recv` from there: block i has `counts[i]` elements, and begins at
 * element `offsets[i]`. What one rank sends to another is as long as what that one receives. `send == recv` means in place: a block
 * is sent before another one takes its place. Otherwise no block that is sent may overlap with one that is received.
 */
antiphon_result_t antiphon_all_to_all_v(const void *send,
                                        const size_t *counts,
                                        const size_t *offsets,
                                        void *recv,
                                        const size_t *rcounts,
                                        const size_t *roffsets,
                                        antiphon_dtype_t dtype,
                                        antiphon_comm_t comm);

/**
 * The same, but this only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_all_to_all_v_start(const void *send,
                                              const size_t *counts,
                                              const size_t *offsets,
                                              void *recv,
                                              const size_t *rcounts,
                                              const size_t *roffsets,
                                              antiphon_dtype_t dtype,
                                              antiphon_comm_t comm,
                                              antiphon_request_t *request);

/**
 * The communicator of all processes that a launcher has started: torchrun, mpirun, srun, or whoever has set `ANTIPHON_RANK`,
 * `ANTIPHON_SIZE` and `ANTIPHON_MASTER`. Without any, this process is the only rank.
 */
antiphon_result_t antiphon_comm_from_env(antiphon_comm_t *out);

/**
 * The communicator of `size` processes that find each other at `master`, `HOST:PORT`, where rank 0 listens; or at one of several
 * such addresses, with commas between them, which the others try in turn. All have the same `secret` of at least 16 bytes. NULL stands
 * for `ANTIPHON_SECRET`, or a file of the user.
 */
antiphon_result_t antiphon_comm_connect(int rank,
                                        int size,
                                        const char *master,
                                        const char *secret,
                                        antiphon_comm_t *out);

/**
 * Makes communicators of the ranks that name the same color, in the order of their keys, then of their ranks. All ranks of the
 * communicator call it. A rank with a negative color gets NULL.
 */
antiphon_result_t antiphon_comm_split(antiphon_comm_t comm,
                                      int color,
                                      int key,
                                      antiphon_comm_t *out);

/**
 * This process's rank in a communicator.
 */
antiphon_result_t antiphon_comm_rank(antiphon_comm_t comm, int *out);

/**
 * How many ranks a communicator has.
 */
antiphon_result_t antiphon_comm_size(antiphon_comm_t comm, int *out);

/**
 * Whether a table is in use for these ranks (1), which says which plan serves a call, or that stock does; or none (0). All ranks get
 * the same answer.
 */
antiphon_result_t antiphon_comm_has_table(antiphon_comm_t comm,
                                          int *out);

/**
 * Ends all calls of all ranks of this communicator, under way or to come, with `ANTIPHON_ABORTED`. Communicators that it was
 * split from, or that were split from it, go on. Another thread may wait in a call meanwhile.
 */
antiphon_result_t antiphon_comm_abort(antiphon_comm_t comm);

/**
 * What is left of a communicator after a failure: a new communicator of the ranks that call this function, in the same order. All
 * that are left must call it. They wait for each other 5 seconds longer than a call may go without progress; a rank that is dead
 * or does not come is left behind. If fewer than `least` ranks are left, or the others have given this rank up, the result is
 * `ANTIPHON_INVALID_ARGUMENT`; after other errors the call can be repeated. The old communicator makes no calls any more, and is
 * to be freed.
 */
antiphon_result_t antiphon_comm_rebuild(antiphon_comm_t comm,
                                        int least,
                                        antiphon_comm_t *out);

/**
 * Sets how many seconds a call of this process may go without any progress before it fails: 30 unless `ANTIPHON_TIMEOUT` says
 * otherwise. Communicators that are made of this one from now on have the same limit.
 */
antiphon_result_t antiphon_comm_set_timeout(antiphon_comm_t comm,
                                            double seconds);

/**
 * A thread that waits for a call calls this function again and again, and does not sleep: for something else that has to go on
 * meanwhile, such as MPI. It holds for all communicators of the job, and can be set once. The function must not call this
 * library, nor wait.
 */
antiphon_result_t antiphon_comm_set_idle(antiphon_comm_t comm,
                                         antiphon_idle_t idle,
                                         void *context);

/**
 * Frees a communicator, and sets it to NULL. No call of it may be under way.
 */
antiphon_result_t antiphon_comm_free(antiphon_comm_t *comm);

/**
 * What the last call of a communicator ran, and why, on one line. Valid until the next call of this function with this
 * communicator. NULL if the handle is NULL.
 */
const char *antiphon_plan(antiphon_comm_t comm);

/**
 * Memory for buffers, filled with zeroes, that begins at a page. The other processes of this machine read it where it lies, so
 * calls with long buffers take less time than with those of `malloc`. `antiphon_free` frees it.
 */
antiphon_result_t antiphon_alloc(antiphon_comm_t comm,
                                 size_t bytes,
                                 void **out);

/**
 * Frees what `antiphon_alloc` gave, with any communicator of this process; NULL is nothing.
 */
antiphon_result_t antiphon_free(antiphon_comm_t comm, void *memory);

/**
 * Lets the other processes of this machine read memory of the caller where it lies, such as that of `malloc`. Calls with long
 * buffers in it then take less time. Its contents and address stay. It should begin at a page, because only whole pages can be
 * registered. A process that is forked meanwhile shares these pages, instead of having copies of them. Memory that is not
 * private memory of this process is refused, and so is what is registered already. It is registered until
 * `antiphon_deregister`, or until the communicator is freed.
 */
antiphon_result_t antiphon_register(antiphon_comm_t comm,
                                    void *memory,
                                    size_t bytes);

/**
 * Makes registered memory ordinary memory again. Its contents and address stay.
 */
antiphon_result_t antiphon_deregister(antiphon_comm_t comm, void *memory);

/**
 * Sends a message to a rank. It returns when the buffer may be changed again, which may be before the message is received.
 */
antiphon_result_t antiphon_send(const void *buffer,
                                size_t count,
                                antiphon_dtype_t dtype,
                                int peer,
                                antiphon_comm_t comm);

/**
 * Begins to send a message.
 */
antiphon_result_t antiphon_send_start(const void *buffer,
                                      size_t count,
                                      antiphon_dtype_t dtype,
                                      int peer,
                                      antiphon_comm_t comm,
                                      antiphon_request_t *request);

/**
 * Receives a message from a rank; it must have `count` elements. Messages from one rank arrive in the order in which they
 * were sent.
 */
antiphon_result_t antiphon_recv(void *buffer,
                                size_t count,
                                antiphon_dtype_t dtype,
                                int peer,
                                antiphon_comm_t comm);

/**
 * Begins to receive a message.
 */
antiphon_result_t antiphon_recv_start(void *buffer,
                                      size_t count,
                                      antiphon_dtype_t dtype,
                                      int peer,
                                      antiphon_comm_t comm,
                                      antiphon_request_t *request);

/**
 * Looks whether a call is over. If it is, or has failed, `*done` is 1, and the request is freed and set to NULL. A request that
 * is NULL is done.
 */
antiphon_result_t antiphon_test(antiphon_request_t *request,
                                int *done);

/**
 * Waits until a call is over. The request is freed and set to NULL, whatever the result.
 */
antiphon_result_t antiphon_wait(antiphon_request_t *request);

/**
 * Every rank gets the root's `count` elements.
 */
antiphon_result_t antiphon_broadcast(void *buffer,
                                     size_t count,
                                     antiphon_dtype_t dtype,
                                     int root,
                                     antiphon_comm_t comm);

/**
 * Every rank gets the root's `count` elements.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_broadcast_start(void *buffer,
                                           size_t count,
                                           antiphon_dtype_t dtype,
                                           int root,
                                           antiphon_comm_t comm,
                                           antiphon_request_t *request);

/**
 * The root gets the reduction of all ranks' vectors of `count` elements. `recv` matters on the root only; there,
 * `send == recv` means in place.
 */
antiphon_result_t antiphon_reduce(const void *send,
                                  void *recv,
                                  size_t count,
                                  antiphon_dtype_t dtype,
                                  antiphon_op_t op,
                                  int root,
                                  antiphon_comm_t comm);

/**
 * The root gets the reduction of all ranks' vectors of `count` elements. `recv` matters on the root only; there,
 * `send == recv` means in place.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_reduce_start(const void *send,
                                        void *recv,
                                        size_t count,
                                        antiphon_dtype_t dtype,
                                        antiphon_op_t op,
                                        int root,
                                        antiphon_comm_t comm,
                                        antiphon_request_t *request);

/**
 * The root gets the `count` elements of each rank, in the order of ranks. `recv` matters on the root only; there,
 * `send == recv` means in place: its own elements lie at their place.
 */
antiphon_result_t antiphon_gather(const void *send,
                                  void *recv,
                                  size_t count,
                                  antiphon_dtype_t dtype,
                                  int root,
                                  antiphon_comm_t comm);

/**
 * The root gets the `count` elements of each rank, in the order of ranks. `recv` matters on the root only; there,
 * `send == recv` means in place: its own elements lie at their place.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_gather_start(const void *send,
                                        void *recv,
                                        size_t count,
                                        antiphon_dtype_t dtype,
                                        int root,
                                        antiphon_comm_t comm,
                                        antiphon_request_t *request);

/**
 * Rank i gets the root's i-th block of `count` elements. `send` matters on the root only; there, `send == recv` means in
 * place: its own block stays where it is.
 */
antiphon_result_t antiphon_scatter(const void *send,
                                   void *recv,
                                   size_t count,
                                   antiphon_dtype_t dtype,
                                   int root,
                                   antiphon_comm_t comm);

/**
 * Rank i gets the root's i-th block of `count` elements. `send` matters on the root only; there, `send == recv` means in
 * place: its own block stays where it is.
 * This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
 */
antiphon_result_t antiphon_scatter_start(const void *send,
                                         void *recv,
                                         size_t count,
                                         antiphon_dtype_t dtype,
                                         int root,
                                         antiphon_comm_t comm,
                                         antiphon_request_t *request);

/**
 * What went wrong the last time in this thread: what, which rank, where, and what to do. Valid until the next failure in this
 * thread. Empty if nothing went wrong.
 */
const char *antiphon_last_error(void);

/**
 * The version of the library.
 */
const char *antiphon_version(void);

/**
 * Registers a function of the program as a candidate for `antiphon_tune`. All ranks register the same names in the same order.
 * No two candidates of one collective have the same name. Nothing is called yet. A function may be called by any thread that
 * tunes, until the communicator is freed.
 */
antiphon_result_t antiphon_tune_candidate(antiphon_comm_t comm,
                                          const char *name,
                                          int collective,
                                          antiphon_candidate_t run,
                                          void *user);

/**
 * The same for a function that can only do some calls of the collective: those of which `predicate` says so. Others are not measured.
 * After the tuning it is asked again, before each call that the table leaves to the function; where it says no, the best of the rest
 * serves. Where a rank's predicate says something else than that of rank 0 when it is to be measured, the candidate is refused. With
 * NULL it is `antiphon_tune_candidate`.
 */
antiphon_result_t antiphon_tune_candidate_when(antiphon_comm_t comm,
                                               const char *name,
                                               int collective,
                                               antiphon_candidate_t run,
                                               antiphon_predicate_t predicate,
                                               void *user);

/**
 * Measures stock, textbook algorithms and the registered candidates on all ranks, which all call this with the same options, and
 * uses what is faster than stock from the next call of this communicator on. A candidate has to be right again and again, for
 * smaller counts too; it writes only what it has to, and ends all its calls. One that is wrong or fails is refused, and the others
 * are measured. Rank 0 writes the table to the file `table`, unless that is
 * NULL. A table holds the names of functions, not the functions: see `antiphon_use_candidates`.
 *
 * In a program that `antiphon tune -- PROGRAM` has started, the command says what is measured, and makes the table. There, a
 * candidate that hangs or crashes is refused too.
 */
antiphon_result_t antiphon_tune(antiphon_comm_t comm,
                                const struct antiphon_tune_options *options,
                                const char *table);

/**
 * From the next call on, this communicator uses a table of `antiphon tune` or `antiphon_tune`, instead of `ANTIPHON_TABLE`. All ranks
 * make this call, and each reads the file. Either all of them use it, or it is an error on all of them.
 */
antiphon_result_t antiphon_use_table(antiphon_comm_t comm,
                                     const char *file);

/**
 * From the next blocking call on, registered candidates serve the calls of this communicator for which its table names
 * them: those of the type of elements and the reduction that were measured, an all_reduce or broadcast in place, others not; and of
 * a candidate with a predicate, only those for which it says yes.
 * All ranks make this call. Where a rank has not registered a candidate of that name, the best of the rest serves on all of them, and
 * rank 0 says so on standard error. After `antiphon_tune` this is so already.
 */
antiphon_result_t antiphon_use_candidates(antiphon_comm_t comm);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ANTIPHON_H */
