"""Kernels of tests are compiled once in a run: programs of many tests have the same kernels, or are run again with an empty cache.

A script stands before each C++ compiler on PATH. It keeps what the compiler has made of a text of kernels, by the command and the
text; their headers stay the same while tests run. These are compiled beforehand, by the flags of the first kernel: the compiler
itself leaves that alone where other flags are asked for. What is not the compile of a text of kernels is the compiler's own, and so
is all that fails. Tests of compilers that are missing, slow or wrong name one of their own in CXX. The script starts few processes
of its own: it runs thousands of times.

The C library is not linked: to look through it takes the linker a sixth of the time of a small kernel. Every process has it, and
what is missing there is found when the kernel is loaded.

Kernels for a GPU that the processor runs in its place are compiled with `-O1`, in half of the time: they are not to be fast there.
"""
from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from capture.backends.native.toolchain import INCLUDE, NAMES

SCRIPT = """#!/bin/sh
compiler=%s headers=%s kept=%s compiled=%s text= made= last= flags= common= less= first= key=
for word; do
    case $last in -o) made=$word;; esac
    case $word in kernels_*.cpp) text=$word; read -r first < "$word"; [ "$first" != '#include "cuda_on_cpu.h"' ] || less=-O1;; esac
    case $word in -I$headers) common=$flags;; esac
    last=$word flags="$flags $word"
done
case "$text $made $* " in kernels*" kernels"*" -I$headers "*) ;; *) exec "$compiler" "$@";; esac
sums=$(sha256sum - "$text" <<END
$*
END
) || exec "$compiler" "$@"
for word in $sums; do
    case $word in - | kernels*) ;; *) key=$key$word;; esac
done
key=$kept/$key
[ -e "$key" ] && { ln -f "$key" "$made" 2>/dev/null || cp "$key" "$made"; } && exit
header=$compiled/capture_kernel.h
if [ ! -d "$compiled" ] && mkdir "$compiled" 2>/dev/null; then
    cp "$headers"/* "$compiled"
    "$compiler" $common -w -x c++-header "$header" -o "$compiled/$$" && mv "$compiled/$$" "$header.gch"
fi
[ -e "$header.gch" ] && for word; do
    shift
    case $word in
    -I$headers) set -- "$@" "-I$compiled";;
    -lm | -lc | -Wl,-z,defs) ;;
    *) set -- "$@" "$word";;
    esac
done
"$compiler" "$@" $less || exit
ln "$made" "$key" 2>/dev/null || { cp "$made" "$key.$$" && mv "$key.$$" "$key"; }
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
