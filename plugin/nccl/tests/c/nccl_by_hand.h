/* What ranks.c uses of NCCL and of CUDA's driver, where there is no nccl.h. With -DWITH_NCCL_H it is taken from there. */
#include <stddef.h>
#include <stdint.h>
#ifdef WITH_NCCL_H
#include <nccl.h>
#else
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess = 0, ncclInvalidArgument = 4, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclInt32 = 2, ncclFloat32 = 7 } ncclDataType_t;
typedef enum { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;
typedef struct CUstream_st *cudaStream_t;
/* As in NCCL 2.14; newer ones have more fields, and give them their defaults where a program does not have them. */
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {sizeof(ncclConfig_t), 0xcafebeef, 21400, 1}
ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
ncclResult_t ncclCommInitAll(ncclComm_t *, int, const int *);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
ncclResult_t ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *), ncclCommRevoke(ncclComm_t, int);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclCommCount(const ncclComm_t, int *), ncclCommUserRank(const ncclComm_t, int *);
ncclResult_t ncclCommFinalize(ncclComm_t), ncclCommDestroy(ncclComm_t), ncclCommAbort(ncclComm_t);
ncclResult_t ncclGroupStart(void), ncclGroupEnd(void), ncclGroupSimulateEnd(void *);
const char *ncclGetLastError(ncclComm_t);
ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclAllGather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclAlltoAll(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclBroadcast(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
#endif

int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuStreamCreate(cudaStream_t *, unsigned), cuStreamSynchronize(cudaStream_t);
int cuStreamBeginCapture_v2(cudaStream_t, int), cuStreamEndCapture(cudaStream_t, void **);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, cudaStream_t), cuEventDestroy_v2(void *);
int cuStreamWaitEvent(cudaStream_t, void *, unsigned);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, cudaStream_t);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);
int cuMemAllocAsync(uint64_t *, size_t, cudaStream_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, cudaStream_t), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, cudaStream_t);
