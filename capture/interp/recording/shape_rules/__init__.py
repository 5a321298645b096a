"""Sizes of results that follow from those of operands: rules, family by family."""
from capture.interp.recording.shape_rules import creation, layers, products, reductions, views  # they register their rules
from capture.interp.recording.shape_rules.shaper import Many, Shaper, Unknown, may_fail, shapes_of

__all__ = ["Many", "Shaper", "Unknown", "creation", "layers", "may_fail", "products", "reductions", "shapes_of", "views"]
