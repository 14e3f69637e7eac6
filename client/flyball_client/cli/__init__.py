"""The `flyball` command and its subcommands."""
