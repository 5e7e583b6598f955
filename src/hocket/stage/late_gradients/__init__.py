"""The point at which a late gradient is computed: old weights, new ones, or recomputed."""
