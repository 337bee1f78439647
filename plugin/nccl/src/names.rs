//! The names of NCCL's functions, up to version 2.32.3.
//!
//! The principal type is [`NcclName`]. A new version of NCCL adds names here; a test compares the list with the library at hand.

/// Gives the list to a macro: first the functions that are looked at, which `collectives` and `lifecycle` define, then those that are only forwarded.
/// What a function returns is said because somebody has to return something where there is no NCCL.
macro_rules! with_nccl_names {
    ($use:ident) => {
        $use! {
            counted {
                result: ncclAllGather ncclAllGatherConfig ncclAllReduce ncclAllReduceConfig ncclAlltoAll ncclAlltoAllConfig
                    ncclBcast ncclBroadcast ncclBroadcastConfig ncclGather ncclGatherConfig ncclReduce ncclReduceConfig
                    ncclReduceScatter ncclReduceScatterConfig ncclScatter ncclScatterConfig ncclCommAbort ncclCommDestroy
                    ncclCommFinalize ncclCommGetAsyncError ncclCommInitAll ncclCommInitRank ncclCommInitRankConfig ncclCommInitRankScalable
                    ncclCommGrow ncclCommRevoke ncclCommShrink ncclCommSplit ncclGroupEnd ncclGroupSimulateEnd ncclGroupStart ncclRecv ncclSend;
            }
            forwarded {
                result: ncclCommCount ncclCommCuDevice ncclCommDeregister
                    ncclCommGetUniqueId
                    ncclCommMemStats ncclCommQueryProperties
                    ncclCommRegister ncclCommResume ncclCommSuspend
                    ncclCommUserRank ncclCommWindowDeregister ncclCommWindowRegister ncclDevCommCreate
                    ncclDevCommDestroy ncclGetCftDeviceLeInfo ncclGetLsaDevicePointer ncclGetLsaMultimemDevicePointer
                    ncclGetMultimemDeviceLeInfo ncclGetMultimemDevicePointer ncclGetPeerDeviceLeInfo
                    ncclGetPeerDevicePointer ncclGetUniqueId ncclGetVersion ncclGinBarrierCreateRequirement
                    ncclGinInboxA2ACreateRequirement ncclGinOutboxCreateRequirement
                    ncclLLA2ACreateRequirement ncclLsaBarrierCreateRequirement ncclMemAlloc ncclMemFree
                    ncclParamBind ncclParamGet ncclParamGetAllParameterKeys ncclParamGetI16 ncclParamGetI32
                    ncclParamGetI64 ncclParamGetI8 ncclParamGetParameter ncclParamGetStr ncclParamGetU16
                    ncclParamGetU32 ncclParamGetU64 ncclParamGetU8 ncclPutSignal ncclRedOpCreatePreMulSum
                    ncclRedOpDestroy ncclSetEncryption ncclSignal ncclWaitSignal ncclWinGetUserPtr;
                text: ncclGetErrorString ncclGetLastError;
                other: ncclLLA2ACalcSlots ncclParamDumpAll ncclResetDebugInit ncclResetDebugInitInternal ncclTeamCft
                    ncclTeamCftMultimem ncclTeamLsa ncclTeamRail ncclTeamRankToLsa ncclTeamRankToWorld ncclTeamWorld;
            }
        }
    };
}
pub(crate) use with_nccl_names;

/// What a function returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NcclReturn {
    /// An `ncclResult_t`.
    Result,
    /// A text that lives on.
    Text,
    /// Nothing, or numbers that are not results.
    Other,
}

macro_rules! define {
    (@kind result) => { NcclReturn::Result };
    (@kind text) => { NcclReturn::Text };
    (@kind other) => { NcclReturn::Other };
    ($($section:ident { $($kind:ident: $($name:ident)+;)+ })+) => {
        /// A function of NCCL.
        #[expect(non_camel_case_types, reason = "these are the names of NCCL")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub(crate) enum NcclName { $($($($name,)+)+)+ }

        impl NcclName {
            /// All, in the order of their numbers.
            pub(crate) const ALL: &[(Self, &str, NcclReturn)] =
                &[$($($((Self::$name, stringify!($name), define!(@kind $kind)),)+)+)+];
        }
    };
}
with_nccl_names!(define);

impl NcclName {
    pub(crate) fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(crate) fn returns(self) -> NcclReturn {
        Self::ALL[self as usize].2
    }
}
