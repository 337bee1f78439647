//! The first keys of every JSON answer: its format, the topology, and the request.
//!
//! | key | meaning |
//! |---|---|
//! | `format` | `antiphon-NAME/1`, NAME being the command or the kind of answer |
//! | `topology` {name, digest} | `null` where there is none, as for plans of other tools |
//! | `collective`, `op`, `root`, `ranks`, `members`, `size_bytes`, `chunks_per_rank` | the request, as in a schedule's file; absent where there is none |

use crate::failure::{Failure, Outcome};
use schedule::{Request, TopologyRef};
use serde::Serialize;
use serde_json::{Map, Value};

/// `rest`, after the format, the topology and the request.
///
/// # Errors
/// If `rest` cannot be serialised, which would be a defect of ours.
pub(crate) fn answer(
    name: &str,
    topology: Option<&TopologyRef>,
    request: Option<&Request>,
    rest: &impl Serialize,
) -> Outcome<Value> {
    let mut answer = Map::new();
    answer.insert("format".to_owned(), format!("antiphon-{name}/1").into());
    answer.insert("topology".to_owned(), serde_json::to_value(topology).map_err(Failure::no)?);
    for part in [serde_json::to_value(request), serde_json::to_value(rest)] {
        if let Value::Object(keys) = part.map_err(Failure::no)? {
            answer.extend(keys);
        }
    }
    Ok(Value::Object(answer))
}
