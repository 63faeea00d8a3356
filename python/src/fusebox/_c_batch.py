"""include/fusebox_batch.h for ctypes, and what of fusebox_bench.h and fusebox_tools.h is about batches. Names are those of the headers."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import Any

from ._c import Dtype, Status, declare, fb_error, fb_sampler_options, fb_session_options

Finish = c_int

# ---- the scheduler -------------------------------------------------------------------------------------------


class fb_scheduler_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sequences", c_int64),
        ("cache_tokens", c_int64),
        ("block", c_int64),
        ("rows", c_int64),
        ("stretch", c_float),
        ("prefix_cache", c_int32),
    ]


class fb_answer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("request", c_uint64),
        ("sample", c_int32),
        ("finish", Finish),
        ("token", c_int32),
        ("text", c_void_p),
        ("bytes", c_size_t),
        ("logits", POINTER(c_float)),
        ("count", c_int64),
        ("prompt", c_int64),
        ("cached", c_int64),
        ("message", c_char_p),
        ("position", c_int64),
        ("drafted", c_int64),
        ("kept", c_int64),
    ]


fb_answer_fn = CFUNCTYPE(c_bool, c_void_p, POINTER(fb_answer))


class fb_request_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("prompt", POINTER(c_int32)),
        ("prompt_count", c_int64),
        ("max_tokens", c_int64),
        ("samples", c_int32),
        ("sampler", POINTER(fb_sampler_options)),
        ("stops", POINTER(c_char_p)),
        ("stop_count", c_int32),
        ("priority", c_int32),
        ("past_end", c_bool),
        ("on_answer", fb_answer_fn),
        ("user", c_void_p),
        ("wants_logits", c_int64),
        ("prompt_logits", c_int64),
        ("draft", c_int64),
    ]


class fb_scheduler_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("waiting", c_int64),
        ("running", c_int64),
        ("blocks", c_int64),
        ("blocks_free", c_int64),
        ("block_tokens", c_int64),
        ("block_bytes", c_int64),
        ("steps", c_int64),
        ("rows", c_int64),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("tokens", c_int64),
        ("preempted", c_int64),
        ("step_seconds", c_double),
        ("barriers", c_int64),
        ("plan_changes", c_int64),
        ("plan_pending", c_int64),
        ("last_rows", c_int64),
        ("last_decode", c_int64),
        ("last_timed", c_int64),
        ("last_seconds", c_double),
        ("layer_barriers", c_int64),
        ("held_steps", c_int64),
        ("drafted", c_int64),
        ("kept", c_int64),
    ]


class fb_fuse_state(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("bit", c_bool),
        ("on", c_bool),
        ("next", c_bool),
        ("calls", c_int64),
        ("calls_per_step", c_int64),
        ("calls_per_head", c_int64),
        ("saving", c_double),
    ]


class fb_timeline_op(Structure):
    _fields_ = [
        ("section", c_int32),
        ("fuse_count", c_int32),
        ("op", c_char_p),
        ("fuses", POINTER(c_char_p)),
        ("seconds", c_double),
    ]


class fb_timeline(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("layers", c_int64),
        ("steps", c_int64),
        ("seconds", c_double),
        ("op_seconds", c_double),
        ("op_count", c_int64),
        ("ops", POINTER(POINTER(fb_timeline_op))),
    ]


# ---- its proof -----------------------------------------------------------------------------------------------


class fb_batch_verify_options(Structure):
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
        ("rounds", c_int64),
        ("seed", c_uint64),
    ]


class fb_batch_report(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rounds", c_int64),
        ("requests", c_int64),
        ("answers", c_int64),
        ("tokens", c_int64),
        ("steps", c_int64),
        ("rows", c_int64),
        ("most_rows", c_int64),
        ("preempted", c_int64),
        ("cached_tokens", c_int64),
        ("cancelled", c_int64),
        ("different", c_int64),
        ("ok", c_int64),
        ("first", c_char * 256),
        ("plan_changes", c_int64),
        ("scores", c_int64),
        ("held_steps", c_int64),
    ]


STRUCTS: list[type[Structure]] = [
    fb_scheduler_options,
    fb_answer,
    fb_request_options,
    fb_scheduler_stats,
    fb_fuse_state,
    fb_timeline_op,
    fb_timeline,
    fb_batch_verify_options,
    fb_batch_report,
]

# ---- functions: result, arguments ----------------------------------------------------------------------------

_error = POINTER(fb_error)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_scheduler_options_init": (None, [POINTER(fb_scheduler_options), c_size_t]),
    "fb_scheduler_create": (
        Status,
        [c_void_p, POINTER(fb_session_options), POINTER(fb_scheduler_options), POINTER(c_void_p), _error],
    ),
    "fb_scheduler_free": (None, [c_void_p]),
    "fb_request_options_init": (None, [POINTER(fb_request_options), c_size_t]),
    "fb_scheduler_submit": (Status, [c_void_p, POINTER(fb_request_options), POINTER(c_uint64), _error]),
    "fb_scheduler_cancel": (None, [c_void_p, c_uint64]),
    "fb_scheduler_pause": (None, [c_void_p, c_uint64, c_bool]),
    "fb_scheduler_step": (Status, [c_void_p, POINTER(c_bool), _error]),
    "fb_scheduler_fill_stats": (None, [c_void_p, POINTER(fb_scheduler_stats)]),
    "fb_scheduler_fuse": (Status, [c_void_p, c_char_p, _error]),
    "fb_scheduler_fill_fuse": (c_bool, [c_void_p, c_int, POINTER(fb_fuse_state)]),
    "fb_scheduler_plan_text": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_scheduler_fuse_text": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_scheduler_profile": (Status, [c_void_p, c_int64, _error]),
    "fb_scheduler_timeline": (Status, [c_void_p, POINTER(POINTER(fb_timeline)), _error]),
    "fb_timeline_free": (None, [POINTER(fb_timeline)]),
    "fb_batch_verify_options_init": (None, [POINTER(fb_batch_verify_options), c_size_t]),
    "fb_verify_batch": (Status, [c_void_p, POINTER(fb_batch_verify_options), POINTER(fb_batch_report), _error]),
}

declare(FUNCTIONS)
