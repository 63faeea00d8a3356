"""For ctypes: the reports of include/fusebox_tools.h and fusebox_bench.h. Names are those of the headers."""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from typing import Any

from ._c import CacheKind, Dtype, Status, declare, fb_error, fb_progress_fn
from ._c_draft import MAX_DRAFT

_double_list = POINTER(c_double)

# ---- benchmarks ----------------------------------------------------------------------------------------------


class fb_spread(Structure):
    _fields_ = [
        ("median", c_double),
        ("p10", c_double),
        ("p90", c_double),
        ("low", c_double),
        ("high", c_double),
        ("confidence", c_double),
    ]


class fb_bench_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("act", Dtype),
        ("kv", c_char_p),
        ("isa", c_char_p),
        ("backend", c_char_p),
        ("machine", c_char_p),
        ("exact", c_bool),
        ("float_dot", c_bool),
        ("spec_count", c_int32),
        ("specs", POINTER(c_char_p)),
        ("prompt", c_int64),
        ("gen", c_int64),
        ("reps", c_int64),
        ("on_progress", fb_progress_fn),
        ("user", c_void_p),
        ("any_order", c_int64),
    ]


class fb_bench_variant(Structure):
    _fields_ = [
        ("spec", c_char_p),
        ("barriers_a_step", c_int64),
        ("agrees", c_bool),
        ("bit_identical", c_bool),
        ("tokens_equal", c_int64),
        ("max_abs", c_double),
        ("prefill", _double_list),
        ("ttft", _double_list),
        ("tpot", _double_list),
        ("prefill_spread", fb_spread),
        ("ttft_spread", fb_spread),
        ("tpot_spread", fb_spread),
        ("prefill_ratio", fb_spread),
        ("ttft_ratio", fb_spread),
        ("tpot_ratio", fb_spread),
    ]


class fb_bench_report(Structure):
    _fields_ = [
        ("agree", c_bool),
        ("prompt", c_int64),
        ("gen", c_int64),
        ("reps", c_int64),
        ("threads", c_int32),
        ("isa", c_char * 16),
        ("variant_count", c_int64),
        ("variants", POINTER(POINTER(fb_bench_variant))),
    ]


class fb_bench_ops_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("act", Dtype),
        ("kv", c_char_p),
        ("isa", c_char_p),
        ("backend", c_char_p),
        ("exact", c_bool),
        ("float_dot", c_bool),
        ("prompt", c_int64),
        ("gen", c_int64),
        ("reps", c_int64),
        ("on_progress", fb_progress_fn),
        ("user", c_void_p),
    ]


class fb_bench_op(Structure):
    _fields_ = [
        ("fuse", c_char_p),
        ("rows", c_int64),
        ("agrees", c_bool),
        ("bit_identical", c_bool),
        ("max_abs", c_double),
        ("plain", _double_list),
        ("fused", _double_list),
        ("plain_spread", fb_spread),
        ("fused_spread", fb_spread),
        ("ratio", fb_spread),
    ]


class fb_bench_ops_report(Structure):
    _fields_ = [
        ("agree", c_bool),
        ("prompt", c_int64),
        ("gen", c_int64),
        ("reps", c_int64),
        ("threads", c_int32),
        ("isa", c_char * 16),
        ("count", c_int64),
        ("ops", POINTER(POINTER(fb_bench_op))),
    ]


class fb_bench_stream_options(Structure):
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
        ("cache", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
        ("gen", c_int64),
        ("ttft_limit", c_double),
        ("on_progress", fb_progress_fn),
        ("user", c_void_p),
    ]


class fb_bench_stream_line(Structure):
    _fields_ = [
        ("position", c_int64),
        ("tpot", fb_spread),
        ("ttft", c_double),
        ("cache_bytes", c_int64),
        ("resident_bytes", c_int64),
    ]


class fb_bench_stream_report(Structure):
    _fields_ = [
        ("cache", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("gen", c_int64),
        ("context", c_int64),
        ("steps", c_int64),
        ("checked", c_int64),
        ("threads", c_int32),
        ("isa", c_char * 16),
        ("line_count", c_int64),
        ("lines", POINTER(POINTER(fb_bench_stream_line))),
        ("recompute_steps", c_int64),
        ("recompute", fb_spread),
        ("ratio", c_double),
    ]


# ---- profile and plan ----------------------------------------------------------------------------------------


class fb_profile_op(Structure):
    _fields_ = [
        ("name", c_char * 96),
        ("section", c_int32),
        ("barrier", c_bool),
        ("calls", c_int64),
        ("seconds", c_double),
        ("predicted", c_double),
        ("bytes", c_double),
        ("weight_bytes", c_double),
        ("kv_bytes", c_double),
        ("flops", c_double),
        ("bandwidth", c_double),
    ]


class fb_profile(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("op_count", c_int64),
        ("ops", POINTER(POINTER(fb_profile_op))),
        ("layers", c_int64),
        ("steps", c_int64),
        ("wall", c_double),
        ("between", c_double),
        ("tpot", c_double),
        ("predicted", c_double),
        ("barriers", c_int64),
        ("layer_bytes", c_double),
    ]


class fb_machine_figures(Structure):
    _fields_ = [
        ("gpu", c_bool),
        ("cpu", c_char * 64),
        ("isa", c_char * 16),
        ("threads", c_int32),
        ("points", c_int32),
        ("bytes", _double_list),
        ("bandwidth", _double_list),
        ("barrier", c_double),
        ("dispatch", c_double),
        ("launch", c_double),
        ("node", c_double),
        ("small", c_double),
        ("flops", c_double),
        ("footprint", c_double),
        ("footprint_bandwidth", c_double),
    ]


class fb_plan_fuse(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("why_not", c_char_p),
        ("kept", c_bool),
        ("bytes_saved", c_double),
        ("barriers_saved", c_int64),
        ("saving", c_double),
        ("ceiling", c_double),
        ("reason", c_char * 320),
    ]


PLAN_CHANCES = 5


class fb_plan_draft(Structure):
    _fields_ = [
        ("source", c_char_p),
        ("why_not", c_char * 128),
        ("guess", c_double),
        ("break_even", c_double),
        ("chance", c_double * PLAN_CHANCES),
        ("guesses", c_int64 * PLAN_CHANCES),
        ("speedup", c_double * PLAN_CHANCES),
    ]


class fb_plan_report(Structure):
    _fields_ = [
        ("machine", POINTER(fb_machine_figures)),
        ("prompt", c_int64),
        ("gen", c_int64),
        ("plain", POINTER(fb_profile)),
        ("fused", POINTER(fb_profile)),
        ("fuse_count", c_int64),
        ("fuses", POINTER(POINTER(fb_plan_fuse))),
        ("layer_bytes", c_double),
        ("draft_count", c_int64),
        ("drafts", POINTER(POINTER(fb_plan_draft))),
        ("rows_predicted", c_double * (MAX_DRAFT + 1)),
        ("rows_measured", c_double * (MAX_DRAFT + 1)),
    ]


class fb_profile_options(Structure):
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
        ("calibrate", c_bool),
        ("prefill", c_bool),
        ("prompt", c_int64),
        ("gen", c_int64),
    ]


class fb_plan_report_options(Structure):
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
        ("calibrate", c_bool),
        ("prompt", c_int64),
        ("gen", c_int64),
    ]


# ---- verification --------------------------------------------------------------------------------------------


class fb_verify_row(Structure):
    _fields_ = [
        ("layer", c_int64),
        ("max_abs", c_double),
        ("limit", c_double),
        ("rel", c_double),
        ("rel_limit", c_double),
        ("ok", c_bool),
    ]


class fb_verify_report(Structure):
    _fields_ = [
        ("ok", c_bool),
        ("tokens", c_int64),
        ("layers", c_int64),
        ("rows", POINTER(fb_verify_row)),
        ("logits", fb_verify_row),
        ("logits_f64_max_abs", c_double),
        ("greedy_tokens", c_int64),
        ("greedy_equal", c_int64),
        ("greedy_near", c_int64),
        ("greedy_match", c_bool),
    ]


class fb_verify_options(Structure):
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
    ]


class fb_stream_row(Structure):
    _fields_ = [
        ("cache", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("nll_max_abs", c_double),
        ("nll_limit", c_double),
        ("logits_max_abs", c_double),
        ("logits_limit", c_double),
        ("perplexity", c_double),
        ("perplexity_wanted", c_double),
        ("ok", c_bool),
    ]


class fb_stream_report(Structure):
    _fields_ = [
        ("ok", c_bool),
        ("tokens", c_int64),
        ("count", c_int64),
        ("rows", POINTER(POINTER(fb_stream_row))),
    ]


class fb_fusion_row(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("bit", c_bool),
        ("bit_identical", c_bool),
        ("greedy_match", c_bool),
        ("unshown_ok", c_bool),
        ("ok", c_bool),
        ("why", c_char * 128),
        ("max_abs", c_double),
        ("bound", c_double),
        ("vs_f64_plain", c_double),
        ("vs_f64_fused", c_double),
        ("calls", c_int64),
        ("calls_expected", c_int64),
        ("perplexity", c_double),
        ("layers", POINTER(fb_verify_row)),
    ]


class fb_fusion_report(Structure):
    _fields_ = [
        ("ok", c_bool),
        ("greedy_match", c_bool),
        ("prompt", c_int64),
        ("decoded", c_int64),
        ("greedy_tokens", c_int64),
        ("truth_tokens", c_int64),
        ("states", c_int64),
        ("count", c_int64),
        ("rows", POINTER(POINTER(fb_fusion_row))),
        ("perplexity_plain", c_double),
        ("perplexity_fused", c_double),
        ("sensitive", c_bool),
    ]


class fb_fusion_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("act", Dtype),
        ("kv", c_char_p),
        ("isa", c_char_p),
        ("backend", c_char_p),
        ("machine", c_char_p),
        ("fuse", c_char_p),
        ("exact", c_bool),
        ("float_dot", c_bool),
        ("cache", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
    ]


STRUCTS: list[type[Structure]] = [
    fb_spread,
    fb_bench_options,
    fb_bench_variant,
    fb_bench_report,
    fb_bench_ops_options,
    fb_bench_op,
    fb_bench_ops_report,
    fb_bench_stream_options,
    fb_bench_stream_line,
    fb_bench_stream_report,
    fb_profile_op,
    fb_profile,
    fb_machine_figures,
    fb_plan_fuse,
    fb_plan_draft,
    fb_plan_report,
    fb_profile_options,
    fb_plan_report_options,
    fb_verify_row,
    fb_verify_report,
    fb_verify_options,
    fb_stream_row,
    fb_stream_report,
    fb_fusion_row,
    fb_fusion_report,
    fb_fusion_options,
]

# ---- functions: result, arguments ----------------------------------------------------------------------------


def _init(options: type[Structure]) -> tuple[Any, list[Any]]:
    return None, [POINTER(options), c_size_t]


def _make(options: type[Structure], report: type[Structure], *between: Any) -> tuple[Any, list[Any]]:
    return Status, [c_void_p, *between, POINTER(options), POINTER(POINTER(report)), POINTER(fb_error)]


def _free(report: type[Structure]) -> tuple[Any, list[Any]]:
    return None, [POINTER(report)]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_bench_options_init": _init(fb_bench_options),
    "fb_bench_run": _make(fb_bench_options, fb_bench_report),
    "fb_bench_free": _free(fb_bench_report),
    "fb_bench_ops_options_init": _init(fb_bench_ops_options),
    "fb_bench_ops": _make(fb_bench_ops_options, fb_bench_ops_report),
    "fb_bench_ops_free": _free(fb_bench_ops_report),
    "fb_bench_stream_options_init": _init(fb_bench_stream_options),
    "fb_bench_stream_run": _make(fb_bench_stream_options, fb_bench_stream_report),
    "fb_bench_stream_free": _free(fb_bench_stream_report),
    "fb_profile_options_init": _init(fb_profile_options),
    "fb_profile_make": _make(fb_profile_options, fb_plan_report),
    "fb_plan_report_options_init": _init(fb_plan_report_options),
    "fb_plan_report_make": _make(fb_plan_report_options, fb_plan_report),
    "fb_plan_report_free": _free(fb_plan_report),
    "fb_plan_report_svg": (Status, [POINTER(fb_plan_report), c_char_p, POINTER(fb_error)]),
    "fb_verify_options_init": _init(fb_verify_options),
    "fb_verify_golden": _make(fb_verify_options, fb_verify_report, c_char_p),
    "fb_verify_free": _free(fb_verify_report),
    "fb_golden_streams": (Status, [c_char_p, POINTER(c_bool), POINTER(fb_error)]),
    "fb_verify_stream": _make(fb_verify_options, fb_stream_report, c_char_p),
    "fb_stream_free": _free(fb_stream_report),
    "fb_fusion_options_init": _init(fb_fusion_options),
    "fb_verify_fusion": _make(fb_fusion_options, fb_fusion_report),
    "fb_fusion_free": _free(fb_fusion_report),
}

declare(FUNCTIONS)
