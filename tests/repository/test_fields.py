"""The fields of what a capture is made of are written by the module alone that declares them (docs/design.md, section 3)."""
from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWNERS = {  # class -> where it is
    "Objects": "capture/refgraph/objects.py",
    "Changes": "capture/refgraph/changes.py",
    "RefGraph": "capture/refgraph/graph.py",
    "GraphInputs": "capture/interp/recording/graph_inputs.py",
    "GraphBuilder": "capture/interp/recording/graph_builder.py",
    "Mutations": "capture/interp/recording/mutations.py",
    "Expectations": "capture/interp/recording/expectations.py",
    "Told": "capture/interp/recording/recomputable_tensors.py",
    "Arrays": "capture/interp/recording/arrays.py",
    "FxRecorder": "capture/interp/recording/fx_recorder.py",
    "Interpreter": "capture/interp/core/interpreter.py",
}
BASES = {"Changes": "Objects", "RefGraph": "Changes", "FxRecorder": "GraphBuilder"}
# What attributes and variables of these names are, unless an annotation, or what is assigned to them, says otherwise.
NAMED = {"interp": "Interpreter", "interpreter": "Interpreter", "recorder": "FxRecorder", "refs": "RefGraph", "graph": "RefGraph"}
HELD = {("Interpreter", "graph"): "RefGraph", ("GraphBuilder", "inputs"): "GraphInputs", ("GraphBuilder", "arrays"): "Arrays",
        ("FxRecorder", "mutations"): "Mutations", ("FxRecorder", "expectations"): "Expectations", ("FxRecorder", "told"): "Told"}
PROTOCOLS = {"Recorder": "FxRecorder"}
CHANGING = frozenset("""
    add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort update""".split())


def test_fields_are_written_by_their_owners() -> None:
    assert list(violations(ROOT)) == []


def test_a_violation_is_caught(tmp_path: Path) -> None:
    for name, path in OWNERS.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        base = BASES.get(name, "object")
        file.write_text(f"class {name}({base}):\n    def __init__(self):\n        self.of_{name}: dict = {{}}\n")
    (tmp_path / "capture/other.py").write_text(textwrap.dedent("""
        def direct(interp: Interpreter):
            interp.of_Interpreter = {}
            interp.graph.of_RefGraph[0] = interp.of_Interpreter
            del interp.recorder.of_GraphBuilder[1]
        def by_other_names(found: RefGraph, graph: fx.Graph, recorder):
            effects = found.of_Objects
            effects.update({})
            graph.of_RefGraph = {}
            known, count = recorder.mutations, 1
            known.of_Mutations, count = {}, 2
        class Own(RefGraph):
            def method(self):
                self.run.interp.of_Interpreter |= {}
                local = {}
                local.update(self.run.interp.of_Interpreter)
        """))
    with (tmp_path / OWNERS["RefGraph"]).open("a") as file:
        file.write("        self.of_Changes = 1\n        self.of_RefGraph = 2\n")
    assert [line.partition(": ")[2] for line in violations(tmp_path)] == [
        "Interpreter.of_Interpreter", "RefGraph.of_RefGraph", "GraphBuilder.of_GraphBuilder", "Objects.of_Objects",
        "Mutations.of_Mutations", "Interpreter.of_Interpreter", "Changes.of_Changes"]


def violations(root: Path) -> Iterator[str]:
    """One line for each statement that writes a field of another module's class."""
    fields = {name: fields_of(root / path, name) for name, path in OWNERS.items()}
    for path in sorted((root / "capture").rglob("*.py")):
        own = {name for name, place in OWNERS.items() if root / place == path}
        for line, owner, field in written(ast.parse(path.read_text()), fields):
            if owner not in own:
                yield f"{path.relative_to(root)}, line {line}: {owner}.{field}"


def fields_of(path: Path, name: str) -> set[str]:
    """What a class sets in its constructor."""
    owner, = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef) and node.name == name)
    init, = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return {node.attr for node in ast.walk(init) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


Scope = dict[str, str | None]       # variables -> the class of what they hold, or the field that they are another name of


def written(tree: ast.AST, fields: dict[str, set[str]]) -> Iterator[tuple[int, str, str]]:
    """Line, class and field of each write."""
    def owner_of(cls: str | None, field: str) -> str | None:
        found = None
        while cls is not None:
            found = cls if field in fields[cls] else found
            cls = BASES.get(cls)
        return found

    def meaning(node: ast.expr, scope: Scope) -> str | None:
        """The class of what an expression gives, or `class.field`."""
        if isinstance(node, ast.Name):
            return scope.get(node.id, NAMED.get(node.id))
        if isinstance(node, ast.Attribute):
            cls = meaning(node.value, scope)
            if cls in fields:
                owner = owner_of(cls, node.attr)
                held = HELD.get((owner or cls, node.attr)) or (None if node.attr == "graph" else NAMED.get(node.attr))
                return held or (owner and f"{owner}.{node.attr}")
            return None if node.attr == "graph" else NAMED.get(node.attr)
        return None

    def target_of(node: ast.expr, scope: Scope) -> str | None:
        """The field that an assignment to `node`, or to an item of it, writes."""
        aliased = isinstance(node, ast.Subscript)
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute):
            owner = owner_of(cls, node.attr) if (cls := meaning(node.value, scope)) in fields else None
            return owner and f"{owner}.{node.attr}"
        return known if aliased and "." in (known := meaning(node, scope) or "") else None

    def visit(node: ast.AST, scope: Scope) -> Iterator[tuple[int, str, str]]:
        if isinstance(node, ast.ClassDef):
            scope = {**scope, "self": node.name if node.name in fields else None}
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            scope = {**scope, **{arg.arg: annotated(arg) for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                                 if arg.arg != "self"}}
        targets = (node.targets if isinstance(node, (ast.Assign, ast.Delete)) else
                   [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else
                   [ast.Subscript(node.func.value)] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                   and node.func.attr in CHANGING and meaning(node.func.value, scope) not in fields else [])
        for target in targets:
            for single in target.elts if isinstance(target, ast.Tuple) else [target]:
                if found := target_of(single, scope):
                    yield node.lineno, *found.split(".")  # type: ignore[attr-defined, misc]
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (zip(target.elts, node.value.elts) if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                         else [(target, node.value)])
                scope.update({name.id: meaning(value, scope) for name, value in pairs if isinstance(name, ast.Name)})
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)
    return visit(tree, {})


def annotated(arg: ast.arg) -> str | None:
    """The class that a parameter is of."""
    if arg.annotation is None or ast.unparse(arg.annotation) == "Any":
        return NAMED.get(arg.arg)
    for name in ast.unparse(arg.annotation).replace('"', "").split(" | "):
        if PROTOCOLS.get(name, name) in OWNERS:
            return PROTOCOLS.get(name, name)
    return None
