"""prove finds ten seeded faults, and raises no alarm for honest kernels."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from fusebox.torch import Proof, WrongKernel, prove  # noqa: E402
from fusebox.torch._compare import Measure, compare  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-5
C = 96
torch.set_num_threads(1)  # the tensors are small


@pytest.fixture(params=DEVICES)
def device(request: Any) -> str:
    return str(request.param)


def draw(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0, scale: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(device=device, dtype=dtype)


def norm_inputs(dtype: Any, device: str, rows: int = 11, seed: int = 0) -> tuple[Any, ...]:
    """x [rows, C], residual [rows, C], weight [C], bias [C]."""
    shapes: list[tuple[int, ...]] = [(rows, C), (rows, C), (C,), (C,)]
    return tuple(draw(*shape, dtype=dtype, device=device, seed=seed + i) for i, shape in enumerate(shapes))


def layer_norm(x: Any, r: Any, weight: Any, bias: Any) -> Any:
    """LN(x) + r, the sum rounded after the norm is."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS) + r


def rms_norm(x: Any, weight: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def fused_layer_norm(x: Any, r: Any, weight: Any, bias: Any) -> Any:
    """An honest fused kernel: float32 inside, one rounding for the norm and one for the sum."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return (scaled * weight.float() + bias.float()).to(x.dtype) + r


# --- The ten seeded faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_fault_wrong_order(dtype: Any, device: str) -> None:
    """LN(x + r) for LN(x) + r is wrong. a + (b + c) for (a + b) + c is as accurate, but not the same bits."""
    inputs = norm_inputs(dtype, device)
    swapped = prove(lambda x, r, w, b: F.layer_norm(x + r, (C,), w, b, EPS), layer_norm, *inputs)
    assert not swapped.ok and not swapped["given"].ok

    three = [draw(9, C, dtype=dtype, device=device, seed=s) for s in range(3)]

    def right(a: Any, b: Any, c: Any) -> Any:
        return (a + b) + c

    def other(a: Any, b: Any, c: Any) -> Any:
        return a + (b + c)

    proof = prove(other, right, *three)
    assert not proof.identical and not proof["random"].difference.identical
    first = proof["given"].difference.first
    assert first is not None and first.fused != first.plain
    assert (other(*three)[first.index].item(), right(*three)[first.index].item()) == (first.fused, first.plain)
    assert torch.equal(other(*three).reshape(-1)[: first.index[0] * C], right(*three).reshape(-1)[: first.index[0] * C])
    assert not prove(other, right, *three, tolerance=0.0).ok
    assert prove(right, right, *three, tolerance=0.0).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("empty", [True, False])
def test_fault_missing_last_row(dtype: Any, device: str, empty: bool) -> None:
    def fused(*args: Any) -> Any:
        right = layer_norm(*args)
        out = torch.empty_like(right) if empty else torch.zeros_like(right)
        if right.shape[0] > 1:
            out[:-1] = right[:-1]
        return out

    proof = prove(fused, layer_norm, *norm_inputs(dtype, device))
    assert not proof.ok and not proof["unwritten"].ok and not proof["batch 2"].ok
    assert not empty or proof["unwritten"].difference.nonfinite == C
    short = prove(lambda *args: layer_norm(*args)[:-1], layer_norm, *norm_inputs(dtype, device))
    assert not short.ok and "shape [10, 96]" in short["given"].difference.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fault_missing_rounding(dtype: Any, device: str) -> None:
    """Without plain's rounding in between: other bits, no less accurate. A bound of 0 refuses it."""

    def fused(x: Any, r: Any, w: Any, b: Any) -> Any:
        return (F.layer_norm(x.float(), (x.shape[-1],), w.float(), b.float(), EPS) + r.float()).to(x.dtype)

    inputs = norm_inputs(dtype, device)
    proof = prove(fused, layer_norm, *inputs)
    given = proof["given"].difference
    assert proof.ok, str(proof)
    assert not proof.identical and given.differing > 0 and given.first is not None
    assert given.fused_norm is not None and given.plain_norm is not None and given.fused_norm <= given.plain_norm
    assert not prove(fused, layer_norm, *inputs, tolerance=0.0).ok


@pytest.mark.parametrize("kind", ["result", "buffer"])
def test_fault_stale_output(device: str, kind: str) -> None:
    """A result of an earlier call, and a right result in a buffer that the next call overwrites."""
    kept: dict[Any, Any] = {}

    def fused(*args: Any) -> Any:
        key = args[0].shape
        if kind == "result":
            return kept.setdefault(key, layer_norm(*args))
        return kept.setdefault(key, torch.empty_like(args[0])).copy_(layer_norm(*args))

    inputs = norm_inputs(torch.float32, device)
    proof = prove(fused, layer_norm, *inputs)
    assert not proof.ok and not proof["called twice"].ok
    assert kind == "buffer" or not proof["random"].ok
    assert prove(fused, layer_norm, *inputs, reuses_output=True).ok == (kind == "buffer")


def test_fault_race_over_rows(device: str) -> None:
    """Two writers of one row: which one is last changes from run to run."""
    turn = itertools.count()

    def fused(x: Any, weight: Any) -> Any:
        out = rms_norm(x, weight)
        if x.shape[0] > 4 and next(turn) % 7 == 6:
            out[3] = rms_norm(x[2:3], weight)[0]
        return out

    proof = prove(fused, rms_norm, draw(8, C, device=device), draw(C, device=device, seed=1))
    assert not proof["run to run"].ok
    assert "runs differ" in proof["run to run"].difference.reason


def test_race_in_the_order_of_additions(device: str) -> None:
    """Every run is accurate, no two are the same: wrong, unless the caller allows it."""
    turn = itertools.count()

    def fused(x: Any) -> Any:
        order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(next(turn))).to(x.device)
        return x[..., order].unflatten(-1, (50, 10)).sum(-1).sum(-1)

    def plain(x: Any) -> Any:
        return x.sum(-1)

    x = draw(8, 500, device=device)
    assert not prove(fused, plain, x)["run to run"].ok
    assert prove(fused, plain, x, deterministic=False).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_fault_eps_placement(dtype: Any, device: str) -> None:
    def fused(x: Any, weight: Any) -> Any:
        wide = x.float()
        return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + EPS)).to(x.dtype) * weight

    inputs = draw(8, C, dtype=dtype, device=device), draw(C, dtype=dtype, device=device, seed=1)
    proof = prove(fused, rms_norm, *inputs)
    assert not proof.ok and not proof["small"].ok
    assert prove(rms_norm, rms_norm, *inputs).identical


@pytest.mark.parametrize("dtype", DTYPES)
def test_fault_nan_dropped(dtype: Any, device: str) -> None:
    def fused(x: Any) -> Any:
        return torch.fmax(x, torch.zeros_like(x))  # the maximum of NaN and 0 is 0

    proof = prove(fused, torch.relu, draw(8, C, dtype=dtype, device=device))
    assert not proof.ok and not proof["nan"].ok and proof["random"].ok
    assert proof["nan"].difference.nonfinite > 0
    clamped = prove(lambda x: torch.exp(x.float()).clamp(max=60000.0).to(x.dtype), torch.exp, draw(8, C, device=device))
    assert not clamped["inf"].ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_fault_stride_ignored(dtype: Any, device: str) -> None:
    def fused(x: Any, weight: Any) -> Any:
        dense = torch.as_strided(x, x.shape, (x.shape[-1], 1), x.storage_offset())
        return rms_norm(dense, weight)

    inputs = draw(8, C, dtype=dtype, device=device), draw(C, dtype=dtype, device=device, seed=1)
    proof = prove(fused, rms_norm, *inputs)
    assert not proof.ok
    assert [row.case for row in proof.wrong] == ["row gaps", "strided", "transposed"]

    def no_offset(x: Any, weight: Any) -> Any:
        return rms_norm(torch.as_strided(x, x.shape, x.stride(), 0), weight)

    assert not prove(no_offset, rms_norm, *inputs)["unaligned"].ok


def test_fault_float16_overflow(device: str) -> None:
    def fused(x: Any, weight: Any) -> Any:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) / x.shape[-1] + EPS) * weight

    inputs = draw(8, C, dtype=torch.float16, device=device), draw(C, dtype=torch.float16, device=device, seed=1)
    proof = prove(fused, rms_norm, *inputs)
    assert not proof.ok and not proof["huge"].ok and not proof["outliers"].ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_fault_uninitialised_tail(dtype: Any, device: str) -> None:
    """Blocks of 32 columns, the last one forgotten where the width is no multiple."""

    def fused(x: Any) -> Any:
        out = torch.empty_like(x)
        whole = x.shape[-1] // 32 * 32
        out[..., :whole] = F.silu(x[..., :whole])
        return out

    proof = prove(fused, F.silu, draw(8, 100, dtype=dtype, device=device))
    assert not proof.ok and not proof["unwritten"].ok
    assert proof["unwritten"].difference.first is not None and proof["unwritten"].difference.first.index == (0, 96)
    assert prove(fused, F.silu, draw(8, 96, dtype=dtype, device=device)).ok


# --- More faults -----------------------------------------------------------------------------------------------------


def test_writing_to_an_input(device: str) -> None:
    def fused(x: Any) -> Any:
        out = x * 2
        x[0, 0] += 1
        return out

    x = draw(4, 8, device=device)
    before = x.clone()
    proof = prove(fused, lambda x: x * 2, x)
    assert not proof["inputs kept"].ok and "input [0]" in proof["inputs kept"].difference.reason
    assert torch.equal(x, before)


def test_plain_in_place(device: str) -> None:
    """Where plain writes to its input, fused must write the same there."""

    def plain(x: Any, y: Any) -> Any:
        return x.add_(y).mul(2)

    inputs = draw(4, 8, device=device), draw(4, 8, device=device, seed=1)
    assert prove(lambda x, y: x.copy_(x + y) * 2, plain, *inputs).ok
    assert not prove(lambda x, y: (x + y) * 2, plain, *inputs).ok


def test_writing_between_rows(device: str) -> None:
    def fused(x: Any) -> Any:
        if not x.is_contiguous() and x.stride(-1) == 1 and x.stride(0) > x.shape[-1]:
            torch.as_strided(x, (1,), (1,), x.shape[-1]).fill_(1.0)
        return x + 1

    assert not prove(fused, lambda x: x + 1, draw(4, 8, device=device))["inputs kept"].ok


def test_refusing_is_not_wrong(device: str) -> None:
    def fused(x: Any) -> Any:
        if not x.is_contiguous():
            raise ValueError("x has strides")
        return x + 1

    proof = prove(fused, lambda x: x + 1, draw(4, 8, device=device))
    assert proof.ok and proof["strided"].verdict == "refused" and "x has strides" in str(proof)


def test_fused_raises(device: str) -> None:
    def fused(x: Any) -> Any:
        raise RuntimeError("no kernel")

    assert len(prove(fused, torch.relu_, draw(4, 8, device=device)).wrong) == 1
    proof = prove(fused, torch.relu, draw(4, 8, device=device))
    assert not proof.ok and len(proof.rows) == 1
    with pytest.raises(WrongKernel, match="no kernel") as caught:
        proof.raise_if_wrong()
    assert caught.value.proof is proof


def test_a_small_error_everywhere_and_one_wrong_element(device: str) -> None:
    x = draw(64, C, device=device)
    assert not prove(lambda x: torch.exp(x) * (1 + 2e-5), torch.exp, x).ok

    def one(x: Any) -> Any:
        out = torch.exp(x)
        out.view(-1)[-1:] *= 1.001
        return out

    proof = prove(one, torch.exp, x)
    assert not proof["given"].ok and proof["given"].difference.differing == 1


def test_both_parts_of_the_rule() -> None:
    """3 units at every element break the rms alone, 100 units at one of 20000 break the maximum alone."""
    exact = torch.full((20000,), 1.5, dtype=torch.float64)
    plain, unit = exact.float(), 2.0**-23
    one = plain.clone()
    one[77] += 100 * unit
    for fused, part in ((plain + 3 * unit, "units rms"), (one, "units at one element")):
        found = compare(fused, plain, Measure(double=exact))
        assert found.verdict == "WRONG" and part in found.reason
        assert compare(fused, plain, Measure(double=exact, row=200000)).verdict == "as accurate"
    two = compare(plain + 2 * unit, plain + 2 * unit * torch.tensor([1.0, -1.0]).repeat(10000), Measure(double=exact))
    assert two.verdict == "as accurate" and two.max_ulp == 4.0 and two.differing == 10000


def test_tolerance(device: str) -> None:
    x = draw(8, C, device=device)

    def fused(x: Any) -> Any:
        return x * 1.0001

    assert prove(fused, lambda x: x * 1, x, tolerance=1e-3)["random"].verdict == "within the bound"
    assert not prove(fused, lambda x: x * 1, x, tolerance=1e-5).ok
    for bad in ({"tolerance": -1.0}, {"trials": 0}, {"repeats": 1}, {"vary": [3]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            prove(fused, torch.relu, x, **bad)


def test_without_float64(device: str) -> None:
    def plain(x: Any) -> Any:
        if x.dtype is torch.float64:
            raise TypeError("float64 is not supported")
        return x.sum(-1)

    x = draw(8, 300, device=device)
    proof = prove(lambda x: x.flip(-1).cumsum(-1)[..., -1], plain, x)
    assert proof.ok and "float64 is not supported" in proof.float64 and "no float64 run" in str(proof)
    assert proof["given"].difference.fused_norm is None
    assert not prove(lambda x: x.sum(-1) * 1.001, plain, x).ok


def test_batch_variance_is_said(device: str) -> None:
    """Other bits for one row alone: reported, and right as long as the row is accurate."""

    def fused(x: Any) -> Any:
        return x.sum(-1) if x.shape[0] > 1 else x.cumsum(-1)[..., -1]

    proof = prove(fused, lambda x: x.cumsum(-1)[..., -1], draw(8, 700, device=device))
    assert proof.ok and "rows have other bits alone" in proof["row alone"].difference.reason


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_wrong_stream() -> None:
    def fused(x: Any) -> Any:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return x + 1

    assert not prove(fused, lambda x: x + 1, draw(64, 64, device="cuda"))["side stream"].ok


# --- Honest pairs ----------------------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def flash(q: Any, k: Any, v: Any) -> Any:
    """Attention by blocks of 5 keys with a running maximum, in float32."""
    qf, kf, vf = q.float(), k.float(), v.float()
    scale = q.shape[-1] ** -0.5
    top = torch.full((*q.shape[:-1], 1), float("-inf"), device=q.device)
    total, out = torch.zeros_like(top), torch.zeros_like(qf)
    for at in range(0, k.shape[-2], 5):
        scores = (qf @ kf[..., at : at + 5, :].transpose(-1, -2)) * scale
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrink = torch.exp(scores - new), torch.exp(top - new)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ vf[..., at : at + 5, :]
        top = new
    return (out / total).to(q.dtype)


def one_pass_sum_of_blocks(x: Any) -> Any:
    return torch.stack([part.float().sum(-1) for part in x.split(7, -1)], -1).sum(-1).to(x.dtype)


def wide_linear(x: Any, w: Any, b: Any) -> Any:
    return (x.float() @ w.float().T + b.float()).to(x.dtype)


def permuted_linear(x: Any, w: Any, b: Any) -> Any:
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(3)).to(x.device)
    return F.linear(x[..., order], w[..., order], b)


def split_k(x: Any, w: Any, b: Any) -> Any:
    half = x.shape[-1] // 2
    parts = x[..., :half].float() @ w[..., :half].float().T, x[..., half:].float() @ w[..., half:].float().T
    return (parts[0] + parts[1] + b.float()).to(x.dtype)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def fused_rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.float().chunk(2, -1)
    (ca, cb), (sa, sb) = cos.float().chunk(2, -1), sin.float().chunk(2, -1)
    return torch.cat((a * ca - b * sa, b * cb + a * sb), -1).to(x.dtype)


def two_outputs(x: Any, r: Any) -> Any:
    total = x + r
    return {"sum": total, "norm": (F.layer_norm(total, (x.shape[-1],)), None)}


def fused_two_outputs(x: Any, r: Any) -> Any:
    total = x + r
    wide = total.float()
    var, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    return {"sum": total, "norm": (((wide - mean) / torch.sqrt(var + 1e-5)).to(x.dtype), None)}


def plain_swiglu(x: Any, gate: Any, up: Any) -> Any:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def fused_swiglu(x: Any, gate: Any, up: Any) -> Any:
    both = x.float() @ torch.cat((gate, up)).float().T
    a, b = both.chunk(2, -1)
    return (a * torch.sigmoid(a) * b).to(x.dtype)


def gathered(table: Any, ids: Any) -> Any:
    return F.embedding(ids, table)


Shapes = tuple[tuple[int, ...], ...]
LINEAR: Shapes = ((9, 200), (48, 200), (48,))
HONEST: dict[str, tuple[Callable[..., Any], Callable[..., Any], Shapes]] = {
    "layer norm, float32 inside": (fused_layer_norm, layer_norm, ((9, C), (9, C), (C,), (C,))),
    "rms norm, divided": (
        lambda x, w: (x.float() / torch.sqrt(x.float().square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * w,
        rms_norm,
        ((9, C), (C,)),
    ),
    "sum, flipped": (lambda x: x.flip(-1).sum(-1), lambda x: x.sum(-1), ((9, 300),)),
    "sum, by blocks": (one_pass_sum_of_blocks, lambda x: x.sum(-1), ((9, 300),)),
    "mean": (lambda x: (x.float().sum(-1) / x.shape[-1]).to(x.dtype), lambda x: x.mean(-1), ((9, 300),)),
    "linear, float32 inside": (wide_linear, F.linear, LINEAR),
    "linear, addmm": (lambda x, w, b: torch.addmm(b, x, w.T), lambda x, w, b: x @ w.T + b, LINEAR),
    "linear, permuted K": (permuted_linear, F.linear, LINEAR),
    "linear, split K": (split_k, F.linear, LINEAR),
    "linear, padded K": (lambda x, w, b: F.linear(F.pad(x, (0, 24)), F.pad(w, (0, 24)), b), F.linear, LINEAR),
    "softmax, unrolled": (
        lambda x: ((e := torch.exp(x.float() - x.float().amax(-1, keepdim=True))) / e.sum(-1, keepdim=True)).to(
            x.dtype
        ),
        lambda x: torch.softmax(x, -1),
        ((9, 120),),
    ),
    "silu times": (
        lambda a, b: (a.float() / (1 + torch.exp(-a.float())) * b.float()).to(a.dtype),
        lambda a, b: F.silu(a) * b,
        ((9, C), (9, C)),
    ),
    "gelu, by erf": (
        lambda x: (0.5 * x.float() * (1 + torch.erf(x.float() * 0.5**0.5))).to(x.dtype),
        F.gelu,
        ((9, C),),
    ),
    "add3, one rounding": (
        lambda a, b, c: (a.float() + b.float() + c.float()).to(a.dtype),
        lambda a, b, c: (a + b) + c,
        ((9, C), (9, C), (9, C)),
    ),
    "rope": (fused_rotate, rotate, ((9, 3, 32), (9, 1, 32), (9, 1, 32))),
    "swiglu, both products at once": (fused_swiglu, plain_swiglu, ((9, 96), (40, 96), (40, 96))),
    "attention, online softmax": (flash, attention, ((3, 2, 7, 16), (3, 2, 23, 16), (3, 2, 23, 16))),
    "two outputs, nested": (fused_two_outputs, two_outputs, ((9, C), (9, C))),
    "copy": (lambda x: x.clone(), lambda x: x + 0, ((9, C),)),
    "batched product": (
        lambda a, b: (a.float() @ b.float()).to(a.dtype),
        torch.bmm,
        ((4, 6, 50), (4, 50, 7)),
    ),
    "one row": (lambda x: x.float().flip(-1).sum(-1).to(x.dtype), lambda x: x.sum(-1), ((1, 40),)),
    "vector": (lambda x: (x.float() * 3 + 1).to(x.dtype), lambda x: x * 3 + 1, ((77,),)),
}


# The others compute in float32 whatever the dtype is.
IN_FLOAT64 = ["sum, flipped", "linear, addmm", "linear, permuted K", "linear, padded K", "copy"]
CASES = [(name, dtype) for name in HONEST for dtype in DTYPES] + [(name, torch.float64) for name in IN_FLOAT64]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_honest(name: str, dtype: Any, device: str) -> None:
    fused, plain, shapes = HONEST[name]
    inputs = [draw(*shape, dtype=dtype, device=device, seed=i) for i, shape in enumerate(shapes)]
    proof = prove(fused, plain, *inputs, trials=2)
    assert proof.ok, f"{name}\n{proof}"


def test_honest_module_with_integers_and_parameters(device: str) -> None:
    """A module, its parameters as inputs, integer ids, a flag and None: only what floats and is no weight varies."""
    table = torch.nn.Parameter(draw(50, 16, device=device))
    ids = torch.arange(12, device=device).reshape(4, 3)
    proof = prove(lambda t, i, flag, _: t[i], lambda t, i, flag, _: gathered(t, i), table, ids, True, None)
    assert proof.identical
    block = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.GELU()).to(device).half()

    def fused(x: Any) -> Any:
        norm, linear = block[0], block[1]
        y = F.layer_norm(x.float(), (32,), norm.weight.float(), norm.bias.float(), norm.eps)
        return F.gelu(F.linear(y, linear.weight.float(), linear.bias.float())).to(x.dtype)

    proof = prove(fused, block, draw(6, 32, dtype=torch.float16, device=device))
    assert proof.ok and not proof.float64, str(proof)


def test_a_kernel_that_crashes_the_gpu() -> None:
    """Nothing can run after it: the proof ends there, and says so."""
    calls = 0

    def crash(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if x.data_ptr() % 16:
            raise RuntimeError("CUDA error: misaligned address\nCompile with `TORCH_USE_CUDA_DSA`")
        return x + 1.0

    proof = prove(crash, lambda x: x + 1.0, draw(4, 8))
    assert not proof.ok and "crashed the GPU: misaligned address (this" in str(proof)
    assert proof.rows[-1].difference.verdict == "WRONG" and proof.rows[-1].case.startswith("after ")


@pytest.mark.parametrize("dtype", DTYPES)
def test_sdpa_and_infinities(dtype: Any, device: str) -> None:
    """Honest but for infinities: where all scores of a row are -inf, SDPA may give 0 and the plain ops NaN."""
    qkv = [draw(3, 2, length, 16, dtype=dtype, device=device, seed=s) for s, length in enumerate((7, 23, 23))]
    # On a GPU, SDPA's own kernels crash on unaligned float32 tensors (torch 2.11); its plain ops do not.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        proof = prove(F.scaled_dot_product_attention, attention, *qkv)
    assert {row.case for row in proof.wrong} <= {"inf", "-inf"}, str(proof)


def test_honest_mask(device: str) -> None:
    """A mask of infinities stays a mask."""
    mask = torch.zeros(7, 7, device=device).masked_fill(torch.ones(7, 7, device=device).triu(1).bool(), float("-inf"))
    qkv = [draw(2, 7, 16, device=device, seed=s) for s in range(3)]

    def plain(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return torch.softmax((q @ k.transpose(-1, -2)) * 0.25 + mask, -1) @ v

    def fused(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)

    proof = prove(fused, plain, *qkv, mask)
    assert proof["random"].ok and proof["given"].ok, str(proof)


def test_plain_rounds_inside(device: str) -> None:
    """Plain converts to float32 and back by itself; the float64 run must not round there."""
    x, weight = draw(8, C, dtype=torch.float32, device=device), draw(C, device=device, seed=1)
    proof = prove(rms_norm, rms_norm, x, weight)
    norm = proof["given"].difference.plain_norm
    assert norm is not None and 1e-9 < norm < 1e-6


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", DTYPES)
def test_honest_compiled(dtype: Any, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer_norm, dynamic=True)
    proof = prove(compiled, layer_norm, *norm_inputs(dtype, device), trials=1)
    assert proof.ok, str(proof)
    assert proof["unwritten"].verdict == "skipped"
    assert prove(layer_norm, compiled, *norm_inputs(dtype, device), trials=1).float64 == ""


# --- What it prints --------------------------------------------------------------------------------------------------


def test_report(device: str) -> None:
    x = draw(8, C, device=device)
    good: Proof = prove(torch.relu, lambda x: x.clamp(min=0), x)
    assert good.raise_if_wrong() is good
    lines = str(good).splitlines()
    assert lines[0].split()[:3] == ["case", "bits", "max"] and lines[1].startswith("given")
    assert lines[-1].startswith("proven: ")
    bad = prove(lambda x: torch.relu(x) + (x < -1) * 1e-3, torch.relu, x)
    assert "WRONG: " in bad.summary() and "first output[" in str(bad)
    page = bad._repr_html_()
    assert page.startswith("<table>") and "WRONG" in page and "<script" not in page
    with pytest.raises(KeyError, match="no case 'nothing'"):
        bad["nothing"]
