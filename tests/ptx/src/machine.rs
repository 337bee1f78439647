//! Blocks, threads, and whose turn it is.

use crate::arithmetic::result;
use crate::clocks::{Access, Releases, VectorClock};
use crate::code::{Instruction, Kernel, MemoryAccess, Operand, Operation, Order, Space};
use crate::memory::Regions;
use crate::report::{Fault, Place};
use crate::running::Progress;

/// Memory, on which kernels run one after the other.
pub struct Machine {
    pub(crate) memory: Regions,
}

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The name of the entry point.
    pub kernel: &'a str,
    /// For each block of the grid, the device on which it is.
    pub devices: &'a [u32],
    /// How many threads a block has.
    pub threads: u32,
    /// The parameters, eight bytes each.
    pub parameters: &'a [u64],
    /// Decides whose turn it is.
    pub seed: u64,
}

/// What a launch took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Instructions of all threads.
    pub instructions: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// At the barrier of this line.
    Waits(u32),
    Ended,
}

struct Thread {
    /// Which of the kernels it runs.
    kernel: usize,
    registers: Vec<u64>,
    next: usize,
    state: State,
    clock: VectorClock,
    block: u32,
    index: u32,
}

/// A launch under way.
pub(crate) struct Grid<'a> {
    /// The memory of the machine, while the launch goes on.
    memory: Regions,
    /// Which launch of the machine it is.
    number: u64,
    /// With their parameters.
    kernels: Vec<(&'a Kernel, &'a [u64])>,
    launch: Launch<'a>,
    shared: Vec<Regions>,
    threads: Vec<Thread>,
    releases: Releases,
    random: u64,
    /// Threads that have something to do.
    runnable: Vec<usize>,
    /// Blocks that get fewer turns than others.
    slow: Vec<bool>,
    instructions: u64,
    /// Instructions since memory has changed, a barrier was left, or a thread has ended.
    idle: u64,
}

/// The most instructions of one turn.
const TURN: u64 = 48;
/// After so many instructions that change nothing, a launch that may wait for others says so.
const IDLE: u64 = 4_000;
/// After so many instructions that change nothing, and many more for each thread as slow blocks have a sixteenth of them, everybody waits.
const PATIENCE: u64 = 100_000;

impl<'a> Grid<'a> {
    pub(crate) fn new(number: u64, kernels: Vec<(&'a Kernel, &'a [u64])>, launch: Launch<'a>) -> Self {
        let count = launch.devices.len() * launch.threads as usize;
        let most = |of: fn(&Kernel) -> u64| kernels.iter().map(|(kernel, _)| of(kernel)).max().unwrap_or(0);
        let registers = most(|kernel| kernel.registers as u64) as usize;
        let shared_bytes = most(|kernel| kernel.shared_bytes);
        let thread = |number: usize| Thread {
            kernel: 0,
            registers: vec![0; registers],
            next: 0,
            state: State::Runs,
            clock: VectorClock::new(count, number),
            block: number as u32 / launch.threads,
            index: number as u32 % launch.threads,
        };
        let mut grid = Self {
            memory: Regions::default(),
            number,
            kernels,
            shared: launch.devices.iter().map(|_| Regions::shared(shared_bytes)).collect(),
            threads: (0..count).map(thread).collect(),
            releases: Releases::default(),
            random: launch.seed,
            runnable: (0..count).collect(),
            slow: Vec::new(),
            instructions: 0,
            idle: 0,
            launch,
        };
        grid.releases.clear();
        grid.slow = (0..grid.launch.devices.len()).map(|_| grid.below(4) == 0).collect();
        grid
    }

    /// A number below `bound` [splitmix64: Steele et al., OOPSLA 2014].
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// Goes on, at most for so many turns.
    pub(crate) fn go_on(&mut self, memory: &mut Regions, turns: u64) -> Result<Progress, Fault> {
        std::mem::swap(&mut self.memory, memory);
        let progress = self.take_turns(turns);
        std::mem::swap(&mut self.memory, memory);
        progress
    }

    fn take_turns(&mut self, turns: u64) -> Result<Progress, Fault> {
        let (is_shared, most) = (self.memory.is_shared(), 16 * 4_000 * self.threads.len() as u64);
        let patience = if is_shared { IDLE } else { PATIENCE + most };
        for _ in 0..turns {
            if self.runnable.is_empty() {
                return Ok(Progress::Ended(Ran { instructions: self.instructions }));
            }
            self.take_turn()?;
            if self.idle > patience {
                // Others may change what threads wait for.
                self.idle = 0;
                return if is_shared { Ok(Progress::Idles) } else { Err(self.deadlock()) };
            }
        }
        Ok(Progress::Runs)
    }

    fn take_turn(&mut self) -> Result<(), Fault> {
        let at = self.below(self.runnable.len() as u64) as usize;
        let number = self.runnable[at];
        if self.slow[self.threads[number].block as usize] && self.below(16) > 0 {
            return Ok(());
        }
        for _ in 0..=self.below(TURN) {
            self.step(number)?;
            if self.threads[number].state != State::Runs {
                break;
            }
        }
        if self.threads[number].state != State::Runs {
            self.runnable.swap_remove(at);
            let block = self.threads[number].block;
            if self.meet(block)? {
                let members = self.members(block);
                self.runnable.extend(members);
            }
            let next = self.follow(self.launch.devices[block as usize]);
            self.runnable.extend(next);
        }
        Ok(())
    }

    pub(crate) fn deadlock(&self) -> Fault {
        let left = self.threads.iter().filter(|thread| thread.state != State::Ended);
        let place = |thread: &Thread| Place {
            line: self.kernels[thread.kernel].0.code.get(thread.next).map_or(0, |instruction| instruction.line),
            block: thread.block,
            thread: thread.index,
        };
        Fault::Deadlock { waiting: left.map(place).collect() }
    }

    fn members(&self, block: u32) -> std::ops::Range<usize> {
        let threads = self.launch.threads as usize;
        block as usize * threads..(block as usize + 1) * threads
    }

    /// Lets the threads of a block go on if all are at the barrier.
    fn meet(&mut self, block: u32) -> Result<bool, Fault> {
        let members = self.members(block);
        let states: Vec<State> = self.threads[members.clone()].iter().map(|thread| thread.state).collect();
        let Some((first, line)) = states.iter().enumerate().find_map(|(at, state)| match state {
            State::Waits(line) => Some((at, *line)),
            State::Runs | State::Ended => None,
        }) else {
            return Ok(false);
        };
        let is_elsewhere =
            |state: &State| matches!(state, State::Waits(other) if *other != line) || *state == State::Ended;
        if states.iter().any(is_elsewhere) {
            return Err(Fault::Divergence { place: Place { line, block, thread: first as u32 } });
        }
        if states.contains(&State::Runs) {
            return Ok(false);
        }
        let mut joined = self.threads[members.start].clock.clone();
        self.threads[members.clone()].iter().for_each(|thread| joined.join(&thread.clock));
        for number in members {
            let thread = &mut self.threads[number];
            thread.clock.clone_from(&joined);
            thread.clock.advance(number as u32);
            thread.state = State::Runs;
        }
        self.idle = 0;
        Ok(true)
    }

    /// Begins the next kernel on a device if all of its threads have ended; these threads.
    fn follow(&mut self, device: u32) -> Vec<usize> {
        let is_here = |number: &usize| self.launch.devices[self.threads[*number].block as usize] == device;
        let members: Vec<usize> = (0..self.threads.len()).filter(is_here).collect();
        let has_next = |thread: &Thread| thread.state == State::Ended && thread.kernel + 1 < self.kernels.len();
        if !members.iter().all(|&number| has_next(&self.threads[number])) {
            return Vec::new();
        }
        let mut joined = self.threads[members[0]].clock.clone();
        members.iter().for_each(|&number| joined.join(&self.threads[number].clock));
        for &number in &members {
            let thread = &mut self.threads[number];
            thread.clock.clone_from(&joined);
            thread.clock.advance(number as u32);
            thread.registers.fill(0);
            (thread.kernel, thread.next, thread.state) = (thread.kernel + 1, 0, State::Runs);
        }
        members
    }

    fn place(&self, number: usize, line: u32) -> Place {
        Place { line, block: self.threads[number].block, thread: self.threads[number].index }
    }

    fn value(&self, number: usize, operand: Operand) -> u64 {
        let thread = &self.threads[number];
        match operand {
            Operand::Register(register) => thread.registers[register as usize],
            Operand::Constant(value) => value,
            Operand::ThreadIndex => thread.index.into(),
            Operand::BlockIndex => thread.block.into(),
            Operand::BlockSize => self.launch.threads.into(),
        }
    }

    fn step(&mut self, number: usize) -> Result<(), Fault> {
        self.instructions += 1;
        self.idle += 1;
        let thread = &mut self.threads[number];
        let code: &'a [Instruction] = &self.kernels[thread.kernel].0.code;
        let Some(instruction) = code.get(thread.next) else {
            thread.state = State::Ended;
            return Ok(());
        };
        thread.next += 1;
        if let Some((register, wanted)) = instruction.guard
            && (thread.registers[register as usize] == 1) != wanted
        {
            return Ok(());
        }
        match instruction.operation {
            Operation::Branch(target) => thread.next = target,
            Operation::Return => {
                thread.state = State::Ended;
                self.idle = 0;
            }
            Operation::Barrier => thread.state = State::Waits(instruction.line),
            Operation::Load(access) => self.load(number, instruction, access)?,
            Operation::Store(access) => self.store(number, instruction, access)?,
            Operation::Pack(count) => {
                let bits = 8 * instruction.ty.bytes / count as u32;
                let part =
                    |at: usize| (self.value(number, instruction.from[at]) & ((1 << bits) - 1)) << (at as u32 * bits);
                let whole = (0..count).map(part).sum();
                self.set(number, instruction.to[0], whole);
            }
            Operation::Unpack(count) => {
                let (bits, whole) = (8 * instruction.ty.bytes / count as u32, self.value(number, instruction.from[0]));
                for at in 0..count {
                    self.set(number, instruction.to[at], whole >> (at as u32 * bits) & ((1 << bits) - 1));
                }
            }
            _ => {
                let values = instruction.from.map(|operand| self.value(number, operand));
                let place = self.place(number, instruction.line);
                let value = result(instruction, values).ok_or(Fault::NoResult { place })?;
                self.set(number, instruction.to[0], value);
            }
        }
        Ok(())
    }

    fn set(&mut self, number: usize, register: u32, value: u64) {
        self.threads[number].registers[register as usize] = value;
    }

    fn address(&self, number: usize, instruction: &Instruction, access: MemoryAccess) -> u64 {
        self.value(number, instruction.from[0]).wrapping_add_signed(access.offset)
    }

    /// Checks and notes an access; where its bytes are.
    fn accessed(
        &mut self,
        number: usize,
        instruction: &Instruction,
        access: MemoryAccess,
        is_write: bool,
    ) -> Result<(u64, Access, (usize, usize)), Fault> {
        let address = self.address(number, instruction, access);
        let bytes = u64::from(instruction.ty.bytes) * access.values as u64;
        let thread = &self.threads[number];
        let block = thread.block;
        let noted = Access {
            thread: number as u32,
            period: thread.clock.of(number as u32),
            line: instruction.line,
            block,
            device: self.launch.devices[block as usize],
            scope: access.order.scope(),
        };
        let memory = match access.space {
            Space::Shared => &mut self.shared[block as usize],
            Space::Global | Space::Parameter => &mut self.memory,
        };
        let found = memory.access(address, bytes, is_write, (noted, self.number), &thread.clock);
        let threads = self.launch.threads;
        let place_of =
            |access: Access| Place { line: access.line, block: access.block, thread: access.thread % threads };
        let place = found.map_err(|wrong| wrong.told(place_of(noted), address, bytes, place_of))?;
        Ok((address, noted, place))
    }

    fn load(&mut self, number: usize, instruction: &Instruction, access: MemoryAccess) -> Result<(), Fault> {
        if access.space == Space::Parameter {
            let at = self.address(number, instruction, access) / 8;
            let place = self.place(number, instruction.line);
            let parameters = self.kernels[self.threads[number].kernel].1;
            let value = parameters.get(at as usize).copied().ok_or(Fault::NoResult { place })?;
            self.set(number, instruction.to[0], value);
            return Ok(());
        }
        let (address, noted, place) = self.accessed(number, instruction, access, false)?;
        if let (Order::Acquire(_), Space::Global) = (access.order, access.space)
            && let Some(clock) = self.releases.acquire(address, noted)
        {
            self.threads[number].clock.join(clock);
        }
        let size = instruction.ty.bytes as usize;
        for at in 0..access.values {
            let memory = match access.space {
                Space::Shared => &self.shared[noted.block as usize],
                Space::Global | Space::Parameter => &self.memory,
            };
            let value = memory.load((place.0, place.1 + at * size), size);
            self.set(number, instruction.to[at], value);
        }
        Ok(())
    }

    fn store(&mut self, number: usize, instruction: &Instruction, access: MemoryAccess) -> Result<(), Fault> {
        let (address, noted, place) = self.accessed(number, instruction, access, true)?;
        let size = instruction.ty.bytes as usize;
        for at in 0..access.values {
            let value = self.value(number, instruction.from[1 + at]);
            let memory = match access.space {
                Space::Shared => &mut self.shared[noted.block as usize],
                Space::Global | Space::Parameter => &mut self.memory,
            };
            if memory.store((place.0, place.1 + at * size), size, value) {
                self.idle = 0;
            }
        }
        if access.space == Space::Global {
            let releases = matches!(access.order, Order::Release(_));
            let thread = &mut self.threads[number];
            self.releases.store(address, noted, releases.then_some(&thread.clock));
            if releases {
                thread.clock.advance(number as u32);
            }
        }
        Ok(())
    }
}
