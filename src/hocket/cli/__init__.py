"""The command line: one module for each command, which is imported when it is called."""
