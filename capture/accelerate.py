"""`import capture.accelerate`: Hugging Face's accelerate takes "capture" for a backend of torch.compile.

Of torch's registry it knows a list of names only. With this, `TrainingArguments(torch_compile=True,
torch_compile_backend="capture")` and `Accelerator(dynamo_backend="capture")` work as with any other name.
"""
from __future__ import annotations

from typing import Any

from accelerate.utils import DynamoBackend  # type: ignore[import-not-found, import-untyped, unused-ignore]

NAME = "CAPTURE"


def find(cls: Any, value: object) -> Any:
    """The member for our name: what `enum` asks for values that no member has."""
    if value != NAME:
        return None
    member = str.__new__(cls, NAME)
    member._name_ = member._value_ = NAME
    return cls._value2member_map_.setdefault(NAME, member)


DynamoBackend._missing_ = classmethod(find)
