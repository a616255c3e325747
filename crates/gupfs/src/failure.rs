//! The one error of the command: what went wrong, where, and what the user can do about it.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// Shown to the user as two lines; the process then ends with a non-zero status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    what: String,
    help: Option<String>,
}

/// What every step of a command returns.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// `what` went wrong, with the place in it.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            help: None,
        }
    }

    /// An operation on `path` that the system refused.
    pub fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        let failure = Self::new(format!("cannot {doing} {}: {error}", path.display()));
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failure.help(format!(
                "make room in the file system of {} (`df` says which) and call it again",
                path.parent().unwrap_or(path).display()
            )),
            _ => failure,
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Several as one, a line each; what to do is that of the first that says it.
    pub fn join(all: &[Self]) -> Option<Self> {
        let what: Vec<&str> = all.iter().map(Self::what).collect();
        let help = all.iter().find_map(Self::remedy).map(str::to_owned);
        (!all.is_empty()).then(|| Self {
            what: what.join("\n       "),
            help,
        })
    }

    /// The sentence that names the fault.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What the user can do, if that was said.
    pub fn remedy(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        match &self.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_place_and_the_remedy() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::io("open", Path::new("/x/y"), &error).help("create it");
        let text = failure.to_string();
        assert!(text.contains("/x/y"), "{text}");
        assert!(text.ends_with("help: create it"), "{text}");
        let both = [Failure::new("another"), failure];
        let text = Failure::join(&both).expect("two").to_string();
        assert!(
            text.starts_with("another\n") && text.ends_with("help: create it"),
            "{text}"
        );
        assert_eq!(Failure::join(&[]), None);
    }
}
