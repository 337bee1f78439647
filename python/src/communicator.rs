//! The communicator for Python.
//!
//! The principal type is [`CoreCommunicator`]. Its calls take buffers; the twins whose names end with `_at` take addresses.

use crate::arrange::GivenMemory;
use crate::call_thread::CallThread;
use crate::elements::ElementKind;
use crate::errors::{argument, raised};
use crate::exchange::{blocks, exchange, message};
use crate::memory::{LentMemory, NamedBuffer};
use crate::ongoing::{CoreHandle, HeldMemory};
use crate::operation::{CallSpec, collective_of_name, dtype_of, op_named, operate};
use crate::waiting::{aside, wait_for_sender};
use comm::{Collective, Communicator, Config, ConfirmationCounts, LongMessages, Op};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A communicator, and the calls of it that are under way.
#[pyclass(frozen, module = "antiphon._core", name = "Communicator")]
pub(crate) struct CoreCommunicator {
    communicator: Communicator,
    thread: CallThread,
}

fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    match seconds > 0.0 {
        true => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        false => Err(argument(format!("{what} is {seconds}, which is no number of seconds"))),
    }
}

const NOTHING: (*mut u8, usize) = (std::ptr::null_mut(), 0);

impl CoreCommunicator {
    pub(crate) fn of(communicator: Communicator) -> Self {
        Self { communicator, thread: CallThread::default() }
    }

    pub(crate) fn inner(&self) -> &Communicator {
        &self.communicator
    }

    fn parts(&self) -> (&Communicator, &CallThread) {
        (&self.communicator, &self.thread)
    }

    /// Sums elements of a type in place: [`Self::collective_at`] without words.
    pub(crate) fn sum_at(&self, py: Python<'_>, memory: (usize, usize), dtype: &str) -> PyResult<()> {
        let op = Some(Op::Sum);
        let dtype = dtype_of(kind_of_name(dtype)?, op)?;
        let spec = CallSpec { collective: Collective::AllReduce, root: None, op, dtype };
        // SAFETY: as for `collective_at`.
        unsafe { operate(py, self.parts(), &spec, GivenMemory { send: at(memory), receive: at(memory) }, None) }
            .map(drop)
    }
}

/// The memory of an argument that may be missing.
fn lend(object: Option<&Bound<'_, PyAny>>, name: &str, dtype: Option<&str>) -> PyResult<Option<LentMemory>> {
    object.map(|object| LentMemory::of(object, NamedBuffer { name, dtype })).transpose()
}

/// What both buffers of a call have as elements.
fn common_kind(send: Option<&LentMemory>, receive: Option<&LentMemory>) -> PyResult<ElementKind> {
    match (send, receive) {
        (Some(send), Some(receive)) if send.kind != receive.kind => {
            Err(argument(format!("x has {}, but out has {}", send.kind, receive.kind)))
        }
        (Some(memory), _) | (None, Some(memory)) => Ok(memory.kind),
        (None, None) => Err(argument("the call has neither x nor out")),
    }
}

fn place(memory: Option<&LentMemory>) -> (*mut u8, usize) {
    memory.map_or(NOTHING, |memory| (memory.start, memory.bytes))
}

#[pymethods]
impl CoreCommunicator {
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Self> {
        aside(py, Communicator::from_env).map(Self::of)
    }

    #[staticmethod]
    #[pyo3(signature = (rank, size, masters, secret=None, timeout=None, joining=None, machine=None, table=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn connect(
        py: Python<'_>,
        rank: usize,
        size: usize,
        masters: Vec<String>,
        secret: Option<String>,
        timeout: Option<f64>,
        joining: Option<f64>,
        machine: Option<String>,
        table: Option<PathBuf>,
    ) -> PyResult<Self> {
        if size > 1 && masters.is_empty() {
            return Err(argument("master is missing: HOST:PORT, where rank 0 waits for the others"));
        }
        let mut config = Config { masters, secret, ..Config::new(rank, size, String::new()) };
        config.read_env().map_err(|error| raised(&error))?;
        if let Some(limit) = timeout {
            config.timeout = seconds("timeout", limit)?;
        }
        if let Some(limit) = joining {
            config.joining = seconds("join_timeout", limit)?;
        }
        config.machine = machine.or(config.machine);
        config.table = table.or(config.table);
        aside(py, move || Communicator::connect(&config)).map(Self::of)
    }

    #[staticmethod]
    fn local(ranks: usize) -> PyResult<Vec<Self>> {
        if ranks == 0 {
            return Err(argument("0 ranks are none"));
        }
        let made = Communicator::local(ranks).map_err(|error| raised(&error))?;
        Ok(made.into_iter().map(Self::of).collect())
    }

    #[getter]
    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.communicator.size()
    }

    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let communicator = self.communicator.clone();
        Ok(aside(py, move || communicator.split(color, key))?.map(Self::of))
    }

    fn duplicate(&self) -> PyResult<Self> {
        self.communicator.duplicate().map(Self::of).map_err(|error| raised(&error))
    }

    fn subset(&self, members: Vec<usize>, tag: u64) -> PyResult<Self> {
        self.communicator.subset(&members, tag).map(Self::of).map_err(|error| raised(&error))
    }

    #[pyo3(signature = (least=1))]
    fn rebuild(&self, py: Python<'_>, least: usize) -> PyResult<Self> {
        let communicator = self.communicator.clone();
        aside(py, move || communicator.rebuild(least)).map(Self::of)
    }

    fn use_table(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let communicator = self.communicator.clone();
        aside(py, move || communicator.use_table_of(&path))
    }

    fn abort(&self) {
        self.communicator.abort();
    }

    fn set_timeout(&self, limit: f64) -> PyResult<()> {
        self.communicator.set_time_limit(seconds("the time limit", limit)?);
        Ok(())
    }

    /// The rank whose next message has come and is not about to be received; `None` if there is none for `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn sender_of_next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<usize>> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        wait_for_sender(py, &self.communicator, until)
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // A thread that waits for another rank may hold what this needs.
        let statistics = py.detach(|| self.communicator.statistics());
        let (all, plans) = (PyDict::new(py), PyDict::new(py));
        for (name, counted) in &statistics.plans {
            let plan = PyDict::new(py);
            plan.set_item("calls", counted.calls)?;
            plan.set_item("bytes", counted.bytes)?;
            plan.set_item("digests", counted.digests.clone())?;
            plans.set_item(name, plan)?;
        }
        all.set_item("plans", plans)?;
        all.set_item("stock", statistics.stock.clone())?;
        let ConfirmationCounts { timed, compared, switched } = statistics.confirmation;
        let confirmation = PyDict::new(py);
        confirmation.set_item("timed", timed)?;
        confirmation.set_item("compared", compared)?;
        confirmation.set_item("switched", switched)?;
        all.set_item("confirmation", confirmation)?;
        all.set_item("prepared", statistics.prepared)?;
        let LongMessages { in_place, by_kernel, in_fragments, by_socket } = statistics.long_messages;
        let long = PyDict::new(py);
        long.set_item("in_place", in_place)?;
        long.set_item("by_kernel", by_kernel)?;
        long.set_item("in_fragments", in_fragments)?;
        long.set_item("by_socket", by_socket)?;
        all.set_item("long_messages", long)?;
        Ok(all)
    }

    fn last_plan(&self, py: Python<'_>) -> String {
        py.detach(|| self.communicator.last_plan())
    }

    /// `send` may be missing: then it is the same memory as `receive`.
    #[pyo3(signature = (name, send, receive, op=None, root=None, dtype=None, begin=false))]
    #[expect(clippy::too_many_arguments, reason = "what a collective says")]
    fn collective(
        &self,
        py: Python<'_>,
        name: &str,
        send: Option<&Bound<'_, PyAny>>,
        receive: Option<&Bound<'_, PyAny>>,
        op: Option<&str>,
        root: Option<usize>,
        dtype: Option<&str>,
        begin: bool,
    ) -> PyResult<Option<CoreHandle>> {
        let (collective, op) = (collective_of_name(name)?, op.map(op_named).transpose()?);
        // In place, there is only x.
        let receives_in = if send.is_some() || collective == Collective::Scatter { "out" } else { "x" };
        let (send, receive) = (lend(send, "x", dtype)?, lend(receive, receives_in, dtype)?);
        let kind = common_kind(send.as_ref(), receive.as_ref())?;
        let is_only_read = collective == Collective::Broadcast && root == Some(self.communicator.rank());
        if let Some(memory) = receive.as_ref().filter(|_| !is_only_read) {
            memory.check_writable(receives_in)?;
        }
        let spec = CallSpec { collective, root, op, dtype: dtype_of(kind, op)? };
        let receives = place(receive.as_ref());
        let in_place = match collective {
            Collective::AllGather => {
                let each = receives.1 / self.communicator.size().max(1);
                (receives.0.wrapping_add(self.communicator.rank() * each), each)
            }
            Collective::Scatter | Collective::Gather | Collective::Reduce => NOTHING,
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllToAll | Collective::AllToAllV => {
                receives
            }
            Collective::Broadcast | Collective::SendRecv | Collective::Custom => receives,
        };
        let sends = send.as_ref().map_or(in_place, |memory| (memory.start, memory.bytes));
        let memory = GivenMemory { send: sends, receive: receives };
        if !begin {
            // SAFETY: `send` and `receive` live until this returns, and then the call is over. That nobody else uses the bytes
            // is what the caller of a collective promises, as for any function of NumPy that releases Python's lock.
            return unsafe { operate(py, self.parts(), &spec, memory, None) };
        }
        let held = HeldMemory { lent: [send, receive].into_iter().flatten().collect(), ..HeldMemory::default() };
        // SAFETY: the same; what holds the bytes in place goes with the call.
        unsafe { operate(py, self.parts(), &spec, memory, Some(held)) }
    }

    /// The same for addresses and lengths in bytes. With `owners`, the call only begins, and keeps them until it is over.
    #[pyo3(signature = (name, send, receive, dtype, op=None, root=None, owners=None))]
    #[expect(clippy::too_many_arguments, reason = "what a collective says")]
    fn collective_at(
        &self,
        py: Python<'_>,
        name: &str,
        send: (usize, usize),
        receive: (usize, usize),
        dtype: &str,
        op: Option<&str>,
        root: Option<usize>,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<Option<CoreHandle>> {
        let (collective, op) = (collective_of_name(name)?, op.map(op_named).transpose()?);
        let spec = CallSpec { collective, root, op, dtype: dtype_of(kind_of_name(dtype)?, op)? };
        let memory = GivenMemory { send: at(send), receive: at(receive) };
        // SAFETY: who gives addresses, which is only this package, gives those of the owners' memory.
        unsafe { operate(py, self.parts(), &spec, memory, owners.map(held_by)) }
    }

    /// Blocks are counted in elements; they lie one after the other unless `offsets` say where each begins.
    #[pyo3(signature = (send, counts, receive, receive_counts, offsets=None, receive_offsets=None, dtype=None, begin=false))]
    #[expect(clippy::too_many_arguments, reason = "what a collective says")]
    fn exchange(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        counts: Vec<usize>,
        receive: &Bound<'_, PyAny>,
        receive_counts: Vec<usize>,
        offsets: Option<Vec<usize>>,
        receive_offsets: Option<Vec<usize>>,
        dtype: Option<&str>,
        begin: bool,
    ) -> PyResult<Option<CoreHandle>> {
        let send = LentMemory::of(send, NamedBuffer { name: "x", dtype })?;
        let receive = LentMemory::of(receive, NamedBuffer { name: "out", dtype })?;
        let each = common_kind(Some(&send), Some(&receive))?.size();
        receive.check_writable("out")?;
        let sends = blocks("x", &counts, offsets.as_deref(), (each, send.bytes))?;
        let receives = blocks("out", &receive_counts, receive_offsets.as_deref(), (each, receive.bytes))?;
        let memory = GivenMemory { send: (send.start, send.bytes), receive: (receive.start, receive.bytes) };
        if !begin {
            // SAFETY: as for `collective`.
            return unsafe { exchange(py, self.parts(), memory, [sends, receives], None) };
        }
        let held = HeldMemory { lent: vec![send, receive], ..HeldMemory::default() };
        // SAFETY: as for `collective`.
        unsafe { exchange(py, self.parts(), memory, [sends, receives], Some(held)) }
    }

    /// The same for addresses and lengths in bytes.
    #[pyo3(signature = (send, counts, receive, receive_counts, dtype, owners=None))]
    #[expect(clippy::too_many_arguments, reason = "what a collective says")]
    fn exchange_at(
        &self,
        py: Python<'_>,
        send: (usize, usize),
        counts: Vec<usize>,
        receive: (usize, usize),
        receive_counts: Vec<usize>,
        dtype: &str,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<Option<CoreHandle>> {
        let each = kind_of_name(dtype)?.size();
        let sends = blocks("the input", &counts, None, (each, send.1))?;
        let receives = blocks("the output", &receive_counts, None, (each, receive.1))?;
        let memory = GivenMemory { send: at(send), receive: at(receive) };
        // SAFETY: as for `collective_at`.
        unsafe { exchange(py, self.parts(), memory, [sends, receives], owners.map(held_by)) }
    }

    #[pyo3(signature = (buffer, peer, is_sent, begin=false))]
    fn message(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        peer: usize,
        is_sent: bool,
        begin: bool,
    ) -> PyResult<Option<CoreHandle>> {
        let memory = LentMemory::of(buffer, NamedBuffer { name: "x", dtype: None })?;
        if !is_sent {
            memory.check_writable("x")?;
        }
        let start = (memory.start, memory.bytes);
        if !begin {
            // SAFETY: as for `collective`.
            return unsafe { message(py, self.parts(), start, (peer, is_sent), None) };
        }
        let held = HeldMemory { lent: vec![memory], ..HeldMemory::default() };
        // SAFETY: as for `collective`.
        unsafe { message(py, self.parts(), start, (peer, is_sent), Some(held)) }
    }

    /// The same for an address and a length in bytes.
    #[pyo3(signature = (buffer, peer, is_sent, owners=None))]
    fn message_at(
        &self,
        py: Python<'_>,
        buffer: (usize, usize),
        peer: usize,
        is_sent: bool,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<Option<CoreHandle>> {
        // SAFETY: as for `collective_at`.
        unsafe { message(py, self.parts(), at(buffer), (peer, is_sent), owners.map(held_by)) }
    }
}

fn at((start, bytes): (usize, usize)) -> (*mut u8, usize) {
    (std::ptr::with_exposed_provenance_mut(start), bytes)
}

fn held_by(owners: Py<PyAny>) -> HeldMemory {
    HeldMemory { objects: vec![owners], ..HeldMemory::default() }
}

fn kind_of_name(dtype: &str) -> PyResult<ElementKind> {
    ElementKind::of_name(dtype).ok_or_else(|| argument(format!("there is no element type `{dtype}`")))
}
