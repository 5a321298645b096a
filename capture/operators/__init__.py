"""Facts about torch's operators: what schemas and tags say, one table of what they do not say, and what is safe to assume of an
operator that neither knows."""
