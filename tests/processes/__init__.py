"""Programs in every situation that a process can be in, each with capture and without: `python -m tests.processes`."""
