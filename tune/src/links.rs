//! What messages between machines cost, as a table keeps it.
//!
//! The principal type is [`MachineLinks`].

use serde::{Deserialize, Serialize};

/// The largest time that makes sense, in microseconds: a day.
const MOST_US: f64 = 86_400e6;
/// The most cores of a machine.
const MOST_CORES: usize = 1 << 20;

/// What messages cost between the machines of a table, as its ranks measured it when they joined. The plans of stock follow from it;
/// so ranks that use the table run the stock plans that it has measured, although they would measure other costs each time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineLinks {
    /// By machine and machine: how long a message takes without its bytes, in microseconds.
    pub alpha_us: Vec<Vec<f64>>,
    /// By machine and machine: how much longer it takes for each byte, in microseconds.
    pub beta_us_per_byte: Vec<Vec<f64>>,
    /// By machine: how many cores its ranks may use.
    pub cores: Vec<usize>,
}

impl MachineLinks {
    /// # Errors
    /// Why it cannot be that of so many machines.
    pub(crate) fn check(&self, machines: usize) -> Result<(), String> {
        let Self { alpha_us, beta_us_per_byte, cores } = self;
        let is_square = |rows: &[Vec<f64>]| rows.len() == machines && rows.iter().all(|row| row.len() == machines);
        if !is_square(alpha_us) || !is_square(beta_us_per_byte) || cores.len() != machines {
            return Err(format!("the links are not those of {}", topology::counted(machines, "machine")));
        }
        let all = || alpha_us.iter().chain(beta_us_per_byte).flatten();
        if let Some(time) = all().find(|time| !(0.0..=MOST_US).contains(*time)) {
            return Err(format!("the links have {time} µs, which is no time of a message"));
        }
        match cores.iter().find(|cores| !(1..=MOST_CORES).contains(*cores)) {
            Some(cores) => Err(format!("the links have a machine of {}", topology::counted(*cores, "core"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_costs_of_all_pairs_of_machines_make_sense() {
        let of = |alpha: f64, beta: f64, cores: usize| MachineLinks {
            alpha_us: vec![vec![1.0, alpha]; 2],
            beta_us_per_byte: vec![vec![1.0, beta]; 2],
            cores: vec![cores; 2],
        };
        of(50.0, 1e-3, 8).check(2).unwrap();
        for (links, machines, why) in [
            (of(50.0, 1e-3, 8), 3, "not those of 3 machines"),
            (of(-1.0, 1e-3, 8), 2, "-1 µs"),
            (of(1.0, f64::INFINITY, 8), 2, "inf µs"),
            (of(1.0, f64::NAN, 8), 2, "NaN µs"),
            (of(1.0, 1.0, 0), 2, "0 cores"),
        ] {
            let told = links.check(machines).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
