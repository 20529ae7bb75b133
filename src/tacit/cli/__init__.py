"""The command line, a file for each command. Nothing heavy is imported before a command runs."""
