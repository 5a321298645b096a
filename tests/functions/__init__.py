"""Functions of torch and numpy, each captured alone: `compare` runs one in both worlds, `catalogue` has those that are run."""
