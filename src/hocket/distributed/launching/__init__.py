"""Start and supervision of the processes of one machine."""
