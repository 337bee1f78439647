//! Tuning, with functions of a Python program among the candidates.
//!
//! The principal function is [`tune`].

use crate::communicator::CoreCommunicator;
use crate::errors::argument;
use crate::operation::{collective_of_name, op_named};
use crate::waiting::aside;
use comm::{CandidateFunction, CandidateMemory, Collective, CollectiveCall, Communicator, TuneCandidate, TuneOptions};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// A place in memory: address and bytes.
type Place = (usize, usize);

/// A candidate's name, its collectives, what is called, and its predicate if it has one.
type NamedFunction = (String, Vec<String>, Py<PyAny>, Option<Py<PyAny>>);

/// What a call is: collective, reduction, root, type and number of elements.
type ToldCall = (String, Option<String>, Option<usize>, String, usize);

fn told(call: &CollectiveCall) -> ToldCall {
    let op = call.op.map(|op| op.to_string());
    (call.collective.to_string(), op, call.root, call.dtype.to_string(), call.count)
}

fn place(bytes: &[u8]) -> Place {
    (bytes.as_ptr().expose_provenance(), bytes.len())
}

/// Calls a function with the communicator to use, what the call is, and where its memory lies.
fn call(
    function: &Py<PyAny>,
    comm: &Communicator,
    call: &CollectiveCall,
    memory: CandidateMemory<'_>,
) -> Result<(), String> {
    let (send, receive) = match memory {
        CandidateMemory::InPlace(bytes) => (place(bytes), place(bytes)),
        CandidateMemory::OutOfPlace { input, output } => (place(input), place(output)),
    };
    Python::attach(|py| {
        let own = CoreCommunicator::of(comm.clone());
        function.call1(py, (own, told(call), send, receive)).map(drop).map_err(|error| {
            // A program that is to end says so by an exception too.
            error.to_string()
        })
    })
}

/// Whether a function can do a call, as its predicate says. One that raises says no, and Python shows what it has raised.
fn can_do(predicate: &Py<PyAny>, call: &CollectiveCall) -> bool {
    Python::attach(|py| {
        let says = predicate.call1(py, (told(call),)).and_then(|says| says.is_truthy(py));
        says.unwrap_or_else(|error| {
            error.write_unraisable(py, Some(predicate.bind(py)));
            false
        })
    })
}

/// Candidates as Python gives them: a name, collectives (none for those of `all`), a function and a predicate.
fn given(candidates: Vec<NamedFunction>, all: &[Collective]) -> PyResult<Vec<TuneCandidate>> {
    let candidate = |(name, collectives, function, predicate): NamedFunction| {
        let collectives = if collectives.is_empty() { all.to_vec() } else { named(&collectives)? };
        let run: Arc<CandidateFunction> = Arc::new(move |comm, asked, memory| call(&function, comm, asked, memory));
        let candidate = TuneCandidate::function(name, collectives, run);
        Ok(match predicate {
            None => candidate,
            Some(predicate) => candidate.when(Arc::new(move |asked| can_do(&predicate, asked))),
        })
    };
    candidates.into_iter().map(candidate).collect()
}

fn named(names: &[String]) -> PyResult<Vec<Collective>> {
    names.iter().map(|name| collective_of_name(name)).collect()
}

/// Candidates serve the calls for which the communicator's table names them, from now on. Returns the names of those that do.
#[pyfunction]
pub(crate) fn use_candidates(
    py: Python<'_>,
    communicator: &CoreCommunicator,
    candidates: Vec<NamedFunction>,
) -> PyResult<Vec<String>> {
    let all: Vec<Collective> = Collective::ALL.iter().copied().filter(|of| !of.is_listed()).collect();
    let (communicator, given) = (communicator.inner().clone(), given(candidates, &all)?);
    aside(py, move || communicator.use_candidates(&given))
}

/// Measures, and uses what is faster than stock from now on. A candidate is a name, collectives, a function and a predicate. Returns the table
/// and what was refused, as JSON; nothing in a launch of `antiphon tune`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn tune(
    py: Python<'_>,
    communicator: &CoreCommunicator,
    candidates: Vec<NamedFunction>,
    collectives: Option<Vec<String>>,
    sizes: Option<Vec<u64>>,
    dtype: &str,
    op: &str,
    budget: f64,
    timeout: f64,
    seed: u64,
) -> PyResult<Option<String>> {
    let seconds = |what: &str, seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
        time.ok_or_else(|| argument(format!("{what} is {seconds}, which is no number of seconds")))
    };
    let mut options = TuneOptions {
        dtype: dtype.parse().map_err(|why: String| argument(why))?,
        op: op_named(op)?,
        budget: seconds("budget", budget)?,
        limit: seconds("timeout", timeout)?,
        seed,
        ..TuneOptions::default()
    };
    if let Some(names) = collectives {
        options.collectives = named(&names)?;
    }
    options.sizes = sizes.unwrap_or(options.sizes);
    let given = given(candidates, &options.collectives)?;
    let communicator = communicator.inner().clone();
    let made = aside(py, move || communicator.tune(&options, given))?;
    Ok(made.map(|made| made.to_json()))
}
