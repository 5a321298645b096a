"""The tensor operations of a trace as an fx graph, and what is known of the values in it."""
