"""Which calls that no entry fits are captured: if the last captures of their kind were never hit, only calls that come again.

A capture costs many times what the call costs natively, and pays only if it is hit. The first two captures of a kind of call
(`_C.call_kind`) are made at once: a program's first call is often unlike all others. So is a capture that expects less than the
others, because something was seen to change (a size, a number, a length), once calls of its kind are looked at again. Any other
call is captured when it comes for the second time; with each further capture that is not hit, for the fourth time, the eighth … A
hit of the latest capture ends this.

And no capture is made while those of a function have taken too large a share of the time (`Spending`): a program whose structure
varies, each variant of which is worth a capture, would stand still for minutes else.
"""
from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable

from capture.config import CAPTURING_SHARE
from capture.guards.explain import Mismatch

# What later captures do without, once it was seen to change (`Numbers`, `Shapes`): guards of these kinds.
LEARNED = frozenset(("VALUE", "LENGTH", "KEYS", "CONTENT"))
MOST_UNHIT = 2          # captures without a hit after which calls have to come again
MOST_KEPT = 64          # calls that are remembered
PATIENCE = 8            # calls of a kind that are looked at, one after the other, before some are not
LONGEST_PAUSE = 1000    # calls that are not
FREE_SECONDS = 2.0      # that captures may take, whatever the time

Sighting = tuple[int, tuple[tuple[str, str], ...]]      # the kind of call, and why each entry did not fit


class Spending:
    """The time that captures of a function, and of its continuations, have taken."""

    __slots__ = ("seconds", "_first")

    def __init__(self) -> None:
        self.seconds, self._first = 0.0, math.inf

    def add(self, start: float, end: float) -> None:
        """Notes a capture."""
        self._first = min(self._first, start)
        self.seconds += end - start

    def is_too_large(self, now: float) -> bool:
        """Whether a further capture has to wait."""
        share = CAPTURING_SHARE.value / 100
        return share < 1 and self.seconds > FREE_SECONDS and self.seconds > share * (now - self._first)


class Admission:
    """The calls of one compiled function that were not captured yet. Plain data: it keeps no object of the program alive."""

    __slots__ = ("_again", "_hit", "_unhit", "_seen", "_waited")

    def __init__(self) -> None:
        self._again = False
        self._hit: defaultdict[int, float] = defaultdict(lambda: -math.inf)     # by kind: the latest that was, and is gone
        self._unhit: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_KEPT))      # those that were not
        self._seen: OrderedDict[Sighting, int] = OrderedDict()      # how often each call came, the latest ones last
        self._waited: Counter[int] = Counter()      # calls that ran natively since the last capture, by kind

    def try_again(self) -> None:
        """Notes that a capture has left no entry, but found where the next one is to end."""
        self._again = True

    def lost(self, kind: int, start: float, hit: bool) -> None:
        """An entry for calls of this kind is gone. start: of its capture. hit: it served a call."""
        if hit:
            self._hit[kind] = max(self._hit[kind], start)
        else:
            self._unhit[kind].append(start)

    def admits(self, kind: int, captures: Iterable[tuple[float, bool]], mismatches: Iterable[Mismatch]) -> bool:
        """Whether a call that no entry fits is to be captured. captures: when each entry for calls of its kind was made, and
        whether it was ever hit. mismatches: why they do not fit."""
        captures = [*captures, (self._hit[kind], True), *((start, False) for start in self._unhit[kind])]
        last = max(start for start, hit in captures if hit)
        unhit = sum(start > last for start, _ in captures)
        again, self._again = self._again, False
        if unhit >= MOST_UNHIT and not again:
            sighting = kind, tuple((mismatch.subject, mismatch.found) for mismatch in mismatches)
            self._seen[sighting] = self._seen.pop(sighting, 0) + 1
            if self._seen[sighting] < 2 ** (unhit - MOST_UNHIT + 1):
                if len(self._seen) > MOST_KEPT:
                    self._seen.popitem(last=False)
                return False
            del self._seen[sighting]
        del self._waited[kind]
        return True

    def pause(self, kind: int) -> int:
        """How many calls of this kind are to run natively before one is looked at again: at first none, then as many as have run
        natively so far. So calls that never come again cost nothing in the long run."""
        self._waited[kind] += 1
        waited = self._waited[kind]
        pause = min(waited, LONGEST_PAUSE) if waited >= PATIENCE else 0
        self._waited[kind] += pause
        return pause

    def clear(self) -> None:
        """Forgets everything."""
        self._again = False
        self._hit.clear()
        self._unhit.clear()
        self._seen.clear()
        self._waited.clear()
