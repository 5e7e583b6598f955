"""Transport of packets between neighbouring stages, in one process or among several."""
