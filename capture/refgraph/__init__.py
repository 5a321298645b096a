"""What the trace knows of the heap, and the mock function that follows from it."""
