"""Kernels of tests are compiled once in a run: programs of many tests have the same kernels, or are run again with an empty cache.

A script stands before each C++ compiler on PATH. It keeps what the compiler has made, by all that this depends on: the command, the
texts or objects that it names, and the headers of kernels. These are compiled beforehand, by the flags of the first kernel: the
compiler itself leaves that alone where other flags are asked for. What is not the compile of a kernel is the compiler's own, and so
is all that fails. Tests of compilers that are missing, slow or wrong name one of their own in CXX.

Kernels for a GPU that the processor runs in its place are compiled with `-O1`, in half of the time: they are not to be fast there.
"""
from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from capture.backends.native.toolchain import INCLUDE, NAMES

SCRIPT = """#!/bin/sh
compiler=%s headers=%s kept=%s compiled=%s texts= made= last= flags= common= less= first=
for word; do
    case $last in -o) made=$word;; esac
    case $word in kernels_*.cpp | kernels_*.o) [ "$last" = -o ] || texts="$texts $word";; esac
    case $word in kernels_*.cpp) read -r first < "$word"; [ "$first" != '#include "cuda_on_cpu.h"' ] || less=-O1;; esac
    case $word in -I$headers) common=$flags;; esac
    last=$word flags="$flags $word"
done
case "$made $* " in kernels*" -I$headers "*) ;; *) exec "$compiler" "$@";; esac
key=$({ printf '%%s\\n' "$@"; cat $texts "$headers"/*; } | sha256sum) || exec "$compiler" "$@"
key=$kept/${key%%%% *}
[ -e "$key" ] && cp "$key" "$made" && exit
header=$compiled/capture_kernel.h
if mkdir "$compiled" 2>/dev/null; then
    cp "$headers"/* "$compiled"
    "$compiler" $common -w -x c++-header "$header" -o "$compiled/$$" && mv "$compiled/$$" "$header.gch"
fi
[ -e "$header.gch" ] && for word; do
    shift
    [ "$word" != "-I$headers" ] || word=-I$compiled
    set -- "$@" "$word"
done
"$compiler" "$@" $less || exit
cp "$made" "$key.$$" && mv "$key.$$" "$key"
"""


WITHOUT = os.environ["PATH"]        # on which there are none of these scripts


def install(folder: str) -> None:
    """Has this process, and all below it, find the scripts, which lie in `folder`, as does what they keep."""
    scripts, kept = Path(folder, "compilers"), Path(folder, "kept")
    for place in scripts, kept:
        place.mkdir(parents=True)
    for name in NAMES:
        if compiler := shutil.which(name):
            script = scripts / name
            places = compiler, str(INCLUDE), str(kept), str(kept / f"headers of {name}")
            script.write_text(SCRIPT % tuple(map(shlex.quote, places)))
            script.chmod(0o700)
    os.environ["PATH"] = f"{scripts}{os.pathsep}{WITHOUT}"
