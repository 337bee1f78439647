/* Which types and operations of MPI libantiphon knows. */
#include "antiphon_mpi.h"
#include <stdint.h>

enum {
    SUM_PROD = 1 << ANTIPHON_SUM | 1 << ANTIPHON_PROD,
    ALL = SUM_PROD | 1 << ANTIPHON_MIN | 1 << ANTIPHON_MAX
};

static void know(MPI_Datatype type, int dtype, unsigned ops) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    int size;
    if (type == MPI_DATATYPE_NULL || state->known == ANTIPHON_MPI_TYPES) return;
    PMPI_Type_size(type, &size);
    state->types[state->known++] = (struct antiphon_mpi_type){type, dtype, ops, (size_t)size};
}

/* Sums and products modulo a power of two are the same for numbers with and without a sign. */
static void know_integer(MPI_Datatype type, bool has_sign) {
    int size;
    if (type == MPI_DATATYPE_NULL) return;
    PMPI_Type_size(type, &size);
    int dtype = size == 4 ? ANTIPHON_I32 : size == 8 ? ANTIPHON_I64 : -1;
    know(type, dtype, dtype < 0 ? 0 : has_sign ? ALL : SUM_PROD);
}

static void know_real(MPI_Datatype type) {
    int size;
    if (type == MPI_DATATYPE_NULL) return;
    PMPI_Type_size(type, &size);
    int dtype = size == 4 ? ANTIPHON_F32 : size == 8 ? ANTIPHON_F64 : -1;
    know(type, dtype, dtype < 0 ? 0 : ALL);
}

/* The frequent ones first: they are looked for in this order. */
void antiphon_mpi_know_types(void) {
    know_real(MPI_DOUBLE);
    know_real(MPI_FLOAT);
    know_integer(MPI_INT, true);
    know(MPI_BYTE, -1, 0);
    know(MPI_CHAR, -1, 0);
    know_integer(MPI_LONG, true);
    know_integer(MPI_LONG_LONG, true);
    know_integer(MPI_INT64_T, true);
    know_integer(MPI_INT32_T, true);
    know(MPI_UNSIGNED_CHAR, ANTIPHON_U8, ALL);
    know(MPI_UINT8_T, ANTIPHON_U8, ALL);
    know_integer(MPI_UNSIGNED, false);
    know_integer(MPI_UNSIGNED_LONG, false);
    know_integer(MPI_UNSIGNED_LONG_LONG, false);
    know_integer(MPI_UINT32_T, false);
    know_integer(MPI_UINT64_T, false);
    know_integer(MPI_AINT, true);
    know_integer(MPI_OFFSET, true);
    know_integer(MPI_COUNT, true);
    know_integer(MPI_INTEGER, true);
    know_real(MPI_REAL);
    know_real(MPI_DOUBLE_PRECISION);
}

const struct antiphon_mpi_type *antiphon_mpi_type(MPI_Datatype type) {
    const struct antiphon_mpi_state *state = &antiphon_mpi_state;
    for (int index = 0; index < state->known; index++)
        if (state->types[index].type == type) return &state->types[index];
    return NULL;
}

bool antiphon_mpi_reduction(MPI_Datatype type, MPI_Op op, struct antiphon_mpi_call *call) {
    const struct antiphon_mpi_type *known = antiphon_mpi_type(type);
    if (!known || known->dtype < 0) return false;
    if (op == MPI_SUM) call->op = ANTIPHON_SUM;
    else if (op == MPI_PROD) call->op = ANTIPHON_PROD;
    else if (op == MPI_MIN) call->op = ANTIPHON_MIN;
    else if (op == MPI_MAX) call->op = ANTIPHON_MAX;
    else return false;
    call->dtype = known->dtype;
    return known->ops & 1u << call->op;
}

/* Says what a side of a call is. False if MPI should refuse it. A derived type is never plain: even one without gaps may
 * list its parts in another order than memory. */
bool antiphon_mpi_side(struct antiphon_mpi_side *side, const void *buffer, MPI_Count count, MPI_Datatype type, int blocks) {
    if (count < 0 || type == MPI_DATATYPE_NULL) return false;
    *side = (struct antiphon_mpi_side){.buffer = (char *)buffer, .type = type, .blocks = blocks, .count = (size_t)count};
    const struct antiphon_mpi_type *known = antiphon_mpi_type(type);
    if (known) {
        if (known->size > 0 && side->count > PTRDIFF_MAX / known->size) return false;
        side->size = known->size;
        side->extent = (ptrdiff_t)known->size;
        side->is_plain = true;
        return true;
    }
    MPI_Count size;
    MPI_Aint start, extent;
    int integers, addresses, types, combiner;
    if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size < 0) return false;
    if (size > 0 && count > PTRDIFF_MAX / size) return false;
    if (PMPI_Type_get_extent(type, &start, &extent) != MPI_SUCCESS) return false;
    if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS) return false;
    side->size = (size_t)size;
    side->extent = (ptrdiff_t)extent;
    side->is_plain = combiner == MPI_COMBINER_NAMED && start == 0 && extent == (MPI_Aint)size;
    return true;
}
