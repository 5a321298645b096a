"""Generators, coroutines and asynchronous generators whose bodies are frames of ours, and iteration over anything."""
