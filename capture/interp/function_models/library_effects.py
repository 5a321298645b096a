"""Functions of the standard library and of others whose calls every hit repeats: clocks, random numbers, files."""
from __future__ import annotations

import csv
import datetime
import io
import json
import os
import pathlib
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.registry import FAMILIES, NAMED_EFFECTS, PURE, SIDE_EFFECTS, hashable
from capture.interp.core.special import in_python
from capture.interp.function_models import effect_callbacks
from capture.interp.function_models.effects import effect, methods
from capture.interp.function_models.random_streams import OWN_STREAM
from capture.refgraph.identical import LISTS

# -- clocks ------------------------------------------------------------------------------------------------------------

effect(time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time, returns=float, clock=True)
effect(time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns, time.thread_time_ns, returns=int, clock=True)
effect(time.sleep, returns=type(None), waits=True)
effect(time.strftime, time.ctime, time.asctime, returns=str)
effect(time.localtime, time.gmtime, datetime.datetime.now, datetime.datetime.utcnow, datetime.date.today, fresh=True)
PURE.update(methods(datetime.datetime, "strftime", "isoformat", "timestamp", "__str__", "__format__"))

# -- random numbers ----------------------------------------------------------------------------------------------------

effect(*methods(random.Random, "random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate",
                "vonmisesvariate", "gammavariate", "betavariate", "paretovariate", "weibullvariate"), returns=float, owner=True,
       draws=True)
effect(*methods(random.Random, "randint", "randrange", "getrandbits"), returns=int, owner=True, draws=True)
effect(*methods(random.Random, "choice", "seed", "randbytes"), owner=True, draws=True)
effect(*methods(random.Random, "sample", "choices"), fresh=True, owner=True, draws=True)
effect(os.urandom, secrets.token_bytes, returns=bytes)
effect(secrets.token_hex, secrets.token_urlsafe, returns=str)
effect(secrets.randbelow, secrets.randbits, returns=int)
effect(secrets.choice)
effect(uuid.uuid1, uuid.uuid4, fresh=True)


def numpy_draws() -> Iterable[Any]:
    """The functions of numpy that draw from a stream and change nothing else."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ()
    names = ("rand randn randint random random_sample random_integers uniform normal standard_normal permutation permuted integers "
             "beta binomial exponential gamma laplace poisson multinomial bytes seed choice triangular lognormal chisquare "
             "dirichlet logistic multivariate_normal geometric rayleigh standard_exponential standard_gamma weibull "
             "vonmises").split()
    return {*(function for cls in (numpy.random.RandomState, numpy.random.Generator) for name in names
            if hashable(function := getattr(cls, name, None)) and function is not None)}


def makers() -> Iterable[Any]:
    """What makes streams that a seed tells all of."""
    numpy = sys.modules.get("numpy")
    return random.Random, *((numpy.random.RandomState, numpy.random.default_rng) if numpy is not None else ())


effect(*numpy_draws(), fresh=True, owner=True, draws=True)
effect(*makers(), fresh=True, makes=True)
effect(*OWN_STREAM, returns=type(None), draws=True)

# -- files -------------------------------------------------------------------------------------------------------------

STREAMS = (io.TextIOWrapper, io.StringIO, io.BytesIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
STREAM_METHODS = ("read readline readlines readall read1 write writelines seek tell truncate flush close getvalue fileno isatty "
                  "readable writable seekable __enter__ __exit__").split()
effect(open, fresh=True, fails=True)
effect(*{method for cls in STREAMS for name in STREAM_METHODS if hasattr(cls, name) for method in methods(cls, name)},
       owner=True, fails=True)
effect(io.StringIO, io.BytesIO, fresh=True)
effect(*methods(pathlib.Path, "read_text", "write_text", "read_bytes", "write_bytes", "touch", "unlink"), fails=True)
effect(json.dump, applies=lambda *args, cls=None, default=None, **kwargs: len(args) == 2 and cls is None is default)
# What writes rows: to a stream of C, since what one in Python does to the program's objects would not be seen.
effect(csv.writer, fresh=True, owner=True, applies=lambda csvfile, *args, **kwargs: is_a(csvfile, STREAMS) and not (
    in_python(csvfile, "write")))
effect(type(csv.writer(io.StringIO())).writerow, returns=int, owner=True, fails=True,
       applies=lambda writer, row: type(row) in LISTS)
effect(*methods(pathlib.Path, "exists", "is_file", "is_dir", "is_symlink"), os.path.exists, os.path.lexists, os.path.isfile,
       os.path.isdir, os.path.islink, returns=bool, owner=True)
effect(os.path.getsize, returns=int, owner=True)
effect(os.path.getmtime, os.path.getctime, os.path.getatime, returns=float, owner=True)
effect(os.putenv, os.unsetenv, returns=type(None), owner=True)
effect(os.mkdir, os.makedirs, os.remove, os.unlink, os.rmdir, os.rename, os.replace,
       *methods(pathlib.Path, "mkdir", "rmdir"), returns=type(None), owner=True, fails=True)
SIDE_EFFECTS.update({torch.save, torch.load})       # which run code of all kinds: as a whole, between two traces
PURE.add(os.fspath)
effect(os.getppid, returns=int)
effect(os.getcwd, returns=str)
effect(os.listdir, fresh=True, owner=True, fails=True)


# -- libraries that may be installed -----------------------------------------------------------------------------------

def effects_by_name(module: str, cls: str, names: str) -> None:
    """Registers methods of a library by their names, for when the program calls them."""
    for name in names.split():
        NAMED_EFFECTS[module, f"{cls}.{name}"] = lambda function: effect(function, owner=True, changes=True)


for _module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
    effects_by_name(_module, "SummaryWriter", "add_scalar add_scalars add_histogram add_text add_image add_images add_figure "
                                              "add_hparams flush close")
effects_by_name("wandb.sdk.wandb_run", "Run", "log")


def of_stream(function: types.FunctionType) -> Callable[[Any], None] | None:
    """What registers a method by which an installed package's stream is written to."""
    if function.__name__ not in WRITING or effect_callbacks.is_own_code(function):
        return None
    owner: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, name, None)
    is_stream = is_a(owner, type) and issubclass(owner, io.IOBase)
    return (lambda method: effect(method, owner=True, changes=True, fails=True, applies=to_stream)) if is_stream else None


def to_stream(stream: Any, *args: Any) -> bool:
    return not effect_callbacks.is_own_stream(stream)


WRITING = frozenset({"write", "writelines", "flush"})
FAMILIES.append(of_stream)
