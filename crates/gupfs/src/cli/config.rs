//! `gupfs config`: the settings of a state directory.

use clap::Subcommand;

use super::{AskArgs, report, show_as};
use crate::failure::Result;
use crate::settings;
use crate::state::Place;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// All settings.
    #[command(
        after_help = "Examples:\n  gupfs config show --state /var/lib/gupfs\n  gupfs config show --state /var/lib/gupfs --json"
    )]
    Show(AskArgs),
    /// The value of one setting.
    #[command(
        after_help = "Examples:\n  gupfs config get pagepool_size --state /var/lib/gupfs\n  gupfs config get lease_ms --state /var/lib/gupfs --json    (with origin, default and what is allowed)"
    )]
    Get {
        /// Its name, as `show` lists it.
        key: String,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Change a setting; a running daemon takes it up at its next start.
    #[command(
        after_help = "Examples:\n  gupfs config set pagepool_size 4G --state /var/lib/gupfs\n  gupfs config set direct_from default --state /var/lib/gupfs"
    )]
    Set {
        /// Its name, as `show` lists it.
        key: String,
        /// The new value; `default` goes back to the default.
        #[arg(allow_hyphen_values = true)]
        value: String,
        #[command(flatten)]
        ask: AskArgs,
    },
}

pub(super) fn run(command: ConfigCommand, json: bool) -> Result<()> {
    match command {
        ConfigCommand::Show(ask) => {
            let shown = settings::show(&Place::new(&ask.state)?)?;
            show_as(&shown, json, settings::to_text);
            Ok(())
        }
        ConfigCommand::Get { key, ask } => {
            let row = settings::get(&Place::new(&ask.state)?, &key)?;
            match json {
                true => say!("{row}"),
                false => say!("{}", settings::plain(&row["value"])),
            }
            Ok(())
        }
        ConfigCommand::Set { key, value, ask } => {
            report(settings::set(&Place::new(&ask.state)?, &key, &value), json)
        }
    }
}
