//! Keeps idle CPUs awake while something is measured.
//!
//! A virtual CPU that halts leaves its host's CPU, and waking it takes 20 to 80 us: several times a FUSE
//! request. Whether an idle CPU halts within the pause between two requests is chance, so figures of small
//! operations jumped by 5 between runs. Power management takes a limit on how long a wake-up may last from
//! whoever holds /dev/cpu_dma_latency open; with 0 idle CPUs poll.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

const LATENCY: &str = "/dev/cpu_dma_latency";

/// What idle CPUs do; lasts until it is dropped.
#[derive(Debug)]
pub(crate) enum State {
    /// They poll.
    Polling {
        /// Closing it ends the demand.
        _demand: File,
    },
    /// They sleep, as was asked for.
    Sleeping,
    /// They sleep, because this machine cannot be told otherwise.
    Refused(std::io::Error),
}

impl State {
    /// Lets idle CPUs poll, if `is_wanted`.
    pub(crate) fn enter(is_wanted: bool) -> Self {
        if !is_wanted {
            return Self::Sleeping;
        }
        let opened = OpenOptions::new().write(true).open(LATENCY);
        let demanded = opened.and_then(|mut file| {
            // A 32-bit zero has no byte order.
            file.write_all(&[0; 4])?;
            Ok(file)
        });
        demanded.map_or_else(Self::Refused, |file| Self::Polling { _demand: file })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polling { .. } => write!(f, "Idle CPUs polled ({LATENCY} = 0)."),
            Self::Sleeping => write!(f, "Idle CPUs slept (--no-poll): small figures jump."),
            Self::Refused(error) => {
                write!(
                    f,
                    "Idle CPUs slept ({LATENCY}: {error}): small figures jump."
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_says_whether_idle_cpus_poll() {
        assert!(State::enter(false).to_string().contains("--no-poll"));
        let missing = State::Refused(std::io::ErrorKind::NotFound.into());
        assert!(missing.to_string().contains(LATENCY));
        // Not everybody may have it; whoever has is told so.
        let wanted = State::enter(true);
        let polls = matches!(wanted, State::Polling { .. });
        assert_eq!(wanted.to_string().contains("polled"), polls);
    }
}
