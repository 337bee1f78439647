//! The coordinator's questions, the orders that follow from the answers, and the judgement of answers.
//!
//! The principal type is [`Question`]. A task is a vote and a commit. The coordinator asks every rank whether it has
//! prepared the plan with this hash. When all have answered, it orders them to run it. The order contains the number of
//! the task. The number only grows, so an answer to an earlier question is recognized as late. A rank that repeats its
//! last answer has missed the next order, and gets the order again.

use crate::control::messages::{Answer, PROTOCOL, WorkerCommand};
use crate::numbers::TaskNumber;
use crate::verdict::{Cause, Phase};
use topology::Rank;

/// How many digits of a digest are shown: as many as lanes compare.
const DIGITS: usize = 12;

/// A question of the coordinator to the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// Has the agent made, or found, the shared memory of its machine?
    SetUp,
    /// Has the worker started, and does it speak this protocol?
    Hello,
    /// Has the agent stored this file? Asked between two tasks.
    Kept { file: u64 },
    /// Where does the rank listen for the others, to execute this plan?
    Listening { task: TaskNumber, plan: String },
    /// The vote: has the rank prepared this plan?
    Ready { task: TaskNumber, plan: String },
    /// What is the result of the plan?
    Done { task: TaskNumber, plan: String },
}

impl Question {
    /// The phase of ranks that have not answered yet.
    pub(crate) fn phase(&self) -> Phase {
        if matches!(self, Self::Done { .. }) { Phase::Work } else { Phase::Prepare }
    }

    /// The order that follows when all ranks have answered, and the next question.
    pub(crate) fn then(&self, answers: &[(Rank, Answer)]) -> Option<(WorkerCommand, Self)> {
        match self {
            Self::Listening { task, plan } => {
                let addresses = answers.iter().filter_map(|(_, answer)| match answer {
                    Answer::Listening { address, .. } => Some(address.clone()),
                    _ => None,
                });
                let order = WorkerCommand::Connect { task: *task, addresses: addresses.collect() };
                Some((order, Self::Ready { task: *task, plan: plan.clone() }))
            }
            Self::Ready { task, plan } => {
                Some((WorkerCommand::Run { task: *task }, Self::Done { task: *task, plan: plan.clone() }))
            }
            _ => None,
        }
    }

    /// The question's task as text: its number, and the first digits of its plans' digests.
    pub(crate) fn task(&self) -> Option<String> {
        let (Self::Listening { task, plan } | Self::Ready { task, plan } | Self::Done { task, plan }) = self else {
            return None;
        };
        let plans: Vec<&str> = plan.split('+').map(|digest| digest.get(..DIGITS).unwrap_or(digest)).collect();
        Some(format!("task {task}, plan {}", plans.join(" with ")))
    }

    /// The position among all questions of an epoch. Files have no position: they are stored between tasks, by number.
    fn place(&self) -> Option<(TaskNumber, u8)> {
        match self {
            Self::SetUp => Some((TaskNumber::default(), 0)),
            Self::Hello => Some((TaskNumber::default(), 1)),
            Self::Kept { .. } => None,
            Self::Listening { task, .. } => Some((*task, 0)),
            Self::Ready { task, .. } => Some((*task, 1)),
            Self::Done { task, .. } => Some((*task, 2)),
        }
    }

    /// Compares an answer with this question.
    pub(crate) fn judge(&self, answer: &Answer) -> Judgement {
        let (mine, theirs) = (self.place(), place(answer));
        let disagrees = |what| Judgement::Wrong(Cause::Disagrees, what);
        match (self, answer) {
            (Self::Kept { file }, Answer::Kept { file: kept, .. }) if file == kept => Judgement::Right,
            (_, Answer::Kept { .. }) => Judgement::Late,
            _ if theirs < mine || mine.is_none() => match (mine, theirs) {
                (Some((task, now)), Some((same, before)))
                    if same == task && task > TaskNumber::default() && before + 1 == now =>
                {
                    Judgement::Repeated
                }
                _ => Judgement::Late,
            },
            (Self::Hello, Answer::Hello { protocol, .. }) if *protocol != PROTOCOL => {
                disagrees(format!("it speaks protocol {protocol}, the launcher {PROTOCOL}"))
            }
            (Self::Listening { plan, .. }, Answer::Listening { plan: theirs, .. })
            | (Self::Ready { plan, .. }, Answer::Ready { plan: theirs, .. })
                if theirs != plan =>
            {
                disagrees(difference(plan, theirs))
            }
            _ if theirs == mine => Judgement::Right,
            _ => {
                let text: String = format!("{answer:?}").chars().take(200).collect();
                Judgement::Wrong(Cause::Failed, format!("it said out of turn: {text}"))
            }
        }
    }
}

/// Which of the plans differs. Both texts are joined digests.
fn difference(mine: &str, theirs: &str) -> String {
    let [mine, theirs] = [mine, theirs].map(|digests| digests.split('+').collect::<Vec<_>>());
    let index = (0..mine.len()).find(|&index| theirs.get(index) != mine.get(index)).unwrap_or_default();
    let which = if mine.len() > 1 { format!(" {} of {}", index + 1, mine.len()) } else { String::new() };
    let [mine, theirs] = [mine, theirs].map(|digests| digests.get(index).copied().unwrap_or("missing"));
    format!("its plan{which} is {theirs}, the launcher's {mine}")
}

/// The position of the question that an answer belongs to; `None` if it has none.
fn place(answer: &Answer) -> Option<(TaskNumber, u8)> {
    match answer {
        Answer::IsSetUp { .. } => Some((TaskNumber::default(), 0)),
        Answer::Hello { .. } => Some((TaskNumber::default(), 1)),
        Answer::Listening { task, .. } => Some((*task, 0)),
        Answer::Ready { task, .. } => Some((*task, 1)),
        Answer::Done { task, .. } => Some((*task, 2)),
        Answer::Kept { .. } | Answer::Failed { .. } => None,
    }
}

/// The relation of an answer to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    Right,
    /// It answers an earlier question.
    Late,
    /// It answers the last question of this task: the rank has missed the order that followed.
    Repeated,
    Wrong(Cause, String),
}
