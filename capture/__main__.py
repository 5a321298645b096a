"""`python -m capture run script.py`: runs a script as `python script.py` does, with its training step or its modules compiled;
with `-m` a module, as `python -m` does. `python -m capture doctor`: what is there on this machine."""
from __future__ import annotations

import argparse
import atexit
import builtins
import errno
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import random
import runpy
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from capture.backends.native import sidecar
from capture.config import BACKEND
from capture.step_loops import with_gates
from capture.training_steps import is_of_python_or_torch

EPILOG = """The function that makes a whole training step is compiled, where the script has one; else calls of modules, where no
other module's call is under way. The script sees its own sys.argv, sys.path and __main__; its output and exit status are its own.
The report is written when it ends, after exceptions too."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with status 2 where it cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m capture", epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in (("run", "run a script with its training step or its modules compiled"),
                       ("explain", "the same, and print the report on stderr at the end")):
        command = commands.add_parser(name, help=text, description=text, epilog=EPILOG, allow_abbrev=False)
        command.add_argument("--report", metavar="FILE", help="write the report to a file: .html, .json, or text; in its name "
                                                              "'$RANK' is a variable of the environment")
        command.add_argument("--function", action="append", default=[], type=function_name, metavar="MODULE:QUALNAME",
                             help="compile this function as well; the script itself is the module __main__")
        command.add_argument("--backend", help="see capture.compile; CAPTURE_BACKEND is the default")
        command.add_argument("--save", metavar="FILE", help="at the end, write all kernels to a file, as capture.save does")
        command.add_argument("--load", metavar="FILE", help="take kernels from such a file, as capture.load does")
        command.add_argument("-m", "--module", action="store_true", help="run a module of this name, as `python -m` does")
        command.add_argument("script")
        command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    text = "tell what capture finds on this machine, and what each lack costs"
    commands.add_parser("doctor", help=text, description=f"{text}. The exit status is 1 if capture cannot do its work.")
    return parser.parse_args(argv)


def function_name(text: str) -> str:
    """`module:qualified.name`, checked."""
    module, colon, name = text.partition(":")
    if not (module and colon and all(part.isidentifier() or part == "<locals>" for part in name.split("."))):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form module:qualified.name")
    return text


class Session:
    """What is compiled while the script runs, and the report at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.process = os.getpid()
        self.interceptor: Any = None
        self.interrupted = self.refused = False

    def prepare(self) -> None:
        """Called before the script runs: starts the compiling process, if it will be needed, so that it imports torch while the
        script does."""
        if not self.options.load and (self.options.backend or BACKEND.value) == "native":
            sidecar.prepare()

    def start(self) -> None:
        """Starts to intercept calls of modules, when torch has been imported: not earlier, since the script may set what torch
        reads at import."""
        state = random.getstate()           # libraries draw from the program's random numbers when they are imported
        from capture.errors import CaptureError
        from capture.interceptor import Interceptor
        if self.options.load:
            importlib.import_module("capture.api").load(file_name(self.options.load))
        random.setstate(state)
        try:
            self.interceptor = Interceptor(self.options.function, self.options.backend)
        except CaptureError as error:       # only with torch there are names of backends to look among
            self.refused = True
            print(f"python -m capture: error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        self.interceptor.start()

    @property
    def reports(self) -> bool:
        """Whether a report is written. A forked child writes none."""
        return bool(self.options.report or self.options.command == "explain") and not self.refused and os.getpid() == self.process

    def conclude(self) -> None:
        """Imports what the report needs when the script has ended: while Python shuts down, torch can no longer be imported."""
        if self.reports:
            state = random.getstate()
            importlib.import_module("capture.reports.build")
            random.setstate(state)
        if self.options.save and self.interceptor is not None and not self.interrupted and os.getpid() == self.process:
            importlib.import_module("capture.api").save(file_name(self.options.save))

    def end(self) -> None:
        """Writes the report."""
        if self.reports:
            self.report()
        if self.interrupted and os.getpid() == self.process:        # a script that is interrupted dies by the signal
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def report(self) -> None:
        from rich.console import Console

        from capture.reports.build import report_of
        interceptor = self.interceptor
        report = report_of([]) if interceptor is None else report_of(interceptor.units(), remarks=interceptor.remarks())
        console = Console(stderr=True, soft_wrap=True)
        if self.options.command == "explain":
            console.print(report)
        if self.options.report:
            name = file_name(self.options.report)
            try:
                report.write(name)
            except OSError as error:
                console.print(f"capture: the report cannot be written to {name!r}: {error.strerror}; "
                              f"name another file with --report", markup=False)


def file_name(text: str) -> str:
    """The name of a file, in which `$RANK` is a variable of the environment."""
    return os.path.expandvars(text)


class Imports:
    """An import hook. It calls `then` when torch has been imported, not if code only asks whether torch is installed. Modules of
    the program get gates in their loops."""

    def __init__(self, then: Callable[[], None] | None) -> None:
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec that others find, with a loader that does so."""
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = None if spec is None else spec.loader
        if name == "torch" and self.then is not None and loader is not None:
            load = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                del loader.exec_module
                load(module)
                then, self.then = self.then, None
                if then is not None:
                    then()
            loader.exec_module = exec_module
        elif type(loader) is importlib.machinery.SourceFileLoader and not is_of_python_or_torch(loader.path):
            give_gates(loader, name)
        return spec


def give_gates(loader: Any, name: str) -> None:
    """Has a loader give the code of a module with gates, if there are any. What it raises, it raises when the module is loaded."""
    try:
        code = loader.get_code(name)
    except Exception:
        return
    gated = with_gates(code)
    if gated is not code:
        loader.get_code = {name: gated}.__getitem__


def run_script(script: str, arguments: list[str], session: Session) -> None:
    """Executes a script as `__main__`; of a folder or an archive, the `__main__` in it."""
    path = os.path.abspath(script)
    if pkgutil.get_importer(path) is not None:
        sys.argv[:] = [script, *arguments]
        sys.path[:not sys.flags.safe_path] = [path]
        run(main_module(), lambda: runpy._run_module_as_main("__main__", alter_argv=False), session)  # type: ignore[attr-defined]
        return
    module = main_module(__file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    sys.argv[:] = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))

    def execute() -> None:
        with io.open_code(path) as file:
            source = file.read()
        exec(with_gates(compile(source, path, "exec", dont_inherit=True)), module.__dict__)
    run(module, execute, session)


def run_module(name: str, arguments: list[str], session: Session) -> None:
    """Executes a module as `__main__`, which is found from the working folder: `sys.path` is as `python -m` makes it."""
    sys.argv[:] = ["-m", *arguments]        # until the module is found
    run(main_module(), lambda: runpy._run_module_as_main(name), session)  # type: ignore[attr-defined]


def main_module(**attributes: Any) -> types.ModuleType:
    """A module object as Python makes it for `__main__`."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={}, **attributes)
    return module


def run(module: types.ModuleType, execute: Callable[[], None], session: Session) -> None:
    """Calls `execute` with `module` as `__main__`. Tracebacks of its exceptions do not show our frames."""
    session.prepare()
    sys.modules["__main__"] = module
    imported = "torch" in sys.modules       # by a `sitecustomize`
    sys.meta_path.insert(0, Imports(None if imported else session.start))
    if imported:
        session.start()
    try:
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        session.interrupted = isinstance(error, KeyboardInterrupt)
        show()
        raise
    finally:
        session.conclude()


def show() -> None:
    """Has Python print the exception that is about to end the process without our frames and those outside of them."""
    hook = sys.excepthook

    def excepthook(cls: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
        for own in (False, True):
            while traceback is not None and (traceback.tb_frame.f_globals is globals()) is own:
                traceback = traceback.tb_next
        hook(cls, error.with_traceback(traceback), traceback)
    sys.excepthook = excepthook


def main() -> None:
    """Runs the command line."""
    options = parse()
    if options.command == "doctor":
        sys.exit(importlib.import_module("capture.doctor").report())
    if not options.module and not os.path.exists(options.script):
        missing(options.script)
    session = Session(options)
    atexit.register(session.end)        # before the script registers anything: it comes last
    (run_module if options.module else run_script)(options.script, options.args, session)


def missing(script: str) -> NoReturn:
    """The error message of Python for a script that does not exist."""
    print(f"{sys.executable}: can't open file {os.path.abspath(script)!r}: [Errno {errno.ENOENT}] {os.strerror(errno.ENOENT)}",
          file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
