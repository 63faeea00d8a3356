"""The options of execution, which every function that runs a model takes."""

from __future__ import annotations

import ctypes
import os
from typing import Any, TypedDict

from ._c import dtype, dtype_name, integer, lib, to_bytes, call, Dtype


class Execution(TypedDict, total=False):
    """Options of execution. Each is optional; docs/cli.md describes the values.

    threads: threads of a step; 0: one for each core. Results do not depend on it.
    act: dtype in which every op stores its result: "f32" (the default), "f16", "bf16", "f64".
    kv: dtype of the KV cache: "auto" (the default), "act", "f32", "f16", "bf16", "f64".
    isa: "amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2"; on ARM "i8mm", "dotprod", "neon"; "portable",
        "ref"; by default the best.
    backend: "auto" (the default: a GPU if there is one), "cpu", "cuda", "cuda:1".
    fuse: "none", "all", "auto" (the default), or a list: "add_norm,bias_act", "all,-qkv_up".
    machine: folder of the planner's measurements; None (the default): that of the command line; "": none.
    exact: only fuses that give the bits of the plain ops.
    float_dot: multiply quantised weights with floats instead of 8-bit integers.
    """

    threads: int
    act: str
    kv: str
    isa: str | None
    backend: str
    fuse: str
    machine: str | os.PathLike[str] | None
    exact: bool
    float_dot: bool


NAMES = frozenset(Execution.__annotations__)


def machine_folder() -> str | None:
    """Where the command line keeps the planner's measurements: $XDG_CACHE_HOME/fusebox or ~/.cache/fusebox."""
    base, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if not base.startswith("/"):
        if not home.startswith("/"):
            return None
        base = home + "/.cache"
    try:
        os.makedirs(base, exist_ok=True)
    except OSError:
        return None
    return base + "/fusebox"


def fill(options: Any, execution: Execution, caller: str) -> None:
    """Sets the fields of a C struct of options. A name that it lacks is a TypeError, as for any function."""
    fields = {name for name, *_ in options._fields_}
    for name in execution:
        if name not in NAMES or name not in fields:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    options.threads = integer("threads", execution.get("threads", 0), -(2**31), 2**31 - 1)
    options.act = dtype(execution.get("act", "f32"))
    options.kv = to_bytes("kv", execution.get("kv", "auto"))
    isa = execution.get("isa")
    options.isa = None if isa is None else to_bytes("isa", isa)
    options.backend = to_bytes("backend", execution.get("backend", "auto"))
    if "fuse" in fields:
        options.fuse = to_bytes("fuse", execution.get("fuse", "auto"))
    if "machine" in fields:
        folder = execution.get("machine")
        folder = machine_folder() if folder is None else folder
        options.machine = to_bytes("machine", folder) if folder else None
    options.exact = bool(execution.get("exact", False))
    options.float_dot = bool(execution.get("float_dot", False))


def kv_name(execution: Execution) -> str:
    """The dtype of the KV cache, after defaults."""
    value = Dtype()
    kv = to_bytes("kv", execution.get("kv", "auto"))
    call(lib.fb_dtype_parse_kv, kv, dtype(execution.get("act", "f32")), ctypes.byref(value))
    return dtype_name(value.value)
