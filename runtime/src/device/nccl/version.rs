//! Versions of NCCL, as `ncclGetVersion` gives them.

use std::ffi::c_int;
use std::fmt;

/// A version of NCCL: the number `NCCL_VERSION_CODE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NcclVersion(c_int);

impl NcclVersion {
    /// The oldest version that plans run with: its communicators need not block, and can be aborted.
    pub const OLDEST: Self = Self(21800);

    /// The version of a code; `None` if NCCL has no such codes.
    pub fn of_code(code: c_int) -> Option<Self> {
        (1000..1_000_000).contains(&code).then_some(Self(code))
    }

    /// Major, minor, and patch number. Codes before version 2.9 have one digit less for the minor number.
    pub fn parts(self) -> [c_int; 3] {
        let major = if self.0 < 10_000 { 1000 } else { 10_000 };
        [self.0 / major, self.0 % major / 100, self.0 % 100]
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.parts();
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_in_both_ways() {
        let shown = |code| NcclVersion::of_code(code).map(|version| version.to_string());
        assert_eq!(shown(23007).as_deref(), Some("2.30.7"));
        assert_eq!(shown(21800).as_deref(), Some("2.18.0"));
        assert_eq!(shown(2708).as_deref(), Some("2.7.8"));
        assert_eq!([0, -1, 999, i32::MAX].map(shown), [None, None, None, None]);
        assert!(NcclVersion::of_code(2708) < Some(NcclVersion::OLDEST));
        assert!(NcclVersion::of_code(21805) > Some(NcclVersion::OLDEST));
    }
}
