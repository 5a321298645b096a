"""The table of situations: what the program does, how it is started, and which C++ compiler it has."""
from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from capture.backends.native.toolchain import NAMES

GPP = next((path for path in map(shutil.which, NAMES) if path), "g++")


@dataclass(frozen=True)
class Situation:
    """One program. Its code runs before torch is imported (`first`), before the first call (`before`), between calls and the wait
    for the compiler (`during`), after that (`after`)."""

    name: str
    first: str = ""
    before: str = ""
    during: str = ""
    after: str = ""
    flags: tuple[str, ...] = ()                     # of Python
    environment: tuple[tuple[str, str], ...] = ()
    prepare: str = ""                               # shell commands in the process that becomes the program; $HERE is its folder
    limit: str = ""                                 # … and a program that runs it
    how: str = "script"                             # or "-c", "stdin", "zip"
    cxx: str = ""                                   # the text of a compiler, a shell script
    compiles: bool | None = True                    # whether graphs are compiled in the end; None: either
    warns: bool | None = None                       # whether there is the one warning; None: if and only if it does not compile
    ends: bool = True                               # False: it ends while a graph is being compiled, and waits for none
    files: tuple[str, ...] = ()                     # that are there afterwards, with capture and without


NOTICE = "seen = []; signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))"
SLEEP_FOREVER = "sleep 1000 & sleep 1000"
ANSWERS = 'if [ "$1" = -v ]; then echo "fake version 1"; exit 0; fi\n'
LATER = 'case "$*" in *kernels_*) if [ -e "$HERE/probed" ]; then %s; fi; touch "$HERE/probed";; esac\n' + f'exec {GPP} "$@"'

RUNNING = """
from capture.backends.native import sidecar
def compiling():
    while not sidecar.processes(): time.sleep(0.01)
    return sidecar.processes()[0]
"""
HANGING = """
if CAPTURED:
    while not os.path.exists(os.path.join(HERE, "hanging")): time.sleep(0.01)
"""


def _faults() -> Iterator[Situation]:
    yield Situation("all descriptors are closed, and files opened", before="""
        if CAPTURED: compiling()
        os.closerange(3, 4096)
        files = [open(os.path.join(HERE, f"user{number}"), "w+") for number in range(30)]
        """, after="print([os.fstat(file.fileno()).st_size for file in files])", files=tuple(f"user{n}" for n in range(30)))
    yield Situation("all descriptors are closed again and again", before="""
        def closing():
            while not over.is_set(): os.closerange(3, 64); time.sleep(0.01)
        over = threading.Event()
        torch.ones(3).sum()
        """, during="thread = threading.Thread(target=closing); thread.start()", after="over.set(); thread.join()", compiles=None)
    yield Situation("SIGPIPE ends the program, and the compiling process has died", before="""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if CAPTURED: os.kill(compiling(), signal.SIGKILL)
        """)
    yield Situation("it waits for all children", first=NOTICE, during="""
        def wait_for_all():
            try:
                while True: print(os.wait())
            except ChildProcessError as error: print(error)
        wait_for_all()
        """, after="""
        if CAPTURED: os.kill(compiling(), signal.SIGKILL)
        time.sleep(0.2); wait_for_all()
        print(seen, multiprocessing.active_children())
        """)
    yield Situation("it waits for all children, and adopts orphans", first=NOTICE + """
import ctypes; print(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0))""", during="""
        try: print(os.wait())
        except ChildProcessError as error: print(error)
        """, after="print(seen)")
    yield Situation("its children are ignored", first="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    yield Situation("all signals are blocked", first="signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())")
    for name, closed in {"output": ">&-", "errors": "2>&-", "input": "<&-", "no stream": "<&- >&- 2>&-"}.items():
        yield Situation(f"closed: {name}", prepare=f"exec {closed}", warns=False)
    yield Situation("streams that know nothing", first="""
        class Stream:
            def write(self, text): return len(text)
            def flush(self): pass
        sys.stdout = sys.stderr = Stream()
        """, after="sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__")
    for flag in ("-I", "-E", "-s", "-O", "-OO", "-B", "-P", "-u", "-X dev", "-X utf8=0", "-W error", "-bb", "-v"):
        yield Situation(f"python {flag}", flags=tuple(flag.split()))
    yield Situation("python -S", flags=("-S",))
    for flag in ("-I", "-E"):
        yield Situation(f"python {flag}, and a sitecustomize", flags=(flag,), prepare="""
            mkdir "$HERE/own"; export PYTHONPATH="$HERE/own"
            echo 'import os; open(os.environ["HERE"] + "/ran", "w")' > "$HERE/own/sitecustomize.py" """, files=("own",))
    hang = f'touch "$HERE/hanging"; {SLEEP_FOREVER}'
    for where, code in {"at once": "", "while the compiler hangs": HANGING}.items():
        code, cxx = code + "capture.wait = lambda: True\n", LATER % hang if code else ""
        for end, text in {"a normal end": "", "os._exit": "flush(); os._exit(3)", "SIGTERM": "flush(); os.kill(os.getpid(), 15)",
                          "SIGKILL": "flush(); os.kill(os.getpid(), 9)", "abort": "flush(); os.abort()",
                          "sys.exit": "sys.exit(4)", "an exception": "raise ValueError('its own')",
                          "exec": "flush(); os.execv('/bin/echo', ['echo', 'executed'])"}.items():
            yield Situation(f"{end}, {where}", during=code + text, cxx=cxx, ends=False, compiles=None, warns=False)
        yield Situation(f"a daemon thread goes on at the end, {where}", before="""
            def forever():
                while True: f(x, w)
            """, during=code + "threading.Thread(target=forever, daemon=True).start()", cxx=cxx,
            ends=False, compiles=None, warns=False)
    yield Situation("the compiling process is killed while the compiler hangs", cxx=LATER % hang,
                    during=HANGING + "if CAPTURED: os.kill(compiling(), 9)", after="", compiles=False,
                    environment=(("CAPTURE_COMPILE_TIMEOUT", "3"),))
    yield Situation("the keeper is killed while the compiler hangs", cxx=LATER % hang,
                    during=HANGING + "if CAPTURED: os.kill(sidecar._pool.processes[0]._process.keeper, 9)", compiles=False,
                    environment=(("CAPTURE_COMPILE_TIMEOUT", "3"),))
    yield Situation("all descriptors are replaced", before="""
        if CAPTURED: compiling()
        own = os.open(os.path.join(HERE, "own"), os.O_RDWR | os.O_CREAT)
        for number in range(3, 64): os.dup2(own, number)
        """, after="print(os.fstat(own).st_size)", files=("own",))
    yield Situation("it is stopped for a while", during="""
        import subprocess
        other = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        print(other.wait())
        """)
    yield Situation("a signal comes all the time", before="""
        signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        """, after="signal.setitimer(signal.ITIMER_REAL, 0)")
    yield Situation("a handler raises while it waits", before="""
        class Stop(Exception): pass
        def stop(*_): raise Stop
        signal.signal(signal.SIGTERM, stop)
        """, during="""
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try: capture.wait(); time.sleep(1)
        except Stop: print("stopped")
        """)
    yield Situation("nobody reads its output", limit="sh -c '\"$@\" | head -c 5' sh", compiles=None, warns=False)
    yield Situation("the keeper and the compiling process are stopped", ends=False, compiles=None, warns=False, during="""
        if CAPTURED: id = compiling(); os.kill(sidecar._pool.processes[0]._process.keeper, 19); os.kill(id, 19)
        capture.wait = lambda: True""")


def _machine() -> Iterator[Situation]:
    for name, limit in {"address space": "-v 8000000", "little address space": "-v 1200000", "files": "-n 40", "few files": "-n 12",
                        "file size": "-f 8", "no file": "-f 0", "core": "-c 0", "stack": "-s 1024", "memory lock": "-l 0"}.items():
        yield Situation(f"limit: {name}", prepare=f"ulimit {limit}", compiles=None)
    yield Situation("limit: memory, set late", before="""
        import resource
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2)
        """, compiles=None)
    yield Situation("limit: any stack", prepare="ulimit -s unlimited")
    yield Situation("one processor", first="os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")
    yield Situation("the first process of a system", limit="unshare -rpf --kill-child")
    yield Situation("allocators that look for faults", environment=(("PYTHONMALLOC", "debug"), ("MALLOC_PERTURB_", "85")))
    yield Situation("limits that are set late", before="""
        import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))""", compiles=None)
    yield Situation("no more threads and processes", before="""
        import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))""", compiles=None)
    yield Situation("no home", environment=(("HOME", "/dev/null/home"), ("CAPTURE_CACHE_DIR", "")), warns=True)
    yield Situation("a home that cannot be written to", environment=(("HOME", "/proc/1"), ("CAPTURE_CACHE_DIR", "")), warns=True)
    yield Situation("no folder for temporary files", environment=(("TMPDIR", "/nonexistent"),))
    yield Situation("no folder at all for temporary files", environment=(("TMPDIR", "/nonexistent"),), compiles=None, limit="""
        unshare -rm sh -c 'mount -t tmpfs -o ro none /var/tmp; mount --bind "$HERE" "$HERE"; mount --rbind /tmp /tmp
        mount -o remount,bind,ro /tmp; exec "$@"' sh""")
    yield Situation("a cache that others can write to", prepare='chmod 777 "$HERE/cache"', warns=True)
    yield Situation("a cache that is a file", prepare='rmdir "$HERE/cache"; echo > "$HERE/cache"', warns=True)
    yield Situation("a cache that is a link", files=("linked",), prepare="""
        rmdir "$HERE/cache"; mkdir -m 700 "$HERE/linked"; ln -s "$HERE/linked" "$HERE/cache" """)
    yield Situation("a relative folder for temporary files", prepare='mkdir "$HERE/relative"; cd "$HERE"',
                    environment=(("TMPDIR", "relative"),), files=("relative",))
    yield Situation("a folder that is long and has any letters", prepare="""
        long="$HERE/ünïcödé 'quoted' \\"twice\\" $(printf 'x%.0s' $(seq 150))"
        mkdir -p "$long/tmp" "$long/cache"; chmod 700 "$long/cache"
        export TMPDIR="$long/tmp" CAPTURE_CACHE_DIR="$long/cache"; cd "$long" """, files=("ünïcödé*",))
    yield Situation("ASCII only", environment=(("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")))
    yield Situation("undecodable environment", environment=(("ODD", "\udcff\udcfe"),))
    yield Situation("no environment", prepare="unset PATH HOME LANG SHELL USER LOGNAME PWD", compiles=None)
    yield Situation("the environment is cleared", before="os.environ.clear()", compiles=None)
    yield Situation("Python's variables", environment=(
        ("PYTHONSTARTUP", "/nonexistent"), ("PYTHONINSPECT", ""), ("PYTHONDEVMODE", "1"), ("PYTHONWARNINGS", "error"),
        ("PYTHONHASHSEED", "7"), ("PYTHONUNBUFFERED", "1")))
    yield Situation("it goes elsewhere", before="os.chdir('/')")
    yield Situation("it goes elsewhere, with relative paths", prepare='cd "$HERE"', flags=(), before="os.chdir('/')",
                    environment=(("CAPTURE_CACHE_DIR", "cache"),))
    yield Situation("its folder is deleted", prepare='mkdir "$HERE/gone"; cd "$HERE/gone"', before="os.rmdir(os.getcwd())")
    yield Situation("its folder was deleted", prepare='mkdir "$HERE/gone"; cd "$HERE/gone"; rmdir "$HERE/gone"')
    for mask in ("000", "777", "077"):
        yield Situation(f"umask {mask}", first=f"os.umask(0o{mask})", compiles=None)
    yield Situation("modules of its own by our modules' names", prepare="""
        mkdir "$HERE/own"; cd "$HERE/own"; for name in numbers queue job messages plan keeper; do
        echo 'raise SystemExit("not to be imported")' > $name.py; done""", how="-c", flags=("-P",), files=("own",))
    yield Situation("an entry of another version", prepare="""
        for n in 1 2 3; do head -c 4000 /dev/urandom > "$HERE/cache/$(printf "%064d" $n).capture"; done""")
    yield Situation("eight at once on an empty cache", prepare="""
        for n in 1 2 3 4 5 6 7; do OTHER=1 $PYTHON "$PROGRAM" > "$HERE/home/other$n" 2>&1 & done""", after="""
        if "OTHER" not in os.environ:
            for _ in range(7): print(os.waitstatus_to_exitcode(os.wait()[1]))
            print([open(os.path.join(HERE, "home", f"other{n + 1}")).read() for n in range(7)])
        """)
    for how in ("-c", "stdin", "zip"):
        yield Situation(f"run from: {how}", how=how)
    yield Situation("a session of its own", limit="setsid -w")
    yield Situation("no terminal signal", limit="nohup")
    yield Situation("a low priority", limit="nice -n 19")


def _children() -> Iterator[Situation]:
    for method in ("fork", "spawn", "forkserver"):
        yield Situation(f"processes by {method}", first="from multiprocessing import get_context", before=f"""
            def work(number): return f(x * number, w)[0].tolist()
            if __name__ == "__main__":
                with get_context("{method}").Pool(2) as pool: print(pool.map(abs, range(4)))
            """, how="script")
    yield Situation("workers of a loader", during="""
        class Items(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, number): return f(x * number, w)[0]
        for batch in torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=2): print(batch.sum().item())
        """)
    yield Situation("a fork at its end", before="""
        def fork():
            if os.fork() == 0: print(f(x, w)[0].tolist()); flush(); os._exit(0)
            print(os.wait()[1])
        __import__("atexit").register(fork)
        """)
    yield Situation("an event loop with threads and a child", during="""
        import asyncio
        async def main():
            child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
            results = await asyncio.gather(*(asyncio.to_thread(f, x * number, w) for number in range(4)))
            print(await child.wait(), [result[0].tolist() for result in results])
        asyncio.run(main())
        """)
    yield Situation("a fork that goes on alone", during="""
        child = os.fork()
        if not child:
            print(f(x, w)[0].tolist()); flush(); os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)
    yield Situation("forks in threads", during="""
        def forking():
            child = os.fork()
            if not child: f(x, w); os._exit(0)
            codes.append(os.waitpid(child, 0)[1])
        codes = []
        threads = [threading.Thread(target=forking) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(codes)
        """)
    yield Situation("a child of C outlives the program", during="""
        import ctypes
        if ctypes.CDLL(None).fork() == 0: time.sleep(1); os._exit(0)
        """, ends=False, compiles=None, warns=False)
    yield Situation("a daemon, started twice over", first="""
        if os.fork(): _, status = os.wait(); flush(); os._exit(status >> 8)
        os.setsid()
        """)
    yield Situation("a daemon after the first calls", during="""
        child = os.fork()
        if child: _, status = os.waitpid(child, 0); flush(); os._exit(status >> 8)
        os.setsid(); os.closerange(3, 256)
        """, compiles=None, warns=False)      # what the parent compiled meanwhile runs uncompiled here
    yield Situation("interrupted while it waits", before="signal.signal(signal.SIGINT, signal.default_int_handler)", during="""
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            capture.wait()
            time.sleep(1)
        except KeyboardInterrupt: print("interrupted")
        """)
    yield Situation("the group is interrupted", during="""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT); os.killpg(0, signal.SIGINT)
        """, limit="setsid -w")


def _compilers() -> Iterator[Situation]:
    bad = {"garbage": "head -c 3000 /dev/urandom; exit 0", "is killed": "kill -9 $$", "crashes": "kill -11 $$", "fails": "exit 1",
           "prints no text": "printf '\\377\\376error: \\200'; exit 1", "hangs": SLEEP_FOREVER, "has no output": "exit 0",
           "writes garbage": 'for word; do case $last in -o) head -c 9000 /dev/urandom > $word;; esac; last=$word; done; exit 0',
           "writes nothing": 'for word; do case $last in -o) : > $word;; esac; last=$word; done; exit 0',
           "writes a folder": 'for word; do case $last in -o) mkdir $word;; esac; last=$word; done; exit 0',
           "floods": "yes error: | head -c 30000000; exit 1", "leaves a child": "sleep 1000 > /dev/null 2>&1 & exit 1"}
    for stage, frame in {"asked who it is": 'if [ "$1" = -v ]; then %s; fi\n' + f'exec {GPP} "$@"',
                         "probed": ANSWERS + "%s", "with kernels": LATER}.items():
        for name, text in bad.items():
            yield Situation(f"the compiler {name}, {stage}", cxx=frame % text, compiles=None if name == "leaves a child" else False,
                            environment=(("CAPTURE_COMPILE_TIMEOUT", "2"),))
    yield Situation("no compiler", environment=(("CXX", "/nonexistent"),), compiles=False)


def table() -> dict[str, Situation]:
    """All situations by name."""
    found = [*_faults(), *_machine(), *_children(), *_compilers()]
    by_name = {item.name: item for item in found}
    assert len(by_name) == len(found)
    return {name: item if item.warns is not None else dataclasses.replace(item, warns=None) for name, item in by_name.items()}
