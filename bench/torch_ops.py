"""Times in PyTorch what bench/gpu_ops times in the CUDA backend: norm and residual, (a + b) + c, SwiGLU.

    python3 bench/torch_ops.py [--json] [--seconds 65] [--no-compile] [--mode MODE]

Every row twice: eager, and by torch.compile; both recorded in a CUDA graph of many calls that rotate among several sets
of inputs and weights, together four times the L2 where a set is not tiny. Checked against float64 first; median and 10
to 90 percent of 11 launches of the graph. The ceilings (add, a matrix of 2 GB times a vector, a 16-bit product) are
measured first. Compilations that would begin after --seconds are left out, and said so.
"""

import argparse
import collections
import json
import math
import os
import sys
import time

os.environ.setdefault("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN,TRITON")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

REPEATS = 11
WARM = 3
WARM_CEILING = 100  # until clocks are what they are under load
MOST_SETS = 128
GRAPH_TIME = 2e-3
TOLERANCE = 4e-3
EPS = 1e-5
HALF = torch.float16


def norm_then_add(x, residual, weight, bias):
    return (F.layer_norm(x, (x.shape[-1],), weight, bias, EPS) + residual,)


def add_then_norm(x, residual, weight, bias):
    total = x + residual
    return total, F.layer_norm(total, (total.shape[-1],), weight, bias, EPS)


def add_three(a, b, c):
    return ((a + b) + c,)


def swiglu(x, gate, up):
    return (F.silu(F.linear(x, gate)) * F.linear(x, up),)


def add_two(a, b):
    return (a + b,)


def linear(x, weight):
    return (F.linear(x, weight),)


def random(*shape):
    return torch.empty(shape, dtype=HALF, device="cuda").uniform_(-1, 1)


class Case:
    """A function at a shape: `make` gives a set of its inputs."""

    def __init__(self, name, shape, function, make, flops=0.0, matmul=False):
        self.name, self.shape, self.function, self.make = name, shape, function, make
        self.flops, self.matmul = flops, matmul


def norm_case(name, function, m, n):
    return Case(name, f"[{m}, {n}]", function, lambda: (random(m, n), random(m, n), random(n), random(n)))


def swiglu_case(m, n, k):
    return Case("swiglu", f"M={m} {n}x{k}+{n}x{k}", swiglu, lambda: (random(m, k), random(n, k), random(n, k)), 4.0 * m * n * k, True)


def linear_case(name, m, n, k):
    return Case(name, f"M={m} {n}x{k}", linear, lambda: (random(m, k), random(n, k)), 2.0 * m * n * k, True)


def all_cases():
    shapes = [(1, 2560), (128, 2560), (16384, 2560), (16384, 4096)]
    cases = []
    for m, n in shapes:
        cases.append(norm_case("layernorm + residual", norm_then_add, m, n))
        cases.append(norm_case("add, layernorm", add_then_norm, m, n))
        if n == 2560:
            cases.append(Case("add3", f"[{m}, {n}]", add_three, lambda m=m, n=n: tuple(random(m, n) for _ in range(3))))
    return cases + [swiglu_case(m, 11008, 4096) for m in (1, 4, 512)]


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def check(function, plain, inputs):
    """The largest error of `function`, relative to |want| + rms, in the first and last rows against float64."""
    got = function(*inputs)
    rows = inputs[0].shape[0]
    pick = torch.tensor(sorted({0, rows // 2, rows - 1}), device="cuda")
    # Activations have as many rows as the first input; weights and biases are taken whole.
    activations = {swiglu: 1, linear: 1, norm_then_add: 2, add_then_norm: 2}.get(plain, len(inputs))
    picked = [t[pick] if i < activations else t for i, t in enumerate(inputs)]
    if plain in (swiglu, linear):  # some columns: float64 copies of the weights would be large
        columns = torch.linspace(0, inputs[1].shape[0] - 1, 96, device="cuda").long()
        picked = [picked[0]] + [w[columns] for w in picked[1:]]
        got = [g[:, columns] for g in got]
    want = plain(*[t.double() for t in picked])
    worst = 0.0
    for g, w in zip(got, want):
        g = g[pick].double()
        error = ((g - w).abs() / (w.abs() + w.square().mean().sqrt())).max().item()
        worst = error if not error <= worst else worst
    return worst


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def record(function, sets, launches):
    """A graph of `launches` calls; the outputs of the last round of sets are kept, so that memory is not reused at once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for inputs in sets[:2]:
            function(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept = collections.deque(maxlen=len(sets))
    with torch.cuda.graph(graph):
        for i in range(launches):
            kept.append(function(*sets[i % len(sets)]))
    return graph, kept


def measure(function, sets, launches, warm):
    graph, kept = record(function, sets, launches)
    for _ in range(warm):
        graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for begin, end in marks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    seconds = [1e-3 * begin.elapsed_time(end) / launches for begin, end in marks]
    del graph, kept
    return [quantile(seconds, q) for q in (0.1, 0.5, 0.9)]


class Bench:
    def __init__(self, args):
        self.args = args
        self.began = time.monotonic()
        self.rows = []
        self.rates = {"copy": math.inf, "read": math.inf, "matmul": math.inf}
        self.l2 = max(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0), 32 << 20)
        self.wrong = 0

    def prepare(self, case):
        first = case.make()
        size = bytes_of(first) + bytes_of(case.function(*first))
        count = min(max(-(-4 * self.l2 // size), 1 if size > 1 << 30 else 2), MOST_SETS)
        sets = [first] + [case.make() for _ in range(count - 1)]
        about = max(size / 4e12, case.flops / 6e14) + 4e-6
        rounds = max(1, math.ceil(GRAPH_TIME / about / count))
        return sets, size, count * rounds

    def run(self, case, how, function, prepared, ceiling=None):
        sets, size, launches = prepared
        error = check(function, case.function, sets[0])
        low, middle, high = measure(function, sets, launches, WARM_CEILING if ceiling else WARM)
        if ceiling:
            self.rates[ceiling] = (case.flops if ceiling == "matmul" else size) / middle
        by_bytes = size / self.rates["read" if case.matmul else "copy"]
        by_flops = case.flops / self.rates["matmul"]
        row = {
            "name": case.name,
            "how": how,
            "shape": case.shape,
            "dtype": "f16",
            "us": round(1e6 * middle, 3),
            "us_p10": round(1e6 * low, 3),
            "us_p90": round(1e6 * high, 3),
            "bytes": size,
            "flops": case.flops,
            "gb_per_s": round(1e-9 * size / middle, 1),
            "tflop_per_s": round(1e-12 * case.flops / middle, 2),
            "bound": "bandwidth" if by_bytes >= by_flops else "matmul",
            "percent": round(100 * max(by_bytes, by_flops) / middle, 1),
            "error": error if error == error else 9.99e99,
            "sets": len(sets),
            "launches": launches,
        }
        self.rows.append(row)
        self.wrong += not error <= TOLERANCE
        rate = f"{row['gb_per_s']:8.1f} GB/s" if row["bound"] == "bandwidth" else f"{row['tflop_per_s']:8.1f} TFLOP/s"
        print(
            f"{case.name:22} {how:8} {case.shape:28} {row['us']:10.2f} us [{row['us_p10']:.2f}, {row['us_p90']:.2f}] "
            f"{rate} {row['percent']:5.1f} %  error {error:.1e}{'' if error <= TOLERANCE else '  WRONG'}",
            file=sys.stderr if self.args.json else sys.stdout,
            flush=True,
        )

    def note(self, case, how, text):
        self.rows.append({"name": case.name, "how": how, "shape": case.shape, "left_out": text})
        print(f"{case.name:22} {how:8} {case.shape:28} left out: {text}", file=sys.stderr, flush=True)

    def run_compiled(self, case, prepared):
        if time.monotonic() - self.began > self.args.seconds:
            self.note(case, "compiled", "no time left")
            return
        try:
            torch.compiler.reset()  # or the ninth shape of a function would run eagerly
            mode = None if self.args.mode == "default" else self.args.mode
            function = torch.compile(case.function, dynamic=False, fullgraph=True, mode=mode)
            function(*prepared[0][0])
            self.run(case, "compiled", function, prepared)
        except Exception as error:  # a machine without a compiler still gives the eager rows
            self.note(case, "compiled", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    def run_ceilings(self):
        big = 16384
        for case, ceiling in (
            (Case("ceiling: add", f"[{big}, {big}]", add_two, lambda: (random(big, big), random(big, big))), "copy"),
            (linear_case("ceiling: matvec", 1, 131072, 8192), "read"),
            (linear_case("ceiling: matmul", 4096, 8192, 8192), "matmul"),
        ):
            self.run(case, "eager", case.function, self.prepare(case), ceiling)
            torch.cuda.empty_cache()

    def run_all(self):
        self.run_ceilings()
        cases = all_cases()
        for case in cases:
            prepared = self.prepare(case)
            self.run(case, "eager", case.function, prepared)
            del prepared
        if self.args.no_compile:
            return
        # SwiGLU first: what its matmuls cost is what matters most if time runs out.
        for case in sorted(cases, key=lambda case: not case.matmul):
            self.run_compiled(case, self.prepare(case))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="a JSON array on stdout; the lines go to stderr")
    parser.add_argument("--seconds", type=float, default=65, help="no compilation begins later")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--mode", default="default", help="of torch.compile: default, or max-autotune-no-cudagraphs (slow)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_ops.py: no CUDA device")
    torch.manual_seed(1)
    bench = Bench(args)
    with torch.no_grad():
        bench.run_all()
    if args.json:
        print(json.dumps(bench.rows, indent=1))
    sys.exit(1 if bench.wrong else 0)


if __name__ == "__main__":
    main()
