"""Objects of the C library, with the life of Python's."""

from __future__ import annotations

import weakref
from typing import Any


class Handle:
    """Owns one C object. It is freed when nothing refers to the handle any more; at the end of the process the
    system does it, because other threads may still be using it."""

    __slots__ = ("__weakref__", "keep", "pointer")

    def __init__(self, pointer: Any, free: Any, *keep: object) -> None:
        self.pointer = pointer
        self.keep = keep  # what must live as long
        # The finalizer refers to other handles. So they are freed after this one, also where the garbage collector
        # finds all of them at once, as after an exception whose traceback has them.
        handles = [kept for kept in keep if isinstance(kept, Handle)]
        weakref.finalize(self, _free, free, pointer, handles).atexit = False


def _free(free: Any, pointer: Any, handles: list[Handle]) -> None:
    free(pointer)
