"""What a call of fusebox.torch.ops costs besides the kernel, on the CPU at tiny shapes, and what that is made of.

    python3 bench/torch_call.py [--seconds 10] [--json]

Each figure is the least of many batches of 100 calls, so that other load on the machine counts as little as possible.

    public      ops.NAME(...), all of it
    torch.ops   torch.ops.fusebox.NAME(...), the same by PyTorch's dispatcher
    dispatcher  torch.ops less what its kernel does; Python is called from C++ there
    gate        the public function, and whether it may skip the dispatcher
    checks      checks of each tensor, and packing of the library's structs
    alloc       torch.empty_like, or new_empty, for the results
    ctypes      calling the C function and converting its arguments
    C           the C function
    over C      public less C
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
import timeit
from typing import Any, Callable

import torch

from fusebox.torch import ops
from fusebox.torch.ops import _tensors, elementwise, heads, norms, projections, quantised
from fusebox.torch.ops._call import Op

BATCH = 100
COLS, OUTPUTS = 64, 16
COLUMNS = ("public", "torch.ops", "dispatcher", "gate", "checks", "alloc", "ctypes", "C", "over C")


class Case:
    def __init__(self, op: Op, public: Callable[..., Any], given: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        self.op, self.public, self.given, self.arguments = op, public, given, arguments


def cases() -> list[Case]:
    x, r, c = (torch.randn(1, COLS) for _ in range(3))
    w, b = torch.randn(COLS), torch.randn(COLS)
    m, mb = torch.randn(OUTPUTS, COLS), torch.randn(OUTPUTS)
    h, positions = torch.randn(1, 2, 32), torch.zeros(1, dtype=torch.int64)
    q, k = torch.randn(2, 1, 32), torch.randn(2, 4, 32)
    weight = ops.quantize_weight(m, "q8_0")
    KEPT.append(weight)
    return [
        Case(norms.LAYER_NORM, ops.layer_norm, (x, w, b), (x, w, b, 1e-5)),
        Case(norms.RMS_NORM, ops.rms_norm, (x, w), (x, w, 1e-6)),
        Case(norms.LAYER_NORM_RESIDUAL, ops.layer_norm_residual, (x, r, w, b), (x, r, w, b, 1e-5)),
        Case(norms.ADD_NORM, ops.add_norm, ((x, r), w, b), (x, r, None, w, b, 1e-5, "layer_norm")),
        Case(elementwise.ADD3, ops.add3, (x, r, c), (x, r, c)),
        Case(elementwise.SILU_MUL, ops.silu_mul, (x, r), (x, r)),
        Case(projections.LINEAR_BIAS_ACT, ops.linear_bias_act, (x, m, mb), (x, m, mb, "none")),
        Case(
            projections.NORM_LINEAR,
            ops.norm_linear,
            (x, w, b, m, mb),
            (x, w, b, m, mb, 1e-5, "layer_norm", "none"),
        ),
        Case(projections.SWIGLU, ops.swiglu, (x, m, m), (x, m, m, "dual")),
        Case(heads.ROPE, ops.rope, (h, positions), (h, positions, None, 1e4, None)),
        Case(heads.ATTENTION, ops.attention, (q, k, k), (q, k, k, None, None, False)),
        Case(quantised.LINEAR_QUANTISED, ops.linear_q8_0, (x, weight), (x, weight.number, None)),
    ]


def c_call(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The C function that a case calls, and its arguments."""
    calls: list[tuple[Any, tuple[Any, ...]]] = []
    pointer = type(ctypes.CDLL(None).free).__mro__[1]
    swapped: list[tuple[Any, Any, Any]] = []

    def recorder(function: Any) -> Callable[..., int]:
        def record(*arguments: Any) -> int:
            calls.append((function, arguments))
            status: int = function(*arguments)
            return status

        return record

    kept = dict(quantised._FUNCTIONS)
    for module in (norms, elementwise, projections, heads):
        for name, value in list(vars(module).items()):
            if isinstance(value, pointer):
                swapped.append((module, name, value))
                setattr(module, name, recorder(value))
    quantised._FUNCTIONS.update({name: recorder(value) for name, value in kept.items()})
    try:
        results = case.op.run(*case.arguments, None)
    finally:
        for module, name, value in swapped:
            setattr(module, name, value)
        quantised._FUNCTIONS.update(kept)
    assert len(calls) == 1, case.op.name
    KEPT.append(results)
    return calls[0]


KEPT: list[Any] = []  # what recorded calls use by address


def allocation(case: Case, results: Any) -> Callable[[], Any]:
    """What the op does to get memory for its results."""
    x = case.arguments[0]
    made = results if isinstance(results, tuple) else (results,)
    if made[0].shape == x.shape and case.op is not heads.ATTENTION and case.op is not heads.ROPE:
        if len(made) == 1:
            return lambda: torch.empty_like(x)
        return lambda: [torch.empty_like(x) for _ in made]
    shape = tuple(made[0].shape)
    return lambda: _tensors.new(x, shape)


def statements(case: Case) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    function, arguments = c_call(case)
    refused = (None, *arguments[1:-1], None)  # no context: refused before anything is done, without a message
    return {
        "public": (case.public, case.given),
        "torch.ops": (getattr(torch.ops.fusebox, case.op.name), case.arguments),
        "run": (case.op.run, (*case.arguments, None)),
        "alloc": (allocation(case, KEPT[-1]), ()),
        "ctypes and C": (function, arguments),
        "ctypes": (function, refused),
    }


def measure(seconds: float) -> tuple[dict[str, dict[str, float]], float]:
    """Least microseconds of each statement of each op, in rounds over all of them; and of PyTorch's own layer_norm."""
    timers = {
        (case.op.name, what): timeit.Timer("f(*a)", globals={"f": function, "a": arguments})
        for case in cases()
        for what, (function, arguments) in statements(case).items()
    }
    x, w = torch.randn(1, COLS), torch.randn(COLS)
    yardstick = ("torch", "layer_norm")
    timers[yardstick] = timeit.Timer("f(*a)", globals={"f": torch.nn.functional.layer_norm, "a": (x, (COLS,), w, w)})
    least = {key: float("inf") for key in timers}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, timer in timers.items():
            least[key] = min(least[key], timer.timeit(BATCH) / BATCH * 1e6)
    torchs = least.pop(yardstick)
    found: dict[str, dict[str, float]] = {}
    for (name, what), value in least.items():
        found.setdefault(name, {})[what] = value
    return found, torchs


def parts(t: dict[str, float]) -> dict[str, float]:
    c = t["ctypes and C"] - t["ctypes"]
    return {
        "public": t["public"],
        "torch.ops": t["torch.ops"],
        "dispatcher": t["torch.ops"] - t["run"],
        "gate": t["public"] - t["run"],
        "checks": t["run"] - t["alloc"] - t["ctypes and C"],
        "alloc": t["alloc"],
        "ctypes": t["ctypes"],
        "C": c,
        "over C": t["public"] - c,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times, torchs = measure(options.seconds)
    table = {name: parts(of_op) for name, of_op in times.items()}
    if options.json:
        print(json.dumps({"torch layer_norm": torchs, "ops": table}, indent=1))
        return
    print(f"Microseconds of a call at [1, {COLS}], CPU, torch {torch.__version__}")
    print(f"PyTorch's own layer_norm takes {torchs:.2f}: a yardstick for this machine and its load")
    print(f"{'op':<20}" + "".join(f"{column:>11}" for column in COLUMNS))
    for name, row in table.items():
        print(f"{name:<20}" + "".join(f"{row[column]:11.2f}" for column in COLUMNS))


if __name__ == "__main__":
    main()
