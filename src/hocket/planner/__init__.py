"""What to expect of a cut network before it trains: speed, memory and staleness."""
