"""Single fused ops for PyTorch: the engine's own kernels on tensors of the CPU and of CUDA devices.

    from fusebox.torch import ops

    y = ops.layer_norm_residual(x, residual, weight, bias)

Activations are float32, float16 or bfloat16. Kernels compute in float32, and round wherever separate ops would have
stored. Ops have no gradient. They work in torch.compile (as torch.ops.fusebox.NAME) and in CUDA graphs.
"""

from __future__ import annotations

from . import _register as _register
from ._context import reserve
from .elementwise import add3, silu_mul
from .heads import attention, rope
from .norms import add_norm, layer_norm, layer_norm_residual, rms_norm
from .projections import linear_bias_act, norm_linear, swiglu
from .quantised import (
    QuantizedActivations,
    QuantizedWeight,
    linear_q4_0,
    linear_q8_0,
    pack_weight,
    quantize_q8,
    quantize_weight,
)

__all__ = [
    "QuantizedActivations",
    "QuantizedWeight",
    "add3",
    "add_norm",
    "attention",
    "layer_norm",
    "layer_norm_residual",
    "linear_bias_act",
    "linear_q4_0",
    "linear_q8_0",
    "norm_linear",
    "pack_weight",
    "quantize_q8",
    "quantize_weight",
    "reserve",
    "rms_norm",
    "rope",
    "silu_mul",
    "swiglu",
]
