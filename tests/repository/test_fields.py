"""The fields of what a capture is made of are written by the module alone that declares them (docs/design.md, section 3)."""
from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWNERS = {  # class -> where it is
    "Objects": "capture/refgraph/objects.py",
    "Changes": "capture/refgraph/changes.py",
    "EntryState": "capture/refgraph/entry_state.py",
    "RefGraph": "capture/refgraph/graph.py",
    "GraphInputs": "capture/interp/recording/graph_inputs.py",
    "GraphBuilder": "capture/interp/recording/graph_builder.py",
    "Mutations": "capture/interp/recording/mutations.py",
    "Expectations": "capture/interp/recording/expectations.py",
    "RecomputableNodes": "capture/interp/recording/recomputable_tensors.py",
    "Arrays": "capture/interp/recording/arrays.py",
    "FxRecorder": "capture/interp/recording/fx_recorder.py",
    "Interpreter": "capture/interp/core/interpreter.py",
    "Deaths": "capture/interp/core/deaths.py",
    "OpenBlocks": "capture/interp/core/trace_state.py",
    "Generators": "capture/interp/core/trace_state.py",
    "UserLines": "capture/interp/core/trace_state.py",
    "Numbers": "capture/interp/recording/scalar_specialization.py",
    "Shapes": "capture/refgraph/shapes.py",
    "Unit": "capture/unit.py",
    "GuardTree": "capture/guards/tree.py",
    "Admission": "capture/admission.py",
    "Spending": "capture/admission.py",
    "Resumption": "capture/resumption.py",
    "StepFinder": "capture/training_steps.py",
    "Tier": "capture/backends/native/tiers.py",
    "Trial": "capture/backends/native/trial.py",
    "Piecewise": "capture/backends/native/piecewise.py",
    "Compile": "capture/backends/native/compiles.py",
    "Expected": "capture/backends/native/compilation_policy.py",
}
BASES = {"Changes": "Objects", "EntryState": "Changes", "RefGraph": "EntryState", "FxRecorder": "GraphBuilder"}
# What attributes and variables of these names are, unless an annotation, or what is assigned to them, says otherwise.
NAMED = {"interp": "Interpreter", "interpreter": "Interpreter", "recorder": "FxRecorder", "refs": "RefGraph", "graph": "RefGraph",
         "unit": "Unit", "numbers": "Numbers", "seen": "Numbers", "resumption": "Resumption", "finder": "StepFinder",
         "tier": "Tier", "trial": "Trial", "pieces": "Piecewise", "compile": "Compile", "expected": "Expected"}
HELD = {("Interpreter", "graph"): "RefGraph", ("Interpreter", "blocks"): "OpenBlocks",
        ("Interpreter", "deaths"): "Deaths",
        ("Interpreter", "generators"): "Generators", ("Interpreter", "lines"): "UserLines",
        ("GraphBuilder", "inputs"): "GraphInputs", ("GraphBuilder", "arrays"): "Arrays",
        ("FxRecorder", "mutations"): "Mutations", ("FxRecorder", "expectations"): "Expectations",
        ("FxRecorder", "recomputable"): "RecomputableNodes", ("RefGraph", "shapes"): "Shapes",
        ("Unit", "shapes"): "Shapes", ("Unit", "tree"): "GuardTree", ("Unit", "admission"): "Admission",
        ("Unit", "spending"): "Spending"}
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
        with file.open("a") as text:
            text.write(f"class {name}({base}):\n    def __init__(self):\n        self.of_{name}: dict = {{}}\n")
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
        def change(count, table, *, key):
            table[key] = count
        def by_others(interp, recorder):
            change(interp.of_Interpreter, table=recorder.of_FxRecorder, key=1)
            change(1, interp.graph.of_Changes, key=2)
        """))
    with (tmp_path / OWNERS["RefGraph"]).open("a") as file:
        file.write("        self.of_Changes = 1\n        self.of_RefGraph = 2\n")
    assert [line.partition(": ")[2] for line in violations(tmp_path)] == [
        "Interpreter.of_Interpreter", "RefGraph.of_RefGraph", "GraphBuilder.of_GraphBuilder", "Objects.of_Objects",
        "Mutations.of_Mutations", "Interpreter.of_Interpreter", "FxRecorder.of_FxRecorder", "Changes.of_Changes",
        "Changes.of_Changes"]


def violations(root: Path) -> Iterator[str]:
    """One line for each statement that writes a field of another module's class."""
    fields = {name: fields_of(root / path, name) for name, path in OWNERS.items()}
    trees = {path: ast.parse(path.read_text()) for path in sorted((root / "capture").rglob("*.py"))}
    changing = dict(pair for tree in trees.values() for pair in changed_parameters(tree))
    for path, tree in trees.items():
        own = {name for name, place in OWNERS.items() if root / place == path}
        for line, owner, field in written(tree, fields, changing):
            if owner not in own:
                yield f"{path.relative_to(root)}, line {line}: {owner}.{field}"


def fields_of(path: Path, name: str) -> set[str]:
    """What a class sets in a constructor of its own, if it has one; of a dataclass, what it declares."""
    owner, = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef) and node.name == name)
    inits = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    set_there = (node for init in inits for node in ast.walk(init) if isinstance(node, ast.Attribute))
    declared = (node.target for node in owner.body if isinstance(node, ast.AnnAssign))
    return {node.attr for node in set_there if isinstance(node.ctx, ast.Store)} | {
        target.id for target in declared if isinstance(target, ast.Name)}


Parameters = dict[str, tuple[list[str], set[str]]]


def changed_parameters(tree: ast.AST) -> Iterator[tuple[str, tuple[list[str], set[str]]]]:
    """The functions that change what they are given: their names, with those of all parameters and of the ones that are changed."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args) if arg.arg != "self"]
            targets = itertools.chain.from_iterable(map(targets_of, ast.walk(function)))
            if changed := {name for target in targets if (name := base_of(target)) in parameters}:
                yield function.name, (parameters, changed)


def base_of(target: ast.expr) -> str | None:
    """The variable of which an assignment changes an item."""
    if not isinstance(target, ast.Subscript):
        return None
    while isinstance(target, ast.Subscript):
        target = target.value  # type: ignore[assignment]
    return target.id if isinstance(target, ast.Name) else None


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to or deletes; of a method that changes its object, an item of that."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        return [single for target in node.targets for single in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    changes = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING
    return [ast.Subscript(node.func.value)] if changes else []  # type: ignore[attr-defined, call-arg]


Scope = dict[str, str | None]       # variables -> the class of what they hold, or the field that they are another name of


def written(tree: ast.AST, fields: dict[str, set[str]], changing: Parameters) -> Iterator[tuple[int, str, str]]:
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
        of_owner = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and meaning(
            node.func.value, scope) in fields                   # which has a method of such a name
        for target in [] if of_owner else targets_of(node):
            if found := target_of(target, scope):
                yield node.lineno, *found.split(".")  # type: ignore[attr-defined, misc]
        for argument in given_to_change(node, changing) if isinstance(node, ast.Call) else ():
            if "." in (known := meaning(argument, scope) or ""):
                yield node.lineno, *known.split(".")  # type: ignore[misc]
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (zip(target.elts, node.value.elts) if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                         else [(target, node.value)])
                scope.update({name.id: meaning(value, scope) for name, value in pairs if isinstance(name, ast.Name)})
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)
    return visit(tree, {})


def given_to_change(call: ast.Call, changing: Parameters) -> Iterator[ast.expr]:
    """The arguments of a call that the function changes."""
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
    parameters, changed = changing.get(name, ([], set()))
    named = [*zip(parameters, call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
    yield from (value for parameter, value in named if parameter in changed)


def annotated(arg: ast.arg) -> str | None:
    """The class that a parameter is of."""
    if arg.annotation is None or ast.unparse(arg.annotation) == "Any":
        return NAMED.get(arg.arg)
    for name in ast.unparse(arg.annotation).replace('"', "").split(" | "):
        if PROTOCOLS.get(name, name) in OWNERS:
            return PROTOCOLS.get(name, name)
    return None
