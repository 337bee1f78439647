//! The hub of a communicator: it matches what the ranks ask for, and answers.
//!
//! The principal type is [`Hub`].

use crate::machine::Machine;
use crate::reduce::reduced;
use crate::wire::{Code, INVALID_USAGE, Kind, REMOTE_ERROR, Reply, Request, SUCCESS, Terms, read_u64};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One rank of a communicator, as the hub knows it.
struct Member {
    socket: TcpStream,
    /// How many collectives it has asked for.
    collectives: u64,
}

/// What the ranks have asked for and nobody has answered yet.
#[derive(Default)]
struct Asked {
    /// By rank; all are here once the communicator is complete.
    members: BTreeMap<usize, Member>,
    ranks: Option<u64>,
    /// The requests of each collective, by its number and the rank.
    collectives: BTreeMap<u64, BTreeMap<usize, Request>>,
    /// By sender and receiver.
    sends: BTreeMap<(usize, usize), VecDeque<Request>>,
    receives: BTreeMap<(usize, usize), VecDeque<Request>>,
    /// By rank; whatever is wrong does not concern them.
    shrinks: BTreeMap<usize, Request>,
    /// Ranks that have left in order. Others may go on without them.
    departed: BTreeSet<usize>,
    machine: Machine,
    /// Why nothing works any more.
    broken: Option<(Code, String)>,
}

/// The hub of one communicator.
pub(crate) struct Hub {
    nonce: u64,
    asked: Mutex<Asked>,
}

/// The hubs of this process.
static HUBS: Mutex<Vec<Arc<Hub>>> = Mutex::new(Vec::new());

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> c_int;
}

/// Waits until the hubs of this process have said everything that they are saying. Then it may end.
extern "C" fn finish_answers() {
    let hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    hubs.iter().for_each(|hub| drop(hub.asked()));
}

impl Hub {
    /// Begins to listen for ranks that know a new number: the port, and the number. Its threads end with the process.
    pub(crate) fn start() -> std::io::Result<(u16, u64)> {
        static STARTED: AtomicU64 = AtomicU64::new(1);
        let nonce = (u64::from(std::process::id()) << 32) | STARTED.fetch_add(1, Ordering::Relaxed);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let mut asked = Asked::default();
        match Machine::of_environment() {
            Ok(machine) => asked.machine = machine,
            Err(why) => asked.broken = Some((INVALID_USAGE, why)),
        }
        let hub = Arc::new(Self { nonce, asked: Mutex::new(asked) });
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        if hubs.is_empty() {
            atexit(finish_answers);
        }
        hubs.push(hub.clone());
        drop(hubs);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let hub = hub.clone();
                std::thread::spawn(move || hub.attend(socket));
            }
        });
        Ok((port, nonce))
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one rank until it is gone.
    fn attend(&self, mut socket: TcpStream) {
        let mut hello =
            || Some([read_u64(&mut socket).ok()?, read_u64(&mut socket).ok()?, read_u64(&mut socket).ok()?]);
        let Some([nonce, ranks, rank]) = hello() else { return };
        let Ok(writer) = socket.try_clone() else { return };
        if nonce != self.nonce || !self.asked().join(rank as usize, ranks, writer) {
            let refused =
                Reply { number: 0, code: INVALID_USAGE, end: 0, data: b"this rank does not belong here".to_vec() };
            let _ = refused.write(&mut socket);
            return;
        }
        while let Ok(request) = Request::read(&mut socket) {
            let mut asked = self.asked();
            match request.terms.kind {
                Kind::Leave => drop(asked.departed.insert(rank as usize)),
                _ => asked.ask(rank as usize, request),
            }
            asked.miss_departed();
        }
        self.asked().leave(rank as usize);
    }
}

impl Asked {
    /// A rank comes. When all are here, each is told.
    fn join(&mut self, rank: usize, ranks: u64, socket: TcpStream) -> bool {
        let is_same = *self.ranks.get_or_insert(ranks) == ranks;
        if !is_same || rank as u64 >= ranks || self.members.contains_key(&rank) {
            return false;
        }
        self.members.insert(rank, Member { socket, collectives: 0 });
        if self.members.len() as u64 == ranks {
            self.members
                .keys()
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|rank| self.answer(rank, 0, SUCCESS, Vec::new()));
        }
        true
    }

    fn answer(&mut self, rank: usize, number: u64, code: Code, data: Vec<u8>) {
        self.answer_at(rank, number, (code, 0), data);
    }

    /// With when the operation has ended.
    fn answer_at(&mut self, rank: usize, number: u64, (code, end): (Code, u64), data: Vec<u8>) {
        if let Some(member) = self.members.get_mut(&rank) {
            // Who is gone needs no answer.
            let _ = Reply { number, code, end, data }.write(&mut member.socket).and_then(|()| member.socket.flush());
        }
    }

    /// Who waits for a rank that has left in order, waits in vain.
    fn miss_departed(&mut self) {
        let Some(&first) = self.departed.first() else { return };
        let mut ends = self.sends.iter().chain(&self.receives).filter(|(_, queue)| !queue.is_empty());
        let missed = ends.find_map(|((from, to), _)| [from, to].into_iter().find(|rank| self.departed.contains(rank)));
        let missed = missed.copied().or_else(|| (!self.collectives.is_empty()).then_some(first));
        if let Some(rank) = missed {
            self.broken.get_or_insert((REMOTE_ERROR, format!("rank {rank} is gone")));
            self.refuse_all();
        }
    }

    /// A rank is gone. If it has not left in order, whatever waits, waits in vain.
    fn leave(&mut self, rank: usize) {
        self.members.remove(&rank);
        if self.departed.contains(&rank) {
            return;
        }
        if self.broken.is_none() {
            self.broken = Some((REMOTE_ERROR, format!("rank {rank} is gone")));
        }
        self.refuse_all();
    }

    /// Answers everything that waits with the reason why nothing works.
    fn refuse_all(&mut self) {
        let Some((code, why)) = self.broken.clone() else { return };
        let collectives = std::mem::take(&mut self.collectives).into_values().flatten();
        let mut refused: Vec<(usize, u64)> = collectives.map(|(rank, request)| (rank, request.number)).collect();
        let mut messages = |queues: &mut BTreeMap<(usize, usize), VecDeque<Request>>, is_send: bool| {
            for ((from, to), queue) in std::mem::take(queues) {
                refused.extend(queue.iter().map(|request| (if is_send { from } else { to }, request.number)));
            }
        };
        messages(&mut self.sends, true);
        messages(&mut self.receives, false);
        refused.into_iter().for_each(|(rank, number)| self.answer(rank, number, code, why.clone().into_bytes()));
    }

    fn break_with(&mut self, why: String) {
        self.broken.get_or_insert((INVALID_USAGE, why));
        self.refuse_all();
    }

    /// A rank wants a communicator without those that its data lists.
    fn shrink(&mut self, rank: usize, request: Request) {
        let left_out = request.data.len() / size_of::<c_int>();
        self.shrinks.insert(rank, request);
        if (self.shrinks.len() + left_out) as u64 == self.ranks.unwrap_or(0) {
            let shrinks = std::mem::take(&mut self.shrinks);
            let is_same = shrinks.values().all(|of| of.data == shrinks[&rank].data);
            let told = told(&shrinks.keys().copied().collect::<Vec<_>>());
            for (rank, request) in shrinks {
                match told.get(&rank).filter(|_| is_same) {
                    Some(words) => self.answer(rank, request.number, SUCCESS, words.clone()),
                    None => self.answer(rank, request.number, INVALID_USAGE, b"ranks leave out others".to_vec()),
                }
            }
        }
    }

    fn ask(&mut self, rank: usize, request: Request) {
        if request.terms.kind == Kind::Shrink {
            return self.shrink(rank, request);
        }
        if let Some((code, why)) = self.broken.clone() {
            return self.answer(rank, request.number, code, why.into_bytes());
        }
        if request.terms.kind.is_message() {
            let peer = request.terms.peer as usize;
            let (queues, ends) = match request.terms.kind {
                Kind::Send => (&mut self.sends, (rank, peer)),
                _ => (&mut self.receives, (peer, rank)),
            };
            queues.entry(ends).or_default().push_back(request);
            return self.match_messages(ends);
        }
        let Some(member) = self.members.get_mut(&rank) else { return };
        let number = member.collectives;
        member.collectives += 1;
        let requests = self.collectives.entry(number).or_default();
        requests.insert(rank, request);
        if requests.len() as u64 == self.ranks.unwrap_or(0) {
            let requests = self.collectives.remove(&number).unwrap_or_default();
            self.serve(number, requests);
        }
    }

    /// Messages from one rank to another are matched in their order; both ends must agree.
    fn match_messages(&mut self, ends: (usize, usize)) {
        let (Some(sends), Some(receives)) = (self.sends.get_mut(&ends), self.receives.get_mut(&ends)) else { return };
        if sends.is_empty() || receives.is_empty() {
            return;
        }
        let same = |a: &Terms, b: &Terms| (a.count, a.dtype) == (b.count, b.dtype);
        let (sent, wanted) = (sends[0].terms, receives[0].terms);
        if !same(&sent, &wanted) {
            let (from, to) = ends;
            return self.break_with(format!(
                "rank {from} sends {} elements of type {}, and rank {to} receives {} of type {}",
                sent.count, sent.dtype, wanted.count, wanted.dtype
            ));
        }
        if let (Some(send), Some(receive)) = (sends.pop_front(), receives.pop_front()) {
            let end = self.machine.message(ends, send.data.len() as u64, send.begin.max(receive.begin));
            self.answer_at(ends.0, send.number, (SUCCESS, end), Vec::new());
            self.answer_at(ends.1, receive.number, (SUCCESS, end), send.data);
        }
    }

    /// A collective that all ranks have come to.
    fn serve(&mut self, number: u64, requests: BTreeMap<usize, Request>) {
        let terms = requests.values().next().map(|request| request.terms);
        let Some(terms) = terms else { return };
        if let Some((rank, other)) = requests.iter().find(|(_, request)| request.terms != terms) {
            let why = format!("collective {number}: rank 0 calls {terms:?}, and rank {rank} {:?}", other.terms);
            self.collectives.insert(number, requests);
            return self.break_with(why);
        }
        let results = results(terms, &requests);
        let begin = requests.values().map(|request| request.begin).max().unwrap_or(0);
        let given = requests.values().map(|request| request.data.len());
        let bytes = given.chain(results.iter().map(|(_, data)| data.len())).max().unwrap_or(0);
        let end = self.machine.collective(terms.kind, bytes as u64, begin);
        for (rank, data) in results {
            self.answer_at(rank, requests[&rank].number, (SUCCESS, end), data);
        }
    }
}

/// What each rank gets.
fn results(terms: Terms, requests: &BTreeMap<usize, Request>) -> Vec<(usize, Vec<u8>)> {
    let parts: Vec<&[u8]> = requests.values().map(|request| request.data.as_slice()).collect();
    let (ranks, root) = (parts.len(), terms.peer as usize);
    let split = if terms.kind == Kind::Split { split(&parts) } else { BTreeMap::new() };
    let block = |data: &[u8], at: usize| {
        let length = data.len() / ranks;
        data[at * length..(at + 1) * length].to_vec()
    };
    let result = |rank: usize| match terms.kind {
        Kind::AllReduce => reduced(&parts, terms.dtype, terms.op),
        Kind::Reduce if rank == root => reduced(&parts, terms.dtype, terms.op),
        Kind::AllGather => parts.concat(),
        Kind::Gather if rank == root => parts.concat(),
        Kind::ReduceScatter => {
            let blocks: Vec<_> = parts.iter().map(|part| block(part, rank)).collect();
            reduced(&blocks.iter().map(Vec::as_slice).collect::<Vec<_>>(), terms.dtype, terms.op)
        }
        Kind::Broadcast => parts[root].to_vec(),
        Kind::Scatter => block(parts[root], rank),
        Kind::AllToAll => parts.iter().flat_map(|part| block(part, rank)).collect(),
        Kind::Split => split.get(&rank).cloned().unwrap_or_default(),
        Kind::Grow => parts.concat(),
        Kind::Reduce | Kind::Gather | Kind::Send | Kind::Receive | Kind::Shrink | Kind::Leave => Vec::new(),
    };
    (0..ranks).map(|rank| (rank, result(rank))).collect()
}

/// What each rank of a new communicator is told. Each gives its colour and its key.
fn split(parts: &[&[u8]]) -> BTreeMap<usize, Vec<u8>> {
    let word = |data: &[u8], at: usize| {
        data.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(-1, i32::from_le_bytes)
    };
    let mut colours: BTreeMap<i32, Vec<(i32, usize)>> = BTreeMap::new();
    for (rank, part) in parts.iter().enumerate() {
        colours.entry(word(part, 0)).or_default().push((word(part, 4), rank));
    }
    let members = colours.into_iter().filter(|(colour, _)| *colour >= 0).map(|(_, mut members)| {
        members.sort_unstable();
        members.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
    });
    members.flat_map(|members| told(&members)).collect()
}

/// What the ranks of a new communicator are told: port, number, how many ranks, and which one it is.
fn told(members: &[usize]) -> BTreeMap<usize, Vec<u8>> {
    let Ok((port, nonce)) = Hub::start() else { return BTreeMap::new() };
    let words = |number: usize| [u64::from(port), nonce, members.len() as u64, number as u64];
    let told = |(number, rank): (usize, &usize)| (*rank, words(number).map(u64::to_le_bytes).concat());
    members.iter().enumerate().map(told).collect()
}
