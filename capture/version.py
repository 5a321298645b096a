"""The version of capture."""
VERSION = "0.1.0"
