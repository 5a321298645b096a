"""Frames on real values: what a frame is, how its instructions are decoded and run, and what the rest registers itself with."""
