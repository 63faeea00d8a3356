"""How a public function reaches its kernel: directly where nothing else wants to see the call, or by the dispatcher.

The dispatcher costs about 5 us. A call needs it if torch.compile traces it, a mode or a transform of torch is
active, a profiler records, or a tensor is not a plain one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.autograd.profiler as profiler
from torch import Tensor

_compiling = torch.compiler.is_dynamo_compiling  # other compilers have a mode
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transform = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state


@dataclass(frozen=True)
class Op:
    """One row of the table of ops. The dispatcher has it as fusebox::NAME(arguments) -> results, and as
    fusebox::NAME_out(arguments, results) -> (). Results are not keyword-only: torch.compile refuses a keyword `out`
    that has gaps."""

    name: str
    arguments: str  # of the schema
    run: Callable[..., Any]  # (*arguments, out): checks, allocates and calls the library
    shape: Callable[..., Any]  # (*arguments): new tensors like the results, without values
    results: tuple[str, ...] = ("out",)


def direct() -> bool:
    """Whether a public function may call its kernel itself."""
    return not (
        _compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transform() is not None
        or _tracing() is not None
        or profiler._is_profiler_enabled
    )


def dispatched(op: Op, out: Any, *arguments: Any) -> Tensor:
    """Calls an op by the dispatcher. `out`: None, or the tensors for its results. An op with several results returns a
    tuple."""
    if out is None:
        made: Tensor = getattr(torch.ops.fusebox, op.name)(*arguments)
        return made
    given = (out,) if isinstance(out, Tensor) else out
    getattr(torch.ops.fusebox, op.name + "_out")(*arguments, *given)
    into: Tensor = out
    return into
