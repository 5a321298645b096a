"""Imports go one way, between the packages and within `interp`, no module is part of a circle, and no file grows beyond 600 lines
(docs/design.md, section 3)."""
from __future__ import annotations

import ast
import functools
import graphlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = 600
SUFFIXES = {".py", ".c", ".cpp", ".h"}

BASE = {"errors", "config", "version", "torch_versions", "code_names", "operators"}
STAGES = {"refgraph", "interp", "guards", "backends", "debug", "tracebacks", "_C"}
ALLOWED: dict[str, set[str]] = {  # part -> the parts which it may import, besides itself
    "errors": set(),
    "config": set(),
    "version": set(),
    "torch_versions": set(),
    "code_names": set(),
    "operators": {"_C", "code_names", "torch_versions"},
    "_C": set(),
    "_process": set(),
    "extensions": {"_C", "_process"},
    "refgraph": BASE | {"_C"},
    "interp": BASE | {"refgraph", "debug", "_C"},
    "guards": BASE | {"refgraph", "debug", "_C"},
    "backends": BASE | {"_C", "_process"},
    "debug": BASE,
    "history": BASE | {"guards", "refgraph"},
    "remedies": BASE | {"history", "refgraph"},
    "stances": BASE,
    "tracebacks": BASE | {"_C"},
    "resumption": BASE | STAGES,
    "admission": {"config", "guards"},
    "unit": BASE | STAGES | {"admission", "history", "resumption"},
    "entries": BASE | STAGES | {"history", "unit"},
    "reports": BASE | STAGES | {"history", "remedies", "unit"},
    "cuts": BASE | STAGES | {"history", "resumption", "unit", "entries"},
    "pipeline": BASE | STAGES | {"history", "remedies", "reports", "resumption", "stances", "unit", "entries", "cuts"},
    "modules": BASE | STAGES | {"unit"},
    "api": BASE | STAGES | {"history", "unit", "pipeline", "modules", "reports"},
    "packages": BASE | {"backends", "reports"},
    "__init__": BASE | {"api", "backends", "extensions", "reports"},
    "dynamo_backend": {"api"},
    "accelerate": set(),
    "step_loops": {"config", "code_names"},
    "training_steps": {"step_loops", "code_names"},
    "loop_bodies": BASE | STAGES | {"step_loops", "unit"},
    "interceptor": BASE | STAGES | {"unit", "pipeline", "step_loops", "training_steps", "loop_bodies"},
    "doctor": BASE | {"_C", "backends", "extensions"},
    "__main__": BASE | {"api", "backends", "doctor", "reports", "step_loops", "training_steps", "interceptor"},
}

ROOMS: dict[str, set[str]] = {  # package of `interp` -> those which it may import, besides itself
    "core": set(),
    "recording": {"core"},
    "polyfills": {"core"},
    "function_models": {"core", "recording", "polyfills"},
    "dispatch": {"core", "recording", "polyfills", "function_models"},
    "coroutines": {"core", "polyfills", "function_models", "dispatch"},
    "breaks": {"core", "recording", "polyfills", "function_models", "coroutines"},
    "opcodes": {"core", "recording", "polyfills", "function_models", "dispatch", "coroutines"},
}
CSRC: dict[str, set[str]] = {  # folder of `csrc` -> those whose headers it may include, besides its own and those of no folder
    "cpython": set(),
    "guards": {"cpython"},
    "frames": {"cpython", "guards"},
    "objects": {"cpython"},
    "tensors": set(),
    "cuda": set(),
    "executor": {"cuda"},
    "process": set(),
    "package": {"executor"},
}
BASIC = {"python_ref.h", "shared_library.h", "stopwatch.h"}   # headers of no folder, which all may include
FOR_TYPES = {"core": {"recording", "breaks"}}       # the interpreter names what it is given


def test_imports_follow_the_layers() -> None:
    assert wrong_arrows(imports(ROOT)) == []


def test_imports_within_the_interpreter_follow_its_packages() -> None:
    assert wrong_rooms(imports(ROOT, annotations=False), ROOMS) == []
    with_types = {room: allowed | FOR_TYPES.get(room, set()) for room, allowed in ROOMS.items()}
    assert wrong_rooms(imports(ROOT), with_types) == []


def test_includes_follow_the_folders_of_the_extension() -> None:
    found = includes(ROOT)
    assert len(found) > 40 and wrong_includes(found, CSRC) == []


def test_what_cpython_no_longer_declares_is_declared_by_a_header() -> None:
    """A file that calls such a function compiles with older versions of Python without the header, too."""
    declared = {name: header for header in (ROOT / "capture" / "csrc" / "cpython").glob("*.h")
                for name in re.findall(r"^PyAPI_FUNC\(.*?\) (_\w+)\(", header.read_text(), re.M)}
    assert declared
    assert [f"{path} calls {name} without cpython/{header.name}" for path, included in includes(ROOT).items()
            for name, header in declared.items() if re.search(rf"\b{name}\(", (ROOT / "capture" / "csrc" / path).read_text())
            and f"cpython/{header.name}" not in included and path.name != header.name] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circle(imports(ROOT, annotations=False)) == []


def test_no_file_is_too_long() -> None:
    assert too_long(ROOT) == []


def test_calls_know_no_library_by_name() -> None:
    """What functions of libraries mean stands in `function_models`, in tables that calls look up."""
    for name in ("calls", "native_calls", "kind_handlers", "callables"):
        tree = ast.parse((ROOT / "capture/interp/dispatch" / f"{name}.py").read_text())
        named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {path for path in named if path.startswith(("torch.", "numpy.", "np."))} <= {"torch.Tensor"}


def test_a_violation_is_caught(tmp_path: Path) -> None:
    files = {
        "capture/__init__.py": "from capture.api import compile",
        "capture/api.py": "import capture.pipeline",
        "capture/pipeline.py": "from capture import guards, interp",
        "capture/guards/__init__.py": "from . import tree",
        "capture/guards/tree.py": "def f():\n    from capture.interp import frame",
        "capture/interp/__init__.py": "",
        "capture/interp/frame.py": "from capture.interp.calls import call",
        "capture/interp/calls.py": "def call():\n    from .frame import step\n" + "\n" * LINES,
        "capture/interp/values.py": "if TYPE_CHECKING:\n    from . import table\n    from capture import api",
        "capture/interp/table.py": "from . import values",
        "capture/refgraph/__init__.py": "if True:\n    import capture.novel",
        "capture/novel.py": "",
        "capture/csrc/module.cpp": '#include "guards/tree.h"',
        "capture/csrc/guards/tree.h": '#include <Python.h>\n#include "cpython/frame.h"\n#include "python_ref.h"',
        "capture/csrc/cpython/frame.h": '#include "guards/tree.h"',
        "capture/csrc/novel/a.cpp": '#include "internal/pycore_dict.h"',
        "build/capture/old.py": "import nothing" + "\n" * LINES,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    found = imports(tmp_path)
    assert wrong_arrows(found) == ["capture.guards.tree imports capture.interp.frame",
                                   "capture.interp.values imports capture.api",
                                   "capture.refgraph imports capture.novel",
                                   "capture.novel belongs to no layer: add it to docs/design.md and to ALLOWED"]
    assert wrong_rooms({"capture.interp.core.frame": {"capture.interp.dispatch.calls", "capture.refgraph.node"},
                        "capture.interp.dispatch.calls": {"capture.interp.core.frame"}, "capture.interp.other": set()}, ROOMS) == [
        "capture.interp.core.frame imports capture.interp.dispatch.calls",
        "capture.interp.other is in no package of interp: add that to docs/design.md and to ROOMS"]
    assert wrong_includes(includes(tmp_path), CSRC) == [
        "capture/csrc/cpython/frame.h includes guards/tree.h",
        "capture/csrc/novel/a.cpp is in no folder of csrc: add that to docs/design.md and to CSRC"]
    assert set(circle(imports(tmp_path, annotations=False))) == {"capture.interp.frame", "capture.interp.calls"}
    assert too_long(tmp_path) == [f"capture/interp/calls.py has {LINES + 2} lines"]


@functools.cache
def imports(root: Path, annotations: bool = True) -> dict[str, set[str]]:
    """Module name -> names of all modules of `capture` that it imports anywhere, in functions too.

    Without `annotations`, what is imported for type checkers alone (`if TYPE_CHECKING`) is left out: it never runs.
    """
    files = {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p
             for p in sorted((root / "capture").rglob("*.py"))}
    return {name: set(_imported(name, path, files, annotations)) for name, path in files.items()}


def wrong_arrows(graph: dict[str, set[str]]) -> list[str]:
    """One line for each import against the layers, and for each module without a layer."""
    lines = [f"{module} imports {target}" for module, targets in graph.items() for target in sorted(targets)
             if _part(target) not in ALLOWED.get(_part(module), set()) | {_part(module)}]
    return lines + [f"{module} belongs to no layer: add it to docs/design.md and to ALLOWED"
                    for module in graph if _part(module) not in ALLOWED]


def wrong_rooms(graph: dict[str, set[str]], rooms: dict[str, set[str]]) -> list[str]:
    """The same within `interp`: one line for each import against the order of its packages, and for each module in none."""
    inner = {module: module.split(".")[2] for module in graph if module.startswith("capture.interp.")}
    lines = [f"{module} imports {target}" for module, room in inner.items() for target in sorted(graph[module])
             if target in inner and inner[target] not in rooms.get(room, set()) | {room}]
    return lines + [f"{module} is in no package of interp: add that to docs/design.md and to ROOMS"
                    for module, room in inner.items() if room not in rooms]


def includes(root: Path) -> dict[Path, list[str]]:
    """Each file of the extension, and the headers of its own that it includes: by their paths from `csrc` on."""
    csrc = root / "capture" / "csrc"
    return {path.relative_to(csrc): [name for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)
                                     if not name.startswith("internal/")]       # CPython's
            for path in sorted(csrc.rglob("*")) if path.suffix in SUFFIXES}


def wrong_includes(found: dict[Path, list[str]], folders: dict[str, set[str]]) -> list[str]:
    """One line for each include against the order of the folders, and for each file in none."""
    inner = {path: path.parts[0] for path in found if len(path.parts) > 1}
    lines = [f"capture/csrc/{path} includes {name}" for path, folder in inner.items() for name in found[path]
             if name not in BASIC and name.split("/")[0] not in folders.get(folder, set()) | {folder}]
    return lines + [f"capture/csrc/{path} is in no folder of csrc: add that to docs/design.md and to CSRC"
                    for path, folder in inner.items() if folder not in folders]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import circle, empty when there is none."""
    try:
        graphlib.TopologicalSorter({m: targets - {m} for m, targets in graph.items()}).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def too_long(root: Path) -> list[str]:
    """One line for each source file of more than `LINES` lines."""
    sizes = {path.relative_to(root): len(path.read_text().splitlines()) for path in sources(root)}
    return [f"{path} has {size} lines" for path, size in sizes.items() if size > LINES]


def sources(root: Path) -> Iterator[Path]:
    """Every source file that people write and read."""
    for folder in ("capture", "tests", "benchmarks", "examples", "paritybench_subset"):
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES)


def _imported(module: str, path: Path, modules: Iterable[str], annotations: bool) -> Iterator[str]:
    """The modules of `capture` which one file imports; `from package import name` may name a module or an object."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(_parsed(path), annotations):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_own(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if _is_own(source):
                for alias in node.names:
                    name = f"{source}.{alias.name}"
                    yield name if name in modules or source == "capture" and alias.name in ALLOWED else source


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _statements(tree: ast.AST, annotations: bool) -> Iterator[ast.stmt]:
    """Every statement below `tree`, but for the bodies of `if TYPE_CHECKING` unless `annotations`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue                    # which hold no statements
        if annotations or not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            if isinstance(node, ast.stmt):
                yield node
            yield from _statements(node, annotations)


def _is_own(name: str) -> bool:
    return name == "capture" or name.startswith("capture.")


def _part(module: str) -> str:
    """The layer of a module: the first name below `capture`."""
    return module.split(".")[1] if "." in module else "__init__"
