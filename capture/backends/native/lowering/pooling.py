"""Pooling over windows that do not depend on data."""
from __future__ import annotations
