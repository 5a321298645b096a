"""What reports tell of how a graph was compiled: the text that its artifact has."""
from __future__ import annotations

from capture.backends.native.artifact import Artifact


def describe(artifact: Artifact) -> tuple[str, str]:
    """One line, and what CAPTURE_DEBUG had the compiler note: at 3 fusion's decisions and the IR, at 4 also kernels and plans."""
    parts = {"forward": artifact.forward}
    for number, part in enumerate(reversed(artifact.backward), 1):
        parts["backward" if len(artifact.backward) == 1 else f"backward {number}"] = part
    counts = [f"{part.kernels} kernel{'' if part.kernels == 1 else 's'} {name}" for name, part in parts.items()]
    log = "\n".join(f"--- {name}\n{part.log}" for name, part in parts.items() if part.log)
    return ", ".join(counts) if len(parts) > 1 else counts[0].removesuffix(" forward"), log
