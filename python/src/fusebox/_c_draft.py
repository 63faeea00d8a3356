"""Drafts, of include/fusebox.h, fusebox_bench.h and fusebox_tools.h, for ctypes. Names are those of the headers."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from ._c import Dtype, Status, declare, fb_error

MAX_DRAFT = 7

fb_draft_fn = CFUNCTYPE(c_int64, c_void_p, POINTER(c_int32), c_int64, c_int64, POINTER(c_int32))


class fb_draft_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("source", c_char_p),
        ("most", c_int64),
        ("fixed", c_int64),
        ("propose", fb_draft_fn),
        ("user", c_void_p),
    ]


class fb_draft_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("steps", c_int64),
        ("plain_steps", c_int64),
        ("tokens", c_int64),
        ("drafted", c_int64),
        ("kept", c_int64),
        ("tried", c_int64 * MAX_DRAFT),
        ("right", c_int64 * MAX_DRAFT),
        ("step_seconds", c_double),
        ("draft_seconds", c_double),
    ]


class fb_draft_verify_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("act", Dtype),
        ("kv", c_char_p),
        ("isa", c_char_p),
        ("backend", c_char_p),
        ("fuse", c_char_p),
        ("machine", c_char_p),
        ("exact", c_bool),
        ("float_dot", c_bool),
        ("source", c_char_p),
        ("golden", c_char_p),
        ("gen", c_int64),
        ("seed", c_uint64),
        ("prompt", c_int64),
        ("rounds", c_int64),
    ]


class fb_draft_report(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("texts", c_int64),
        ("tokens", c_int64),
        ("steps", c_int64),
        ("drafted", c_int64),
        ("kept", c_int64),
        ("different", c_int64),
        ("ok", c_int64),
        ("first", c_char * 256),
    ]


STRUCTS: list[type[Structure]] = [fb_draft_options, fb_draft_stats, fb_draft_verify_options, fb_draft_report]

# ---- functions: result, arguments ----------------------------------------------------------------------------

_error = POINTER(fb_error)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_draft_options_init": (None, [POINTER(fb_draft_options), c_size_t]),
    "fb_draft_create": (Status, [c_void_p, POINTER(fb_draft_options), POINTER(c_void_p), _error]),
    "fb_draft_free": (None, [c_void_p]),
    "fb_session_speculate": (
        Status,
        [c_void_p, c_int32, c_void_p, c_int64, POINTER(c_int32), POINTER(c_int64), _error],
    ),
    "fb_session_fill_draft": (None, [c_void_p, POINTER(fb_draft_stats)]),
    "fb_draft_verify_options_init": (None, [POINTER(fb_draft_verify_options), c_size_t]),
    "fb_verify_draft": (Status, [c_void_p, POINTER(fb_draft_verify_options), POINTER(fb_draft_report), _error]),
}

declare(FUNCTIONS)
