"""Sizes of results that follow from those of operands: rules, family by family."""
from capture.interp.recording.shape_rules import (  # they register their rules
    creation,
    decompositions,
    gathers,
    joins,
    layers,
    networks,
    products,
    reductions,
    transforms,
    views,
    writes,
)
from capture.interp.recording.shape_rules.shaper import Copied, Many, Shaper, Unknown, is_loose, may_fail, rule_of, shapes_of

__all__ = ["Copied", "Many", "Shaper", "Unknown", "creation", "decompositions", "gathers", "is_loose", "joins", "layers",
           "may_fail", "networks", "products", "reductions", "rule_of", "shapes_of", "transforms", "views", "writes"]
