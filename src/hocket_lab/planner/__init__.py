"""Predictions for a cut network before it trains: speed, memory and staleness."""
