"""The command line: one file per subcommand, loaded when it is used."""
