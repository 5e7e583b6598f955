"""Facts that a stage has to know of its layers."""
