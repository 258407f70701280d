"""The command line: `ephemera`, one module for each command."""
