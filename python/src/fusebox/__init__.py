"""Fusebox: language models with every kernel fusion a switch.

    import fusebox

    model = fusebox.Model()                    # the built-in storyteller, or fusebox.Model("path")
    print(model.generate("Once upon a time", max_tokens=60, seed=1))
    print(model.verify())                      # each fuse against the plain program

Only ``.logits`` needs numpy, and nothing here needs torch.
"""

from __future__ import annotations

from . import _c
from ._c import cuda_library
from ._execution import Execution
from .bench import BenchReport, OpsReport, StreamBenchReport
from .errors import (
    Error,
    FileError,
    OutOfMemoryError,
    StoppedError,
    SystemFailure,
    UnsupportedError,
    UsageError,
)
from .generation import Generation, Sampling, Stats, TextStream
from .info import Device, Devices, Fuse, Fuses, ModelInfo, devices
from .model import Model
from .perplexity import CurveReport, PerplexityReport
from .plan import Plan, Profile
from .quantize import QuantizeReport
from .session import CacheInfo, FuseCalls, Session, SessionOptions
from .verify import FusionReport, GoldenReport, StreamReport

__version__: str = _c.text(_c.lib.fb_version())
commit: str = _c.text(_c.lib.fb_commit())
"""The commit that the library was built from, or "unknown"."""

__all__ = [
    "BenchReport",
    "CacheInfo",
    "CurveReport",
    "Device",
    "Devices",
    "Error",
    "Execution",
    "FileError",
    "Fuse",
    "FuseCalls",
    "Fuses",
    "FusionReport",
    "Generation",
    "GoldenReport",
    "Model",
    "ModelInfo",
    "OpsReport",
    "OutOfMemoryError",
    "PerplexityReport",
    "Plan",
    "Profile",
    "QuantizeReport",
    "Sampling",
    "Session",
    "SessionOptions",
    "Stats",
    "StoppedError",
    "StreamBenchReport",
    "StreamReport",
    "SystemFailure",
    "TextStream",
    "UnsupportedError",
    "UsageError",
    "commit",
    "cuda_library",
    "devices",
]
