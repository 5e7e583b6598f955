"""What layers and packets cost, and the division that balances it."""
