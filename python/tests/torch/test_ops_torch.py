"""fusebox.torch.ops inside torch: opcheck, torch.compile, modes, gradients, refusals, streams and graphs."""

from __future__ import annotations

import re
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import fusebox  # noqa: E402
from fusebox.torch import ops as typed_ops  # noqa: E402
from ops_cases import DEVICES, EPS, as_tuple, cases, op_named, out_of, random  # noqa: E402

ops: Any = typed_ops  # many calls here are wrong on purpose
IDS = [f"{case.name}-{k}" for k, case in enumerate(cases())]
each_case = pytest.mark.parametrize("index", range(len(IDS)), ids=IDS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=DEVICES)
def device(request: Any) -> str:
    return str(request.param)


# ---- the dispatcher ------------------------------------------------------------------------------------------


def check_op(name: str, arguments: list[Any]) -> None:
    functional, into = (getattr(torch.ops.fusebox, name + end).default for end in ("", "_out"))
    torch.library.opcheck(functional, tuple(arguments))
    out = as_tuple(out_of(as_tuple(functional(*arguments))))
    torch.library.opcheck(into, (*arguments, *out))
    into(*arguments, **dict(zip(op_named(name).results, out)))


@each_case
def test_opcheck(index: int, device: str) -> None:
    case = cases(torch.float32, device)[index]
    check_op(case.name, case.dispatched)


def test_opcheck_quantised(device: str) -> None:
    x, b = random(3, 64, device=device), random(48, device=device)
    weight = ops.quantize_weight(random(48, 64, device=device), "q4_0")
    check_op("quantize_q8", [x])
    check_op("linear_quantised", [x, weight.number, b])
    check_op("linear_blocks", [ops.quantize_q8(x).blocks, weight.number, None, torch.float16])


@each_case
def test_compile(index: int, device: str) -> None:
    case = cases(torch.float32, device)[index]
    torch._dynamo.reset()  # it gives up on a function that it has compiled for eight others
    compiled = torch.compile(lambda *tensors: case.public(*tensors, None), fullgraph=True, backend="aot_eager")
    into = torch.compile(case.public, fullgraph=True, backend="aot_eager")
    have = as_tuple(case.public(*case.tensors, None))
    out = out_of(have)
    into(*case.tensors, out)
    for a, b, c in zip(as_tuple(compiled(*case.tensors)), have, as_tuple(out)):
        assert torch.equal(a, b) and torch.equal(c, b) and a.stride() == b.stride()


def test_compile_quantised(device: str) -> None:
    x = random(3, 64, device=device)
    weight = ops.quantize_weight(random(48, 64, device=device), "q8_0")

    def both(x: Any) -> Any:
        return ops.linear_q8_0(x, weight) - ops.linear_q8_0(ops.quantize_q8(x), weight)

    assert not torch.compile(both, fullgraph=True, backend="aot_eager")(x).any()


def test_compile_inductor_and_dynamic_shapes(device: str) -> None:
    r, w, m = random(4, 64, seed=1, device=device), random(64, device=device), random(16, 64, device=device)

    def block(x: Any) -> Any:
        return ops.linear_bias_act(ops.layer_norm_residual(x * 2, r[: x.shape[0]], w), m, activation="silu") + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (4, 3):
        x = random(rows, 64, device=device)
        assert torch.allclose(compiled(x), block(x), atol=1e-5)


def test_modes_see_the_ops(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch traces or records goes through the dispatcher; nothing else does."""
    from torch.utils import _python_dispatch

    seen: list[str] = []
    mode: Any = _python_dispatch.TorchDispatchMode

    class Record(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, w = random(3, 64, device=device), random(64, device=device)
    with Record():
        ops.layer_norm(x, w)
        ops.layer_norm(x, w, out=torch.empty_like(x))
    assert "fusebox.layer_norm.default" in seen and "fusebox.layer_norm_out.default" in seen
    with torch.profiler.profile() as profile:
        ops.layer_norm(x, w)
    assert "fusebox::layer_norm" in {event.key for event in profile.key_averages()}
    traced = torch.jit.trace(lambda x: ops.layer_norm(x, w), x, check_trace=False)
    assert "fusebox::layer_norm" in str(traced.graph)
    monkeypatch.setattr(torch.ops.fusebox, "layer_norm", None)  # a plain call does not come there
    ops.layer_norm(x, w)


def test_subclasses_and_meta() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    w = random(64)
    assert ops.layer_norm(torch.empty(2, 64, device="meta"), w.to("meta")).device.type == "meta"
    with FakeTensorMode() as mode:
        fake = ops.layer_norm(mode.from_tensor(random(2, 64)), mode.from_tensor(w))
    assert fake.shape == (2, 64) and type(fake).__name__ == "FakeTensor"

    base: Any = torch.Tensor

    class Named(base):  # type: ignore[misc]
        pass

    assert type(ops.layer_norm(random(2, 64).as_subclass(Named), w)) is Named


# ---- gradients -----------------------------------------------------------------------------------------------


@each_case
def test_gradients_are_refused(index: int, device: str) -> None:
    case = cases(torch.float32, device)[index]
    have = as_tuple(case.public(*case.tensors, None))
    for k, t in enumerate(case.tensors):
        if not t.is_floating_point():
            continue
        given = list(case.tensors)
        given[k] = torch.nn.Parameter(t)
        for out in (None, out_of(have)):
            with pytest.raises(fusebox.UsageError, match="requires grad .*no_grad"):
                case.public(*given, out)
        with torch.no_grad():
            assert torch.equal(as_tuple(case.public(*given, None))[0], have[0])
    with torch.inference_mode():
        assert torch.equal(as_tuple(case.public(*case.tensors, out_of(have)))[0], have[0])


def test_gradients_are_refused_by_the_dispatcher(device: str) -> None:
    x, w = random(3, 64, device=device).requires_grad_(), random(64, device=device)
    with pytest.raises(fusebox.UsageError, match="x: requires grad"):
        torch.ops.fusebox.layer_norm(x, w, None, EPS)
    compiled = torch.compile(lambda x: ops.layer_norm(x, w), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="requires grad"):
        compiled(x)
    with torch.no_grad():
        assert torch.equal(compiled(x), ops.layer_norm(x, w))


# ---- refusals ------------------------------------------------------------------------------------------------

X, R, W, B = random(2, 3, 64), random(2, 3, 64, seed=1), random(64), random(64, seed=1)
M = random(40, 64)
Q, K = random(4, 3, 32), random(2, 7, 32)
P = torch.arange(3)
Q4 = ops.quantize_weight(M, "q4_0")

REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: ops.layer_norm([1.0], W), "x: list .must be a tensor"),
    (lambda: ops.layer_norm(X, 3), "weight: int .must be a tensor"),
    (lambda: ops.layer_norm(X, None), "weight: NULL"),
    (lambda: ops.layer_norm(X.double(), W), "x: dtype torch.float64 .must be float32, float16 or bfloat16"),
    (lambda: ops.layer_norm(X, W.long()), "weight: dtype torch.int64"),
    (lambda: ops.layer_norm(X, W[:63]), "weight: columns 63 .must be 64"),
    (lambda: ops.layer_norm(X, W[None]), r"weight: shape \[1, 64\] .must be \[columns\]"),
    (lambda: ops.layer_norm(X, B[:1].expand(64)), "weight: stride 0 .must be 1: copy it with .contiguous"),
    (lambda: ops.layer_norm(X, W, M), r"bias: shape \[40, 64\]"),
    (lambda: ops.layer_norm(X, W, eps=-1.0), "eps: -1 .must be finite, at least 0"),
    (lambda: ops.layer_norm(X, W, eps="small"), "eps: 'small' .must be a number"),
    (lambda: ops.layer_norm(torch.tensor(1.0), W), r"x: shape \[\] .must be \[..., columns\]"),
    (lambda: ops.layer_norm(X[..., :0], W[:0]), "x: columns 0 .from 1"),
    (lambda: ops.layer_norm(X, W.to("meta")), "weight: device meta .must be cpu|weight: no data"),
    (lambda: ops.layer_norm(X, W, out=X.half()), "out: dtype f16 .must be f32"),
    (lambda: ops.layer_norm(X, W, out=X[0]), r"out: shape \[3, 64\] .must be \[2, 3, 64\]"),
    (lambda: ops.layer_norm(X, W, out=X.transpose(0, 1).contiguous().transpose(0, 1)), "out: strides .*one distance"),
    (lambda: ops.layer_norm(X[0], W, out=X[0, :1].expand(3, 64)), "out: stride 0 .from 64"),
    (lambda: ops.layer_norm(X, W, out=[1]), "out: list .must be a tensor"),
    (lambda: ops.layer_norm_residual(X, R[0], W), r"residual: shape \[3, 64\] .must be \[2, 3, 64\]"),
    (lambda: ops.layer_norm_residual(X, R.half(), W), "residual: dtype f16 .must be f32"),
    (lambda: ops.add_norm((X,), W), "terms: 1 tensors .must be 2 or 3"),
    (lambda: ops.add_norm((X, R), W, norm="batch_norm"), "norm: 'batch_norm' .must be one of layer_norm, rms_norm"),
    (lambda: ops.add_norm((X, R), W, B, norm="rms_norm"), r"biases\[0\]: a bias .an RMS norm has none"),
    (lambda: ops.add_norm((X, R), W, out=(X,)), "out: 1 tensors .must be 2"),
    (lambda: ops.add_norm((X, R), W, second=(W[:3], None)), r"weights\[1\]: columns 3 .must be 64"),
    (lambda: ops.add_norm((X, R), None), r"weights\[0\]: NULL"),
    (lambda: ops.add_norm((X, R), None, second=(W, None)), r"weights\[0\]: columns 0"),
    (lambda: ops.add_norm((X, R[0]), W), r"terms\[1\]: shape \[3, 64\] .must be \[2, 3, 64\]"),
    (lambda: ops.add_norm((X, R.half()), W), r"terms\[1\]: dtype f16 .must be f32"),
    (lambda: ops.add_norm((X, R), W[None]), r"weight: shape \[1, 64\] .must be \[columns\]"),
    (lambda: ops.add3(X, X, X[:1]), r"c: shape \[1, 3, 64\]"),
    (lambda: ops.linear_bias_act(X, M[:, ::2]), r"weight: strides \[64, 2\] .must be \[32, 1\]: copy"),
    (lambda: ops.linear_bias_act(X, M[:, :32].contiguous()), "weight: columns 32 .must be 64"),
    (lambda: ops.linear_bias_act(X, M, activation="relu"), "activation: 'relu' .must be one of none, gelu"),
    (lambda: ops.linear_bias_act(X, M, W), "bias: columns 64 .must be 40"),
    (lambda: ops.swiglu(X, M, M[:3]), "w3: rows 3 .must be 40"),
    (lambda: ops.swiglu(X, M, M, strategy=["dual"]), r"strategy: \['dual'\] .must be one of vector"),
    (lambda: ops.rope(Q, P[:2]), r"positions: shape \[2\] .must be \[4\]"),
    (lambda: ops.rope(Q, torch.arange(4.0)), "positions: dtype torch.float32 .must be int32 or int64"),
    (lambda: ops.rope(Q, torch.tensor([0, 1, -2, 3])), r"positions\[2\]: -2 .at least 0"),
    (lambda: ops.rope(Q, torch.arange(4), rotary=7), "rotary: 7 .even, from 2 to 32"),
    (lambda: ops.rope(Q, torch.arange(4), rotary=2**40), "rotary: 1099511627776"),
    (lambda: ops.rope(Q, torch.arange(4), frequencies=[1.0]), "frequencies: 1 numbers .must be 16"),
    (lambda: ops.rope(W, P), r"x: shape \[64\] .must be \[..., rows, heads, width\]"),
    (lambda: ops.attention(Q, K[:1].repeat(3, 1, 1), K), "k: heads 3 .must divide q's 4"),
    (lambda: ops.attention(Q, K, K[:, :5]), "v: rows 5 .must be 7"),
    (lambda: ops.attention(Q, K[:, :2], K[:, :2]), "q: rows without positions 3 .from 0 to 2"),
    (lambda: ops.attention(Q[None], K, K), r"k: shape \[2, 7, 32\] .its leading dimensions must be \[1\]"),
    (lambda: ops.attention(Q, K, K, positions=torch.tensor([0, 7, 8])), r"positions\[1\]: 7 .from 0 to 6"),
    (lambda: ops.attention(Q, K, K, scale=float("nan")), "scale: nan .must be finite"),
    (lambda: ops.attention(Q, K.half(), K), "k: dtype f16 .must be f32"),
    (lambda: ops.quantize_weight(M[:, :33], "q4_0"), "columns: 33 .a multiple of 32"),
    (lambda: ops.quantize_weight(M, "q5_0"), "type: 'q5_0' .must be one of q4_0, q8_0"),
    (lambda: ops.quantize_weight(W, "q4_0"), r"w: \[64\] of torch.float32 .must be a float tensor"),
    (lambda: ops.pack_weight(torch.zeros(10, dtype=torch.uint8), "q8_0", 1, 32), "blocks: 10 bytes .*must be 34"),
    (lambda: ops.pack_weight(W, "q8_0", 1, 32), "blocks: torch.float32 .must be a uint8 tensor"),
    (lambda: ops.linear_q8_0(X, Q4), "weight: q4_0 .must be q8_0"),
    (lambda: ops.linear_q4_0(X, M), "weight: Tensor .must be a QuantizedWeight"),
    (lambda: ops.linear_q4_0(X[..., :32], Q4), "x: columns 32 .must be 64"),
    (lambda: ops.linear_q4_0(ops.quantize_q8(X[..., :32]), Q4), "x: 1 blocks .must be 2"),
    (lambda: ops.quantize_q8(X[..., :40]), "x: columns 40 .*32"),
    (lambda: torch.ops.fusebox.linear_quantised(X, 10**9, None), "weight: number 1000000000 "),
    (lambda: ops.reserve(-1), "bytes: -1 .0 to"),
]


@pytest.mark.parametrize("k", range(len(REFUSALS)))
def test_refusals(k: int) -> None:
    call, message = REFUSALS[k]
    with pytest.raises(fusebox.UsageError) as caught:
        call()
    assert re.search(message, str(caught.value)), str(caught.value)


def test_sparse_is_refused() -> None:
    with pytest.raises((fusebox.UsageError, NotImplementedError)):
        ops.layer_norm(X[0].to_sparse(), W)
    with pytest.raises((fusebox.UsageError, NotImplementedError)):
        ops.add3(X[0], X[0].to_sparse(), X[0])


def test_a_freed_weight_is_refused() -> None:
    weight = ops.quantize_weight(M, "q4_0")
    number = weight.number
    torch.ops.fusebox.linear_quantised(X, number, None)
    del weight
    with pytest.raises(fusebox.UsageError, match=f"number {number} "):
        torch.ops.fusebox.linear_quantised(X, number, None)


# ---- CUDA ----------------------------------------------------------------------------------------------------


@needs_cuda
def test_devices_must_agree() -> None:
    with pytest.raises(fusebox.UsageError, match="weight: device cpu .must be cuda:0"):
        ops.layer_norm(X.cuda(), W)
    with pytest.raises(fusebox.UsageError, match="weight: device cuda:0 .must be cpu"):
        ops.layer_norm(X, W.cuda())
    with pytest.raises(fusebox.UsageError, match="weight: device cpu .must be cuda:0"):
        ops.linear_q4_0(X.cuda(), Q4)


@needs_cuda
def test_current_stream() -> None:
    """An op waits for what its stream has to do, and for nothing else."""
    x, w = random(512, 2048, device="cuda"), random(2048, device="cuda")
    expected = ops.layer_norm(x, w)
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        have = ops.layer_norm(late, w)
    side.synchronize()
    assert torch.equal(have, expected)


@needs_cuda
@each_case
def test_graph(index: int) -> None:
    """Captured as torch does it, on a stream of its own on which nothing has run before; replayed with other values."""
    case = cases(torch.float16, "cuda")[index]
    for _ in range(2):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            captured = as_tuple(case.public(*case.tensors, None))
        first = case.tensors[0]
        kept = first.clone()
        first.mul_(0.5)
        expected = as_tuple(case.public(*case.tensors, None))
        for t in captured:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected))
        first.copy_(kept)


@needs_cuda
def test_graph_of_ops_that_grow() -> None:
    """Each captured op needs a larger workspace than the one before it. The graph keeps them all."""
    m = random(8192, 2048, dtype=torch.float16, device="cuda")
    inputs = [random(rows, 2048, dtype=torch.float16, device="cuda") for rows in (16, 512, 4096)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        captured = [ops.swiglu(x, m, m, strategy="vector") for x in inputs]
    for x in inputs:
        x.mul_(0.5)
    ops.reserve(1 << 30)
    graph.replay()
    torch.cuda.synchronize()
    for x, have in zip(inputs, captured):
        assert torch.equal(have, ops.swiglu(x, m, m, strategy="vector"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_other_device() -> None:
    x, w = random(3, 64, device="cuda:1"), random(64, device="cuda:1")
    have = ops.layer_norm(x, w)
    assert have.device == x.device and torch.cuda.current_device() == 0
    assert torch.allclose(have.cpu(), ops.layer_norm(x.cpu(), w.cpu()), atol=1e-5)
