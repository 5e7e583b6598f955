"""What executes a program."""
