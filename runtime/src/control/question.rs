//! What the coordinator asks, what follows from the answers, and which answers are right.
//!
//! The principal type is [`Question`]. A task is a vote and a commit: every rank is asked whether it has prepared the plan
//! with this hash, and the order to run it, which bears the task's number, goes out when all have said so. The number
//! only grows; an answer to an earlier question comes too late to matter. A rank that repeats its last answer has not
//! heard the order that followed, and is told again.

use crate::control::messages::{Answer, Command, PROTOCOL};
use crate::numbers::TaskNumber;
use crate::verdict::{Cause, Phase};
use topology::Rank;

/// How much of a digest is shown: what lanes compare, too.
const DIGITS: usize = 12;

/// What the coordinator asks the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// Has the agent made, or found, the memory of its machine?
    SetUp,
    /// Is the worker there, and does it speak this protocol?
    Hello,
    /// Has the agent kept this file? Asked between two tasks.
    Kept { file: u64 },
    /// Where does it listen for the others, to carry out this plan?
    Listening { task: TaskNumber, plan: String },
    /// The vote: has it prepared this plan?
    Ready { task: TaskNumber, plan: String },
    /// What came out of it?
    Done { task: TaskNumber, plan: String },
}

impl Question {
    /// In which phase ranks are while they find an answer.
    pub(crate) fn phase(&self) -> Phase {
        if matches!(self, Self::Done { .. }) { Phase::Work } else { Phase::Prepare }
    }

    /// What is ordered when all have answered, and asked next.
    pub(crate) fn then(&self, answers: &[(Rank, Answer)]) -> Option<(Command, Self)> {
        match self {
            Self::Listening { task, plan } => {
                let doors = answers.iter().filter_map(|(_, answer)| match answer {
                    Answer::Listening { doors, .. } => Some(doors.clone()),
                    _ => None,
                });
                let order = Command::Connect { task: *task, doors: doors.collect() };
                Some((order, Self::Ready { task: *task, plan: plan.clone() }))
            }
            Self::Ready { task, plan } => {
                Some((Command::Run { task: *task }, Self::Done { task: *task, plan: plan.clone() }))
            }
            _ => None,
        }
    }

    /// The task that it is asked for, in words: its number, and the begins of its plans' digests.
    pub(crate) fn task(&self) -> Option<String> {
        let (Self::Listening { task, plan } | Self::Ready { task, plan } | Self::Done { task, plan }) = self else {
            return None;
        };
        let plans: Vec<&str> = plan.split('+').map(|digest| digest.get(..DIGITS).unwrap_or(digest)).collect();
        Some(format!("task {task}, plan {}", plans.join(" with ")))
    }

    /// Where it comes among all questions of an epoch. Files are asked for between tasks, and known by their numbers.
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

    /// What an answer is to this question.
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

/// Which of the plans is another one, of those whose digests are joined here.
fn difference(mine: &str, theirs: &str) -> String {
    let [mine, theirs] = [mine, theirs].map(|digests| digests.split('+').collect::<Vec<_>>());
    let index = (0..mine.len()).find(|&index| theirs.get(index) != mine.get(index)).unwrap_or_default();
    let which = if mine.len() > 1 { format!(" {} of {}", index + 1, mine.len()) } else { String::new() };
    let [mine, theirs] = [mine, theirs].map(|digests| digests.get(index).copied().unwrap_or("missing"));
    format!("its plan{which} is {theirs}, the launcher's {mine}")
}

/// Which question an answer belongs to, where questions have a place.
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

/// What an answer is to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    Right,
    /// It belongs to an earlier question.
    Late,
    /// It belongs to the last one: the rank has not heard what was ordered then.
    Repeated,
    Wrong(Cause, String),
}
