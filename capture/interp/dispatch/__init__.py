"""What calls and attributes mean: who is called, what of it is recorded, modelled, inlined or not known."""
