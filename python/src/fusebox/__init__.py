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
from .draft import Draft, DraftReport, DraftStats
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
from .info import Device, Devices, FasterType, Fuse, Fuses, ModelInfo, devices
from .model import Model
from .perplexity import CurveReport, PerplexityReport
from .plan import Plan, Profile
from .quantize import QuantizeReport
from .request import Answer, Piece, Request
from .scheduler import FuseState, Scheduler, SchedulerStats, Timeline, TimelineOp
from .session import CacheInfo, FuseCalls, Session, SessionOptions
from .verify import BatchReport, FusionReport, GoldenReport, StreamReport

__version__: str = _c.text(_c.lib.fb_version())
commit: str = _c.text(_c.lib.fb_commit())
"""The commit that the library was built from, or "unknown"."""

__all__ = [
    "Answer",
    "BatchReport",
    "BenchReport",
    "CacheInfo",
    "CurveReport",
    "Device",
    "Devices",
    "Draft",
    "DraftReport",
    "DraftStats",
    "Error",
    "Execution",
    "FasterType",
    "FileError",
    "Fuse",
    "FuseCalls",
    "FuseState",
    "Fuses",
    "FusionReport",
    "Generation",
    "GoldenReport",
    "Model",
    "ModelInfo",
    "OpsReport",
    "OutOfMemoryError",
    "PerplexityReport",
    "Piece",
    "Plan",
    "Profile",
    "QuantizeReport",
    "Request",
    "Sampling",
    "Scheduler",
    "SchedulerStats",
    "Session",
    "SessionOptions",
    "Stats",
    "StoppedError",
    "StreamBenchReport",
    "StreamReport",
    "SystemFailure",
    "TextStream",
    "Timeline",
    "TimelineOp",
    "UnsupportedError",
    "UsageError",
    "commit",
    "cuda_library",
    "devices",
]
