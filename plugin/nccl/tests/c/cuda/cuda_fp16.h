/* Nothing: see cuda_runtime.h. */
