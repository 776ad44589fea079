"""
Memory of the host that steps allocate, kept from one step to the next.

A step frees nearly all its memory, and the next step allocates the same amount again. glibc returns freed memory to
the system, large tensors at once, and the system provides it again page by page, cleared. If page faults are slow, as
in virtual machines, they dominate the time of an elementwise op (4 MiB: 6.3 ms, and 0.4 ms with kept memory).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""The numbers of `M_TRIM_THRESHOLD` and `M_MMAP_MAX` in glibc's malloc.h."""


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees; return False if the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # The end of the heap is never trimmed, and all memory is allocated in the heap.
    return bool(mallopt(_TRIM_THRESHOLD, -1)) and bool(mallopt(_MMAP_MAX, 0))
