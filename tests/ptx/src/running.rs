//! Launches: to their end, or a piece at a time.
//!
//! The principal type is [`Running`].

use crate::code::Module;
use crate::machine::{Grid, Launch, Machine, Ran};
use crate::report::Fault;

/// A launch that goes on a piece at a time. Between two pieces the host may use the machine, and other launches may go on.
pub struct Running<'a>(Grid<'a>);

/// How far a launch has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It is done.
    Ended(Ran),
    /// It goes on.
    Runs,
    /// Its threads have only waited for some time, perhaps for others than the machine.
    Idles,
}

impl Machine {
    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn launch(&mut self, module: &Module, launch: &Launch<'_>) -> Result<Ran, Fault> {
        self.launch_in_order(&[(module, launch.clone())])
    }

    /// Runs kernels in the order of a stream on each device: a device begins the next one when its own blocks have ended, whatever
    /// the other devices do. All have the same devices and threads, and the first seed counts.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn launch_in_order(&mut self, launches: &[(&Module, Launch<'_>)]) -> Result<Ran, Fault> {
        let mut running = self.begin(launches)?;
        loop {
            if let Progress::Ended(ran) = running.go_on(self, u64::MAX)? {
                return Ok(ran);
            }
        }
    }

    /// Begins what [`Self::launch_in_order`] does.
    ///
    /// # Errors
    /// [`Fault::Launch`].
    pub fn begin<'a>(&mut self, launches: &[(&'a Module, Launch<'a>)]) -> Result<Running<'a>, Fault> {
        let mut kernels = Vec::new();
        for (module, launch) in launches {
            let kernel = module.kernels.get(launch.kernel);
            let kernel = kernel.ok_or_else(|| Fault::Launch(format!("there is no kernel {}", launch.kernel)))?;
            if launch.parameters.len() != kernel.parameters || launch.threads == 0 {
                return Err(Fault::Launch("another number of parameters, or no threads".to_owned()));
            }
            if (launch.devices, launch.threads) != (launches[0].1.devices, launches[0].1.threads) {
                return Err(Fault::Launch("other devices or threads than the first launch".to_owned()));
            }
            kernels.push((kernel, launch.parameters));
        }
        let (_, first) = launches.first().ok_or_else(|| Fault::Launch("no launch".to_owned()))?;
        Ok(Running(Grid::new(self.memory.next_launch(), kernels, first.clone())))
    }
}

impl Running<'_> {
    /// Goes on, at most for so many turns of threads. Whoever waits for others too long ends it by not calling this again.
    ///
    /// # Errors
    /// The first [`Fault`]; [`Fault::Deadlock`] only if nobody but the machine can change its memory.
    pub fn go_on(&mut self, machine: &mut Machine, turns: u64) -> Result<Progress, Fault> {
        self.0.go_on(&mut machine.memory, turns)
    }

    /// The threads that are left, as a fault.
    pub fn deadlock(&self) -> Fault {
        self.0.deadlock()
    }
}
