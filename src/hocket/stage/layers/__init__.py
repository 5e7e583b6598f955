"""What a stage has to know of the layers of a network."""
