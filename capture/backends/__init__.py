"""Backends: what turns an fx graph into a callable."""
