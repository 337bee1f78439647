//! What the program that started this process says of the other processes.
//!
//! The principal functions are [`environment::find`], which finds out which rank this is and where rank 0 is,
//! [`key::secret`], which finds the secret by which ranks of one job recognize each other, and
//! [`interfaces::addresses`], which finds the addresses of the interfaces that a user names. Ranks that a command of this project
//! has started end with it ([`command`]).

pub mod command;
pub mod environment;
pub mod interfaces;
pub mod key;

use std::fmt;

/// The result of looking at the environment.
pub type LaunchResult<T> = Result<T, LaunchError>;

/// A variable or option that is missing or makes no sense, or a secret that is none.
#[derive(Clone, Debug)]
pub struct LaunchError {
    /// What is wrong.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl LaunchError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; hint: {hint}"))
    }
}

impl std::error::Error for LaunchError {}
