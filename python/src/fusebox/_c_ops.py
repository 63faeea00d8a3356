"""include/fusebox_ops.h for ctypes, and its structs as packed bytes.

A function that takes a pointer to a struct gets a bytes object with the struct's layout. It costs half as much as
a ctypes struct, belongs to one call, and so needs no lock.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_void_p,
)
from typing import Any

from . import _c
from ._c import Dtype, Status, fb_error
from .errors import Error, UsageError, error_of

# ---- structs -------------------------------------------------------------------------------------------------


class fb_ops_tensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", Dtype), ("rows", c_int64), ("cols", c_int64), ("stride", c_int64)]


class fb_ops_heads(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", Dtype),
        ("rows", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    ]


class fb_ops_positions(Structure):
    _fields_ = [("data", c_void_p), ("bits", c_int32)]


class fb_ops_block(Structure):
    _fields_ = [("scale", c_float), ("sum", c_int32), ("q", c_int8 * 32)]


class fb_ops_named(Structure):
    _fields_ = [("name", c_char_p), ("tensor", fb_ops_tensor)]


class fb_ops_cache(Structure):
    _fields_ = [
        ("k", c_void_p),
        ("v", c_void_p),
        ("sequences", c_int64),
        ("heads", c_int64),
        ("capacity", c_int64),
        ("width", c_int64),
        ("sequence_stride", c_int64),
        ("head_stride", c_int64),
    ]


class fb_ops_layer_fuse(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("why_not", c_char_p),
        ("bit", c_bool),
        ("each", c_int64),
        ("calls", c_int64),
    ]


STRUCTS: list[type[Structure]] = [
    fb_ops_tensor,
    fb_ops_heads,
    fb_ops_positions,
    fb_ops_block,
    fb_ops_named,
    fb_ops_cache,
    fb_ops_layer_fuse,
]

_TENSOR = struct.Struct("Pi4x3q")
_HEADS = struct.Struct("Pi4x5q")
_CACHE = struct.Struct("PP6q")
assert _TENSOR.size == ctypes.sizeof(fb_ops_tensor) and _HEADS.size == ctypes.sizeof(fb_ops_heads)
assert _CACHE.size == ctypes.sizeof(fb_ops_cache)

pack_tensor = _TENSOR.pack
"""(data, dtype, rows, cols, stride) as the bytes of an fb_ops_tensor."""
pack_pointer = struct.Struct("P").pack
"""The first field of both, so that a descriptor can be used again for other memory."""
pack_tail = struct.Struct("i4x3q").pack
"""(dtype, rows, cols, stride): the rest of an fb_ops_tensor."""
pack_heads = _HEADS.pack
"""(data, dtype, rows, heads, width, row_stride, head_stride) as the bytes of an fb_ops_heads."""
pack_cache = _CACHE.pack
"""(k, v, sequences, heads, capacity, width, sequence_stride, head_stride) as the bytes of an fb_ops_cache."""

BLOCK_BYTES = ctypes.sizeof(fb_ops_block)
CPU = -1  # FB_OPS_CPU

# ---- functions: result, arguments ----------------------------------------------------------------------------

_p = c_void_p

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_ops_create": (Status, [c_int32, c_int32, POINTER(c_void_p), POINTER(fb_error)]),
    "fb_ops_free": (None, [_p]),
    "fb_ops_reserve": (Status, [_p, _p, c_int64, _p]),
    "fb_ops_layer_norm": (Status, [_p, _p, _p, _p, _p, c_float, _p, _p]),
    "fb_ops_rms_norm": (Status, [_p, _p, _p, _p, c_float, _p, _p]),
    "fb_ops_layer_norm_residual": (Status, [_p, _p, _p, _p, _p, _p, c_float, _p, _p]),
    "fb_ops_add_norm": (Status, [_p, _p, _p, c_int32, c_int, _p, _p, c_int32, c_float, _p, _p, _p]),
    "fb_ops_add3": (Status, [_p, _p, _p, _p, _p, _p, _p]),
    "fb_ops_silu_mul": (Status, [_p, _p, _p, _p, _p, _p]),
    "fb_ops_linear_bias_act": (Status, [_p, _p, _p, _p, _p, c_int, _p, _p]),
    "fb_ops_norm_linear": (Status, [_p, _p, _p, c_int, _p, _p, c_float, _p, _p, c_int, _p, _p]),
    "fb_ops_swiglu": (Status, [_p, _p, _p, _p, _p, c_int, _p, _p]),
    "fb_ops_rope": (Status, [_p, _p, _p, fb_ops_positions, c_int32, c_double, _p, _p, _p]),
    "fb_ops_attention": (Status, [_p, _p, _p, _p, _p, fb_ops_positions, c_float, c_bool, _p, _p]),
    "fb_ops_quantize_weight": (Status, [Dtype, _p, c_int64, c_int64, _p, POINTER(fb_error)]),
    "fb_ops_pack": (Status, [_p, Dtype, _p, c_int64, c_int64, POINTER(c_void_p), POINTER(fb_error)]),
    "fb_ops_weight_free": (None, [_p]),
    "fb_ops_quantize_q8": (Status, [_p, _p, _p, _p, c_int64, _p]),
    "fb_ops_linear_q8_0": (Status, [_p, _p, _p, _p, _p, _p, _p]),
    "fb_ops_linear_q4_0": (Status, [_p, _p, _p, _p, _p, _p, _p]),
    "fb_ops_linear_blocks": (Status, [_p, _p, _p, c_int64, _p, _p, _p, _p]),
    "fb_ops_layer_create": (
        Status,
        [
            *(_p, c_char_p, POINTER(fb_ops_named), c_int32, POINTER(c_double), c_int32, Dtype, c_char_p, c_bool),
            *(POINTER(c_void_p), POINTER(fb_error)),
        ],
    ),
    "fb_ops_layer_free": (None, [_p]),
    "fb_ops_places_bytes": (c_int64, [_p, c_int64]),
    "fb_ops_places_angles": (c_int64, [_p, c_int64, POINTER(c_int32)]),
    "fb_ops_places": (
        Status,
        [_p, _p, fb_ops_positions, c_int64, c_int64, c_int64, c_int64, _p, POINTER(fb_error)],
    ),
    "fb_ops_layer_run": (Status, [_p, _p, _p, _p, _p, _p, _p]),
    "fb_ops_layer_fuse_at": (
        Status,
        [_p, c_int32, POINTER(fb_ops_layer_fuse), POINTER(c_bool), POINTER(fb_error)],
    ),
    "fb_ops_layer_print": (Status, [_p, POINTER(c_void_p), POINTER(fb_error)]),
}

_c.declare(FUNCTIONS)
lib: Any = _c.lib


def bare(name: str) -> Any:
    """A function that returns a status, without argtypes. ctypes then converts arguments by their Python types, in half
    of the time: a call of twelve takes 0.6 us less. Each argument must be bytes, None, an int of 32 bits, or an object
    of ctypes: a pointer is a c_void_p, a number that is no integer a c_float or c_double."""
    function = lib[name]
    function.restype = Status
    return function


# ---- errors --------------------------------------------------------------------------------------------------


class _Errors(threading.local):
    """The fb_error of a thread. A call that succeeds does not touch it."""

    def __init__(self) -> None:
        self.error = fb_error()
        self.address = c_void_p(ctypes.addressof(self.error))


errors = _Errors()


def failure(status: int) -> Error:
    """The exception of a call of this thread that has just failed."""
    return error_of(status, errors.error.message.decode("utf-8", "replace"))


def number(name: str, value: Any, kind: Any = c_float) -> Any:
    """What a float or double argument of C gets: ctypes' own message would not name the argument."""
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name}: {value!r} (must be a number)") from None
