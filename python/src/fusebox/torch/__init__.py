"""Fusebox for PyTorch: models with fused layers, single fused ops (`fusebox.torch.ops`), and a proof and a price for
anybody's kernel."""

from __future__ import annotations

from .layers import Report, fuse
from .price import Price, Side, Timing, price
from .prove import Proof, Row, WrongKernel, prove

__all__ = ["Price", "Proof", "Report", "Row", "Side", "Timing", "WrongKernel", "fuse", "price", "prove"]
