"""The interpreter: frames on real values, with shadows."""
