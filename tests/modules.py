"""The list of all modules, each with the first sentence of its docstring: `docs/modules.md`. `python -m tests.modules` makes it
anew."""
from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "modules.md"
HEADING = """# All modules

One sentence each, from the files themselves (`python -m tests.modules`). How they go together: [design.md](design.md), section 3;
one call followed through them: [tour.md](tour.md).
"""
WIDTH = 130


def page() -> str:
    """The text of `docs/modules.md`."""
    parts = [HEADING]
    for folder, files in itertools.groupby(described(), lambda file: file[0].parent):
        lines = [_wrapped(text, "") + "\n" if file.name == "__init__.py" else
                 _wrapped(f"- `{file.name.removesuffix('.py')}`: {text}", "  ") for file, text in files]
        parts.append("\n".join([f"## {folder.as_posix()}/\n", *lines]).rstrip() + "\n")
    return "\n".join(parts)


def described() -> Iterator[tuple[Path, str]]:
    """Every source file of `capture`, folder by folder, relative to the root, and what it is for."""
    files = [path for path in (ROOT / "capture").rglob("*")
             if path.suffix in (".py", ".h") or path.suffix in (".c", ".cpp") and not path.with_suffix(".h").exists()]
    for path in sorted(files, key=lambda path: (path.parent, path.name != "__init__.py", path.name)):
        yield path.relative_to(ROOT), _first_sentence(_purpose(path))


def _purpose(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    found = re.search(r"/\*(.*?)\*/|((?:^//[^\n]*\n)+)", text, re.M | re.S)
    return "" if found is None else re.sub(r"^\s*(//|\*)", "", found[1] or found[2], flags=re.M).strip()


def _first_sentence(text: str) -> str:
    text = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z`1(])", text, maxsplit=1)[0]


def _wrapped(text: str, indent: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


if __name__ == "__main__":
    PAGE.write_text(page())
