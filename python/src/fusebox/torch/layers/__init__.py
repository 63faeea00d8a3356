"""Hugging Face models whose layers run in the C library, each one proven before it stays."""

from __future__ import annotations

from ._fuse import Kept, Report, Row, fuse

__all__ = ["Kept", "Report", "Row", "fuse"]
