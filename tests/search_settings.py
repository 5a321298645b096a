"""Settings of the searches by machine, which import this before capture, since capture reads them when it is imported."""
from __future__ import annotations

import os

for name, value in {"CAPTURE_STRICT": "1", "CAPTURE_TRIAL_CALLS": "0", "CAPTURE_CAPTURING_SHARE": "100",
                    "CAPTURE_COMPILE_AFTER": "0", "OMP_NUM_THREADS": "1"}.items():
    os.environ.setdefault(name, value)
