"""`python -m capture run`: a script behaves as under `python`, and its modules are captured."""
from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import pytest

from capture.__main__ import parse
from tests.scripts import check, files, forked, python

TRAIN = """
import os, sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def __call__(self, x):          # a class may have its own
        return super().__call__(x) * 1.0

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

def scaled(x):
    return x * 3

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.ones(4) * i, i % 2

def main():
    torch.manual_seed(0)
    net, loss_fn = Net(), nn.CrossEntropyLoss()
    seen = []
    hook = net.a.register_forward_hook(lambda *args: seen.append(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    workers, method = int(sys.argv[1]), sys.argv[2] or None
    for x, y in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=workers, multiprocessing_context=method):
        optimizer.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f} {scaled(loss).item():.6f}")
    print(list(net.state_dict()), type(net), type(net).__call__.__qualname__, nn.Module.__call__ is nn.Module._wrapped_call_impl)
    print(len(seen), sys.argv, sys.path[0], __name__, __file__, __spec__, sorted(globals()))
    hook.remove()
    import pickle
    print(type(pickle.loads(pickle.dumps(net))).__name__, torch.equal(pickle.loads(pickle.dumps(net)).a.weight, net.a.weight))

if __name__ == "__main__":
    main()
"""


LOOP = "    for x, y in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=workers, multiprocessing_context=method):"


@pytest.mark.parametrize(("workers", "method"), [(2, "fork"), (1, "spawn")])
def test_a_training_script_is_the_same(tmp_path: Path, workers: int, method: str) -> None:
    report = tmp_path / "report.json"
    options = ("--report", str(report), "--function", "__main__:scaled")
    plain = check(files(tmp_path, train=TRAIN), str(workers), method, before=options)
    assert plain.returncode == 0, plain.stderr
    frames = {frame["name"]: frame for frame in json.loads(report.read_text())["frames"]}
    loop = f"train.py:{TRAIN.split(chr(10)).index(LOOP) + 1}"
    assert set(frames) == {loop, "scaled"} and frames[loop]["hits"] == 2
    for frame in frames.values():
        assert frame["captures"] == 1 and frame["native_calls"] == 0 and frame["breaks"] == []


@pytest.mark.parametrize("ending", [
    "raise ValueError('end')",
    "sys.exit(7)", "sys.exit('with a message')", "sys.exit()", "os._exit(5)",
    "raise KeyboardInterrupt",
    "os.kill(os.getpid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGINT)",
    "signal.signal(signal.SIGINT, lambda *_: print('caught')); os.kill(os.getpid(), signal.SIGINT)",
    "atexit.register(print, 'at exit'); 1 / 0",
    "sys.excepthook = lambda cls, error, tb: print('hook', cls, error, tb.tb_lineno, tb.tb_next is None); 1 / 0",
    "exec('1 +')", "import helper; helper.fail()", "print(helper_missing)",
    "threading.Thread(target=lambda: print('thread')).start()",
    "print(sys.stdin.read())", "print(open('data.txt').read(), __import__('helper').NAME)",
])
def test_endings_are_the_same(tmp_path: Path, ending: str) -> None:
    text = f"""
        import atexit, os, signal, sys, threading
        print("begin", flush=True)
        def end():
            {ending}
        end()
        """
    script = files(tmp_path, script=text, helper="NAME = __name__\ndef fail():\n    raise KeyError('helper')\n")
    (tmp_path / "data.txt").write_text("relative")
    plain = check(script, "--flag", "--report", "x", cwd=tmp_path, input="typed")
    assert plain.stdout.startswith("begin")


MODULE = """
    import sys, torch
    from . import helper
    from .helper import Net
    net = Net()
    for _ in range(3):
        print(net(torch.ones(2)), end=" ")
    print(sys.argv, sys.path[0], __name__, __package__, __file__, __spec__.name, sorted(vars()))
    if __name__ == "__main__":
        {ending}
    """
HELPER = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            return x * 2
    def fail():
        raise KeyError("helper")
    """


@pytest.mark.parametrize(("ending", "fork"), [
    ("print(sys.modules['__main__'].net is net)", False), ("helper.fail()", True), ("sys.exit(3)", True),
    ("raise KeyboardInterrupt", True)])
def test_a_module_is_run_as_python_does_and_captured(tmp_path: Path, ending: str, fork: bool) -> None:
    (tmp_path / "pack").mkdir()
    files(tmp_path / "pack", main=MODULE.replace("{ending}", ending), helper=HELPER, __init__="")
    plain = check("-m", "pack.main", "--flag", "-m", before=("--report", str(tmp_path / "report.json")), cwd=tmp_path,
                  fork=fork)
    assert plain.stdout.startswith("tensor([2., 2.]) tensor")
    frame, = json.loads((tmp_path / "report.json").read_text())["frames"]
    assert (frame["name"], frame["captures"], frame["hits"]) == ("Net", 1, 2)


def test_modules_that_cannot_begin_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    files(tmp_path / "pack", __init__="1 / 0", main="print('not here')")
    files(tmp_path, wrong="def f(:")
    for name in ("pack.main", "missing", "pack", "wrong"):
        assert check("-m", name, cwd=tmp_path).returncode == 1


def test_scripts_that_cannot_begin_are_the_same(tmp_path: Path) -> None:
    wrong = files(tmp_path, wrong="def f(:\n    pass\n")
    assert check(wrong).returncode == 1
    assert check(tmp_path / "missing.py").returncode == 2
    (tmp_path / "empty").mkdir()
    assert check(tmp_path / "empty").returncode == 1


def test_folders_archives_and_devices_are_run_as_python_does(tmp_path: Path) -> None:
    text = "import sys; print(sys.argv, sys.path[0], *(globals()[name] for name in sorted(globals()) if name not in skipped))"
    text = text.replace("skipped", "('__builtins__', '__loader__', '__spec__', 'sys')")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(text)
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", text)
    for name in ("folder", "archive.pyz"):
        assert name in check(name, "--flag", cwd=tmp_path).stdout
    assert check("/dev/null").returncode == 0


def test_a_backend_that_there_is_not_is_told_and_ends_the_script(tmp_path: Path) -> None:
    told = forked("explain", "--backend", "nativ", files(tmp_path, script="import torch; print(1)"))
    assert (told.returncode, told.stdout) == (2, "") and len(told.stderr.splitlines()) == 1
    assert "unknown backend 'nativ'; did you mean 'native'?" in told.stderr


@pytest.mark.parametrize("before, script", [
    ("import torch", ""),
    ("", "import importlib.util; assert importlib.util.find_spec('torch') is not None"),       # as transformers does
    ("", "import importlib.util; [importlib.util.find_spec('torch') for _ in range(2)]; import torch.nn.functional"),
], ids=["imported before", "looked for", "looked for twice"])
def test_torch_may_have_been_imported_or_looked_for_before(tmp_path: Path, before: str, script: str) -> None:
    files(tmp_path, sitecustomize=before)
    run = files(tmp_path, script=script + """
import sys, torch
net = torch.nn.Linear(2, 2)
for _ in range(3):
    net(torch.ones(2))
print([finder.then for finder in sys.meta_path if type(finder).__name__ == "Imports"])
""")
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))}
    done = python("-m", "capture", "run", "--report", tmp_path / "report.json", run, env=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[None]\n", "")
    frame, = json.loads((tmp_path / "report.json").read_text())["frames"]
    assert (frame["name"], frame["captures"], frame["hits"]) == ("Linear", 1, 2)


def test_a_forked_child_captures_nothing(tmp_path: Path) -> None:
    run = files(tmp_path, script="""
        import os, torch, capture
        class Net(torch.nn.Module):
            def forward(self, x):
                print(capture.is_capturing(), flush=True)
                return x * 2
        net = Net()
        for i in range(3):
            net(torch.ones(1, dtype=(torch.float32, torch.float64, torch.int64)[i]))
            if i == 1 and os.fork() == 0:
                net(torch.ones(1, dtype=torch.int32))
                os._exit(0)
            if i == 1:
                os.wait()
        """)
    assert forked("run", run).stdout.split() == ["True", "True", "False", "True"]


def test_a_script_finds_its_neighbours_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = files(tmp_path, script="import helper, sys; print(helper.x, sys.path[0], sys.argv)", helper="x = 3")
    (tmp_path / "link.py").symlink_to(script)
    assert check(Path("../script.py"), "a", cwd=tmp_path / "elsewhere").stdout.startswith("3 ")
    assert check(Path("../link.py"), cwd=tmp_path / "elsewhere").returncode == 0


def test_what_the_script_sets_before_torch_is_imported_counts(tmp_path: Path) -> None:
    script = files(tmp_path, script="""
        import os, random, sys
        random.seed(0)
        assert "torch" not in sys.modules
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        print(torch.get_num_threads(), random.random(), torch.__spec__.loader.__class__, vars(torch.__spec__.loader).keys())
        """)
    assert check(script, env={"OMP_NUM_THREADS": "2"}).stdout.startswith("1 ")


def test_only_the_outermost_module_is_a_frame_and_breaks_are_told(tmp_path: Path) -> None:
    script = files(tmp_path, script="""
        import gc, torch
        class Inner(torch.nn.Module):
            def forward(self, x):
                gc.get_count()
                return x + 1
        class Outer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Inner()
            def forward(self, x):
                return self.inner(x * 2)
        def main():
            outer = Outer()
            for _ in range(3):
                outer(torch.ones(2))
        main()
        raise ValueError("the report comes all the same")
        """)
    told = forked("explain", script)
    assert told.returncode == 1 and told.stdout == ""
    error, _, report = told.stderr.partition("ValueError: the report comes all the same\n")
    assert "capture" not in error and f'File "{script}", line 18, in <module>' in error
    assert "capture: 1 frame" in report and "Outer" in report and "Inner:" not in report
    assert "[opaque-call] gc.get_count()" in report and 'gc.get_count()' in report and "remedy:" in report
    assert "torch/nn/modules" not in report


def test_modules_that_torch_compiles_or_traces_are_left_to_it(tmp_path: Path) -> None:
    script = files(tmp_path, script="""
        import torch, warnings
        warnings.simplefilter("ignore")
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        x = torch.arange(4.).view(2, 2)
        traced = torch.jit.trace(net, x)
        compiled = torch.compile(net, backend="eager")
        print(torch.equal(traced(x), torch.fx.symbolic_trace(net)(x)), torch.equal(compiled(x), traced(x)))
        """)
    report = tmp_path / "report.txt"
    done = forked("run", "--function", "__main__:never", "--report", report, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")
    told = report.read_text()
    assert "TopLevelTracedModule: 2 calls ran natively: it is of TorchScript, and left to it\n" in told
    assert "Sequential: 1 call ran natively: it is compiled by torch.compile, and left to it\n" in told
    assert "--function __main__:never: never called\n" in told


def test_a_script_of_which_nothing_is_compiled_is_told_so(tmp_path: Path) -> None:
    script = files(tmp_path, script="import torch; torch.ones(2)")
    told = forked("explain", "--report", tmp_path / "r.html", script).stderr
    assert told.startswith("capture: 0 frames") and "no module was called in this process" in told
    assert "no module was called" in (tmp_path / "r.html").read_text()


def test_each_process_of_a_launcher_writes_a_report_of_its_own(tmp_path: Path) -> None:
    script = files(tmp_path, script="import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))")
    done = python("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "capture", "run", "--backend", "eager",
                  "--report", tmp_path / "r$RANK.txt", script)
    assert done.returncode == 0, done.stderr
    assert all("Linear: captured (1 capture, " in (tmp_path / f"r{rank}.txt").read_text() for rank in range(2))


@pytest.mark.parametrize("arguments", [
    ["run"], ["walk", "x.py"], ["run", "--function", "f", "x.py"], ["run", "--function", "a:1b", "x.py"]])
def test_wrong_command_lines_are_refused(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2 and "usage: python -m capture" in capsys.readouterr().err


def test_options_after_the_script_are_the_scripts() -> None:
    options = parse(["run", "--report", "a.html", "--function", "m:C.f", "x.py", "--report", "b", "--", "-x"])
    assert (options.report, options.function, options.script, options.module) == ("a.html", ["m:C.f"], "x.py", False)
    assert options.args == ["--report", "b", "--", "-x"]
    options = parse(["explain", "-m", "a.b", "-m", "c"])
    assert (options.module, options.script, options.args) == (True, "a.b", ["-m", "c"])


def test_an_interrupted_script_dies_by_the_signal_after_its_report(tmp_path: Path) -> None:
    script = files(tmp_path, script="import torch\ntorch.nn.ReLU()(torch.ones(2))\nraise KeyboardInterrupt")
    told = forked("run", "--report", tmp_path / "r.txt", script)
    assert told.returncode == -signal.SIGINT and "ReLU: captured (1 capture, " in (tmp_path / "r.txt").read_text()


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    told = python("-m", "capture", "run", "--report", tmp_path / "no" / "r.html", files(tmp_path, script="print('done')"))
    assert (told.returncode, told.stdout) == (0, "done\n") and "the report cannot be written to" in told.stderr


def test_modules_of_one_class_that_are_built_differently_have_entries_of_their_own(tmp_path: Path) -> None:
    script = files(tmp_path, script="""
        import torch
        layers = [torch.nn.Linear(n, n + 1) for n in range(1, 13)]
        alike = [torch.nn.Linear(40, 40) for _ in range(12)]
        def main():
            for _ in range(3):
                for layer in layers + alike:
                    layer(torch.ones(2, layer.in_features))
        main()
        """)
    result = forked("run", "--report", tmp_path / "report.json", script)
    assert (result.returncode, result.stderr) == (0, "")
    frames = json.loads((tmp_path / "report.json").read_text())["frames"]
    assert len(frames) == 13 and {frame["captures"] for frame in frames} == {1}
    assert sum(frame["hits"] for frame in frames) == 3 * 24 - 13 and not any(frame["native_calls"] for frame in frames)
