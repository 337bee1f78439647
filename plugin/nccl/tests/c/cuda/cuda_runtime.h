/* The names that nccl.h takes from CUDA, for programs that are compiled where there is no CUDA. */
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
