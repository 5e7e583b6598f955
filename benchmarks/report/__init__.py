"""Tables and pictures rendered from records."""
