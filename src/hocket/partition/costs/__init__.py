"""Costs of layers and packets, and the division that balances them."""
