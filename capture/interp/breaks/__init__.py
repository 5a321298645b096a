"""Where a trace ends and the program goes on: continuations, and what is left to CPython."""
