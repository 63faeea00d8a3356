"""For ctypes: include/fusebox_quantize.h, and what of fusebox_tools.h is about perplexity. Names are those of the headers."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from typing import Any

from ._c import CacheKind, Dtype, Status, declare, fb_error, fb_progress_fn

# ---- perplexity ----------------------------------------------------------------------------------------------

Scoring = c_int

class fb_score(Structure):
    _fields_ = [
        ("tokens", c_int64),
        ("nll", c_double),
        ("nll_error", c_double),
        ("perplexity", c_double),
        ("perplexity_error", c_double),
        ("seconds", c_double),
    ]


fb_score_fn = CFUNCTYPE(c_bool, c_void_p, POINTER(fb_score), c_int64)


class fb_perplexity_options(Structure):
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
        ("chunk", c_int64),
        ("window", c_int64),
        ("on_progress", fb_score_fn),
        ("user", c_void_p),
        ("scoring", Scoring),
        ("max_windows", c_int64),
    ]


class fb_perplexity_report(Structure):
    _fields_ = [
        ("all", fb_score),
        ("window", c_int64),
        ("window_count", c_int64),
        ("windows", POINTER(fb_score)),
        ("threads", c_int32),
        ("isa", c_char * 16),
    ]


# ---- perplexity along a stream -------------------------------------------------------------------------------


class fb_curve_row(Structure):
    _fields_ = [("position", c_int64), ("tokens", c_int64), ("nll", POINTER(c_double))]


class fb_curve(Structure):
    _fields_ = [
        ("cache", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("bytes", c_int64),
        ("nll", c_double),
        ("seconds", c_double),
    ]


class fb_curve_report(Structure):
    _fields_ = [
        ("context", c_int64),
        ("every", c_int64),
        ("tokens", c_int64),
        ("total", c_int64),
        ("curve_count", c_int64),
        ("curves", POINTER(POINTER(fb_curve))),
        ("row_count", c_int64),
        ("rows", POINTER(fb_curve_row)),
        ("backend", c_char_p),
        ("isa", c_char * 16),
        ("threads", c_int32),
    ]


fb_curve_fn = CFUNCTYPE(c_bool, c_void_p, POINTER(fb_curve_report), c_int64)


class fb_curve_options(Structure):
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
        ("kind_count", c_int32),
        ("kinds", POINTER(CacheKind)),
        ("sinks", c_int64),
        ("chunk", c_int64),
        ("window", c_int64),
        ("every", c_int64),
        ("on_chunk", fb_curve_fn),
        ("on_progress", fb_curve_fn),
        ("user", c_void_p),
    ]


# ---- quantisation --------------------------------------------------------------------------------------------


class fb_quantize_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("type", Dtype),
        ("head", Dtype),
        ("replace", c_bool),
        ("name", c_char_p),
        ("on_progress", fb_progress_fn),
        ("user", c_void_p),
        ("mix", c_int64),
        ("importance", c_void_p),
    ]


class fb_quantize_kind(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("type", Dtype),
        ("no_blocks", c_bool),
        ("tensors", c_int64),
        ("weights", c_int64),
        ("bytes", c_int64),
        ("corrected", c_int64),
        ("rel", c_double),
        ("max_abs", c_double),
        ("asked", Dtype),
    ]


class fb_quantize_report(Structure):
    _fields_ = [
        ("weights", c_int64),
        ("bytes_before", c_int64),
        ("bytes_after", c_int64),
        ("file_bytes", c_int64),
        ("corrected", c_int64),
        ("kind_count", c_int64),
        ("kinds", POINTER(POINTER(fb_quantize_kind))),
        ("experts_own", c_int64),
        ("experts_shared", c_int64),
        ("experts_plain", c_int64),
    ]


STRUCTS: list[type[Structure]] = [
    fb_score,
    fb_perplexity_options,
    fb_perplexity_report,
    fb_curve_row,
    fb_curve,
    fb_curve_report,
    fb_curve_options,
    fb_quantize_options,
    fb_quantize_kind,
    fb_quantize_report,
]

# ---- functions: result, arguments ----------------------------------------------------------------------------

_error = POINTER(fb_error)


def _score(options: type[Structure], report: type[Structure]) -> tuple[Any, list[Any]]:
    return Status, [c_void_p, POINTER(options), POINTER(c_int32), c_int64, POINTER(POINTER(report)), _error]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_perplexity_options_init": (None, [POINTER(fb_perplexity_options), c_size_t]),
    "fb_perplexity_run": _score(fb_perplexity_options, fb_perplexity_report),
    "fb_perplexity_free": (None, [POINTER(fb_perplexity_report)]),
    "fb_importance_collect": (
        Status,
        [c_void_p, POINTER(fb_perplexity_options), POINTER(c_int32), c_int64, POINTER(c_void_p), c_void_p, _error],
    ),
    "fb_importance_free": (None, [c_void_p]),
    "fb_curve_options_init": (None, [POINTER(fb_curve_options), c_size_t]),
    "fb_curve_run": _score(fb_curve_options, fb_curve_report),
    "fb_curve_free": (None, [POINTER(fb_curve_report)]),
    "fb_curve_svg": (Status, [POINTER(fb_curve_report), c_char_p, _error]),
    "fb_quantize_options_init": (None, [POINTER(fb_quantize_options), c_size_t]),
    "fb_quantize_options_parse": (Status, [c_char_p, POINTER(fb_quantize_options), _error]),
    "fb_quantize_name": (c_char_p, [c_int64]),
    "fb_model_quantize": (
        Status,
        [c_void_p, c_char_p, POINTER(fb_quantize_options), POINTER(POINTER(fb_quantize_report)), _error],
    ),
    "fb_quantize_free": (None, [POINTER(fb_quantize_report)]),
}

declare(FUNCTIONS)
