"""include/fusebox.h for ctypes: the library, its structs and its functions. Names are those of the header.

``ctypes.CDLL`` releases the GIL during every call.
"""

from __future__ import annotations

import ctypes
import os
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
from pathlib import Path
from typing import Any

from .errors import UsageError, error_of

# ---- files of the package ------------------------------------------------------------------------------------


def _find_files() -> Path:
    """The folder with lib/, bin/, include/ and share/: in the installed package, or in the build folder of the
    source tree (an editable installation)."""
    package = Path(__file__).resolve().parent
    places = [package, package.parents[2] / "build" / "python" / "files"]
    for place in places:
        if (place / "lib" / "libfusebox.so").is_file():
            return place
    looked = " and ".join(str(place / "lib") for place in places)
    raise ImportError(f"libfusebox.so: not found (looked in {looked}; install the package: pip install ./python)")


FILES = _find_files()
lib = ctypes.CDLL(str(FILES / "lib" / "libfusebox.so"))

# ---- structs -------------------------------------------------------------------------------------------------

Status = c_int
Dtype = c_int
CacheKind = c_int


class fb_error(Structure):
    _fields_ = [("status", Status), ("message", c_char * 512)]


class fb_model_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("architecture", c_char_p),
        ("has_tokenizer", c_bool),
        ("layers", c_int64),
        ("hidden", c_int64),
        ("vocab", c_int64),
        ("context", c_int64),
        ("parameters", c_int64),
    ]


class fb_device_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 128),
        ("isa", c_char * 16),
        ("memory", c_int64),
        ("memory_free", c_int64),
        ("l2_bytes", c_int64),
        ("multiprocessors", c_int32),
        ("shared_bytes", c_int32),
        ("driver", c_int32),
        ("runtime", c_int32),
        ("why_not", c_char * 256),
    ]


fb_hidden_fn = CFUNCTYPE(c_bool, c_void_p, c_int64, c_int64, POINTER(c_float), c_int64, c_int64)
fb_progress_fn = CFUNCTYPE(c_bool, c_void_p, c_int64, c_int64)


class fb_session_options(Structure):
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
        ("greedy", c_bool),
        ("all_logits", c_bool),
        ("profile", c_bool),
        ("beyond_context", c_bool),
        ("cache", CacheKind),
        ("capacity", c_int64),
        ("sinks", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
        ("on_hidden", fb_hidden_fn),
        ("on_progress", fb_progress_fn),
        ("user", c_void_p),
        ("any_order", c_int64),
        ("draft", c_void_p),
    ]


class fb_cache_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", CacheKind),
        ("sinks", c_int64),
        ("window", c_int64),
        ("slots", c_int64),
        ("bytes", c_int64),
        ("held", c_int64),
        ("trimmable", c_int64),
    ]


class fb_logit_bias(Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class fb_logprob(Structure):
    _fields_ = [("logprob", c_double), ("id", c_int32)]


class fb_sampler_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repeat_penalty", c_float),
        ("repeat_window", c_int64),
        ("top_k", c_int64),
        ("seed", c_uint64),
        ("sequence", c_uint64),
        ("logit_bias", POINTER(fb_logit_bias)),
        ("logit_bias_count", c_int64),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("schema", c_void_p),
    ]


class fb_fuse_info(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("text", c_char_p),
        ("bound", c_char_p),
        ("backends", c_char_p),
        ("why_not", c_char_p),
        ("taken_by", c_char_p),
        ("in_all", c_bool),
        ("bit", c_bool),
        ("greedy", c_bool),
        ("calls_per_step", c_int64),
    ]


STRUCTS: list[type[Structure]] = [
    fb_error,
    fb_model_info,
    fb_device_info,
    fb_session_options,
    fb_cache_info,
    fb_logit_bias,
    fb_logprob,
    fb_sampler_options,
    fb_fuse_info,
]

# ---- functions: result, arguments ----------------------------------------------------------------------------

_error = POINTER(fb_error)
_i64 = POINTER(c_int64)
_text = POINTER(c_char_p)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fb_version": (c_char_p, []),
    "fb_version_number": (c_int32, []),
    "fb_commit": (c_char_p, []),
    "fb_status_name": (c_char_p, [Status]),
    "fb_free": (None, [c_void_p]),
    "fb_dtype_name": (c_char_p, [Dtype]),
    "fb_dtype_parse": (Status, [c_char_p, POINTER(Dtype), _error]),
    "fb_dtype_parse_kv": (Status, [c_char_p, Dtype, POINTER(Dtype), _error]),
    "fb_model_open": (Status, [c_char_p, POINTER(c_void_p), _error]),
    "fb_model_free": (None, [c_void_p]),
    "fb_model_fill_info": (None, [c_void_p, POINTER(fb_model_info)]),
    "fb_model_weights": (c_bool, [c_void_p, c_int, POINTER(Dtype), _i64, _i64]),
    "fb_model_fact": (c_bool, [c_void_p, c_int, _text, _text]),
    "fb_model_chat_template": (c_bool, [c_void_p, c_int, _text, _text]),
    "fb_model_chat_source": (c_char_p, [c_void_p, c_int]),
    "fb_model_program_text": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_model_is_end": (c_bool, [c_void_p, c_int32]),
    "fb_tokenize": (Status, [c_void_p, c_char_p, c_size_t, c_bool, POINTER(c_void_p), _i64, _error]),
    "fb_detokenize": (
        Status,
        [c_void_p, POINTER(c_int32), c_int64, c_bool, POINTER(c_void_p), POINTER(c_size_t), _error],
    ),
    "fb_text_create": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_text_push": (Status, [c_void_p, c_int32, POINTER(c_void_p), POINTER(c_size_t), _error]),
    "fb_text_flush": (Status, [c_void_p, POINTER(c_void_p), POINTER(c_size_t), _error]),
    "fb_text_free": (None, [c_void_p]),
    "fb_device_fill": (Status, [c_int32, POINTER(c_bool), POINTER(fb_device_info), _error]),
    "fb_cuda_library": (Status, [c_char_p, _error]),
    "fb_cache_name": (c_char_p, [CacheKind]),
    "fb_cache_parse": (Status, [c_char_p, POINTER(CacheKind), _error]),
    "fb_session_options_init": (None, [POINTER(fb_session_options), c_size_t]),
    "fb_session_create": (Status, [c_void_p, POINTER(fb_session_options), POINTER(c_void_p), _error]),
    "fb_session_free": (None, [c_void_p]),
    "fb_session_prefill": (Status, [c_void_p, POINTER(c_int32), c_int64, _error]),
    "fb_session_decode": (Status, [c_void_p, c_int32, _error]),
    "fb_session_next": (Status, [c_void_p, c_int32, c_void_p, POINTER(c_int32), _error]),
    "fb_session_cancel": (None, [c_void_p]),
    "fb_session_logits": (Status, [c_void_p, POINTER(c_void_p), _i64, _i64, _error]),
    "fb_session_best": (Status, [c_void_p, POINTER(c_int32), _error]),
    "fb_session_position": (c_int64, [c_void_p]),
    "fb_session_backend": (c_char_p, [c_void_p]),
    "fb_session_threads": (c_int32, [c_void_p]),
    "fb_session_isa": (c_char_p, [c_void_p]),
    "fb_session_reset": (None, [c_void_p]),
    "fb_session_fill_cache": (None, [c_void_p, POINTER(fb_cache_info)]),
    "fb_session_trim": (Status, [c_void_p, c_int64, _error]),
    "fb_session_fork": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_session_op_calls": (c_bool, [c_void_p, c_int, _text, _i64]),
    "fb_session_fuse_calls": (c_bool, [c_void_p, c_int, _text, _i64, _i64, _i64]),
    "fb_session_barriers": (c_int64, [c_void_p]),
    "fb_session_plan_text": (Status, [c_void_p, POINTER(c_void_p), _error]),
    "fb_schema_create": (Status, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), _error]),
    "fb_schema_free": (None, [c_void_p]),
    "fb_sampler_options_init": (None, [POINTER(fb_sampler_options), c_size_t]),
    "fb_sampler_create": (Status, [POINTER(fb_sampler_options), c_int64, POINTER(c_void_p), _error]),
    "fb_sampler_accept": (None, [c_void_p, c_int32]),
    "fb_sampler_next": (Status, [c_void_p, c_void_p, POINTER(c_int32), _error]),
    "fb_sampler_seek": (None, [c_void_p, c_uint64]),
    "fb_sampler_logprobs": (
        Status,
        [c_void_p, c_void_p, c_int32, POINTER(c_double), POINTER(fb_logprob), c_int64, _error],
    ),
    "fb_sampler_ended": (c_bool, [c_void_p]),
    "fb_sampler_free": (None, [c_void_p]),
    "fb_model_fill_fuse": (c_bool, [c_void_p, c_int, POINTER(fb_fuse_info)]),
    # Of fusebox_tools.h:
    "fb_show_character": (c_size_t, [c_void_p, c_size_t, c_bool, c_char_p]),
    "fb_faster_type": (c_bool, [c_void_p, c_char_p, POINTER(Dtype), POINTER(Dtype), POINTER(c_double)]),
}


def declare(functions: dict[str, tuple[Any, list[Any]]]) -> None:
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments


declare(FUNCTIONS)

# ---- calls ---------------------------------------------------------------------------------------------------


def call(function: Any, *arguments: Any) -> None:
    """Calls a function that returns a status and takes an fb_error last. A failure raises its exception."""
    error = fb_error()
    status = function(*arguments, ctypes.byref(error))
    if status:
        raise error_of(status, error.message.decode("utf-8", "replace"))


def text(value: bytes | None) -> str:
    """A C string as str; NULL is the empty string."""
    return value.decode("utf-8", "replace") if value else ""


def text_or_none(value: bytes | None) -> str | None:
    return None if value is None else text(value)


def to_bytes(name: str, value: str | os.PathLike[str]) -> bytes:
    """A str or a path for a ``const char *``, which ends at the first NUL: that character is refused."""
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise UsageError(f"{name}: {os.fsdecode(encoded)!r} (must not contain a NUL character)")
    return encoded


def integer(name: str, value: int, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """An int in the range of its C type: ctypes would cut off the upper bits."""
    number = value.__index__()
    if not low <= number <= high:
        raise UsageError(f"{name}: {number} ({low} to {high})")
    return number


def dtype(name: str) -> int:
    """The number of a dtype's name: "f32", "f16", "bf16", "q8_0", …"""
    value = Dtype()
    call(lib.fb_dtype_parse, to_bytes("dtype", name), ctypes.byref(value))
    return value.value


def dtype_name(value: int) -> str:
    return text(lib.fb_dtype_name(value))


def cache_kind(name: str) -> int:
    value = CacheKind()
    call(lib.fb_cache_parse, to_bytes("cache", name), ctypes.byref(value))
    return value.value


def cache_name(value: int) -> str:
    return text(lib.fb_cache_name(value))


def take_text(function: Any, *arguments: Any) -> str:
    """The text of a function that returns it through a ``char **``."""
    out = c_void_p()
    call(function, *arguments, ctypes.byref(out))
    try:
        return text(ctypes.string_at(out.value or 0))
    finally:
        lib.fb_free(out)


def cuda_library(path: str | os.PathLike[str] | None) -> None:
    """Sets the file of the CUDA backend: a path, "none" (do not use one), or None (the file in this package, or
    where the system looks for libraries). It must be called before the first session."""
    call(lib.fb_cuda_library, None if path is None else to_bytes("cuda_library", path))


# As the command line does, so that one variable switches both.
if os.environ.get("FUSEBOX_CUDA_LIBRARY"):
    cuda_library(os.environ["FUSEBOX_CUDA_LIBRARY"])
