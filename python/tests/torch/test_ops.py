"""fusebox.torch.ops: values, memory layouts, outputs, threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusebox  # noqa: E402
from fusebox.torch import ops  # noqa: E402
from fusebox.torch.ops import _register  # noqa: E402
from ops_cases import DEVICES, DTYPES, EPS, STORE, Case, as_tuple, cases, decoded, out_of, random  # noqa: E402

IDS = [f"{case.name}-{k}" for k, case in enumerate(cases())]


@pytest.fixture(params=DEVICES)
def device(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: Any) -> Any:
    return request.param


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def check_values(case: Case, have: tuple[Any, ...], dtype: Any) -> None:
    """The largest and the root mean square error are at most twice those of torch's ops in this dtype, or twice what
    rounding the exact result costs, if that is more."""
    wide = [t.double() if t.is_floating_point() else t for t in case.tensors]
    truth, naive = as_tuple(case.reference(*wide)), as_tuple(case.reference(*case.tensors))
    for result, exact, plain in zip(have, truth, naive):
        assert result.dtype == dtype and result.shape == exact.shape
        assert not torch.isnan(result).any()
        rounding = exact.abs() * STORE[dtype]
        for order in (float("inf"), 2):
            error, naive_error, rounded = (
                float(torch.linalg.vector_norm(t, order)) for t in (result - exact, plain - exact, rounding)
            )
            assert error <= 2 * max(naive_error, rounded), case.name


def test_every_op_has_a_case() -> None:
    quantised = {"quantize_q8", "linear_quantised", "linear_blocks"}  # below
    assert {case.name for case in cases()} | quantised == {op.name for op in _register.TABLE}


@pytest.mark.parametrize("index", range(len(IDS)), ids=IDS)
def test_values(index: int, dtype: Any, device: str) -> None:
    case = cases(dtype, device)[index]
    have = as_tuple(case.public(*case.tensors, None))
    check_values(case, have, dtype)
    out = out_of(have)
    given = case.public(*case.tensors, out)
    assert all(a is b for a, b in zip(as_tuple(given), as_tuple(out)))
    assert all(same_bits(a, b) for a, b in zip(as_tuple(out), have))
    by_dispatcher = as_tuple(getattr(torch.ops.fusebox, case.name)(*case.dispatched))
    assert all(same_bits(a, b) for a, b in zip(by_dispatcher, have))
    assert all(a.stride() == b.stride() for a, b in zip(by_dispatcher, have))


def test_the_bound_can_be_missed() -> None:
    case = cases()[0]
    have = case.public(*case.tensors, None)
    check_values(case, (have,), torch.float32)
    have[0, 0, 0] += 1e-3
    with pytest.raises(AssertionError):
        check_values(case, (have,), torch.float32)


# ---- the same bits as separate ops ---------------------------------------------------------------------------


def test_fused_is_composed(dtype: Any, device: str) -> None:
    like = {"dtype": dtype, "device": device}
    x, r, c = (random(5, 96, seed=seed, **like) for seed in range(3))
    w, b, w2 = (random(96, seed=seed, **like) for seed in range(3))
    m, m3, mb = random(33, 96, **like), random(33, 96, seed=1, **like), random(33, **like)
    assert same_bits(ops.layer_norm_residual(x, r, w, b), ops.layer_norm(x, w, b) + r)
    assert same_bits(ops.add3(x, r, c), (x + r) + c)
    total, normed, second = ops.add_norm((x, r, c), w, b, second=(w2, None))
    assert same_bits(total, (x + r) + c)
    assert same_bits(normed, ops.layer_norm(total, w, b)) and same_bits(second, ops.layer_norm(total, w2))
    total, normed = ops.add_norm((x, r), w, eps=EPS, norm="rms_norm")
    assert same_bits(normed, ops.rms_norm(total, w, EPS))
    # On a GPU up to 8 rows: the norm is not stored; the bits are those of the same kernel with it stored.
    assert same_bits(ops.norm_linear(x, w, b, m, mb), ops.linear_bias_act(ops.layer_norm(x, w, b), m, mb))
    gate, up = ops.linear_bias_act(x, m), ops.linear_bias_act(x, m3)
    for strategy in ("vector", "accumulator", "dual"):
        assert same_bits(ops.swiglu(x, m, m3, strategy=strategy), ops.silu_mul(gate, up)), strategy


# ---- quantised weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, tolerance", [("q4_0", 0.12), ("q8_0", 0.012)])
def test_quantised(kind: str, tolerance: float, dtype: Any, device: str) -> None:
    linear = ops.linear_q4_0 if kind == "q4_0" else ops.linear_q8_0
    x, w, b = random(2, 3, 64, dtype=dtype, device=device), random(48, 64, device=device), random(48, device=device)
    weight = ops.quantize_weight(w, kind)
    have = linear(x, weight, b)
    exact = x.double() @ w.double().T + b.double()
    assert have.dtype == dtype and float((have - exact).norm() / exact.norm()) < tolerance
    quantised = ops.quantize_q8(x)
    assert same_bits(linear(quantised, weight, b), have)
    wide = linear(quantised, weight, b, dtype=torch.float32)
    assert wide.dtype == torch.float32 and same_bits(wide.to(dtype), have)
    out = torch.full_like(have, float("nan"))
    assert linear(x, weight, b, out=out) is out and same_bits(out, have)
    out = torch.full_like(have, float("nan"))
    assert linear(quantised, weight, b, out=out) is out and same_bits(out, have)


def test_blocks(device: str) -> None:
    x = random(3, 96, device=device)
    blocks = ops.quantize_q8(x).blocks.cpu()
    assert blocks.shape == (3, 3, 40) and blocks.dtype == torch.uint8
    scale = blocks[..., :4].clone().view(torch.float32)
    sums = blocks[..., 4:8].clone().view(torch.int32)
    q = blocks[..., 8:].clone().view(torch.int8)
    assert torch.equal(q.int().sum(-1, keepdim=True, dtype=torch.int32), sums)
    assert torch.allclose((q * scale).flatten(1), decoded(x.cpu()), atol=1e-6)


def test_pack_weight(device: str) -> None:
    """A block of Q8_0: scale 0.5 and the integers 0 to 31."""
    scale = torch.tensor([0.5], dtype=torch.float16).view(torch.uint8)
    block = torch.cat([scale, torch.arange(32, dtype=torch.uint8)]).to(device)
    weight = ops.pack_weight(block.repeat(2, 1), "q8_0", 2, 32)
    have = ops.linear_q8_0(torch.ones(1, 32, device=device), weight)
    assert torch.allclose(have, torch.full((1, 2), 0.5 * sum(range(32)), device=device), rtol=1e-4)


# ---- memory --------------------------------------------------------------------------------------------------


def layouts(x: Any) -> dict[str, Any]:
    """The values of x [2, 3, cols] in other memory."""
    wide = torch.full((2, 3, x.shape[-1] + 5), float("nan"), dtype=x.dtype, device=x.device)
    wide[..., 3:-2] = x
    odd = torch.full((x.numel() + 1,), float("nan"), dtype=x.dtype, device=x.device)
    odd[1:] = x.flatten()
    swapped = x.transpose(0, 1).contiguous().transpose(0, 1)
    return {
        "gaps": wide[..., 3:-2],
        "unaligned": odd[1:].view(x.shape),
        "does not collapse": swapped,
        "columns first": x.transpose(0, 2).contiguous().transpose(0, 2),
    }


@pytest.mark.parametrize("index", [k for k, name in enumerate(IDS) if not name.startswith(("rope", "attention"))])
def test_layouts(index: int, device: str) -> None:
    case = cases(torch.float16, device)[index]
    have = as_tuple(case.public(*case.tensors, None))
    for name, x in layouts(case.tensors[0]).items():
        again = as_tuple(case.public(x, *case.tensors[1:], None))
        assert all(same_bits(a, b) for a, b in zip(again, have)), name
        assert all(t.is_contiguous() for t in again)


@pytest.mark.parametrize("index", [k for k, name in enumerate(IDS) if not name.startswith(("rope", "attention"))])
def test_leading_dimensions(index: int, device: str) -> None:
    case = cases(torch.float32, device)[index]
    x = case.tensors[0]
    have = as_tuple(case.public(*case.tensors, None))
    flat = [t.flatten(0, 1) if t.shape == x.shape else t for t in case.tensors]
    assert all(same_bits(a, b.flatten(0, 1)) for a, b in zip(as_tuple(case.public(*flat, None)), have))
    row = [t[1, 2] if t.shape == x.shape else t for t in case.tensors]
    for a, b in zip(as_tuple(case.public(*row, None)), have):
        assert a.shape == b.shape[2:] and torch.allclose(a, b[1, 2], rtol=1e-5, atol=1e-6)
    empty = [t[:, :0] if t.shape == x.shape else t for t in case.tensors]
    assert all(t.shape == (2, 0, b.shape[-1]) for t, b in zip(as_tuple(case.public(*empty, None)), have))


def test_expanded_input(device: str) -> None:
    x, r, w = random(1, 64, device=device), random(4, 64, device=device), random(64, device=device)
    expected = ops.layer_norm_residual(x.repeat(4, 1), r, w)
    assert same_bits(ops.layer_norm_residual(x.expand(4, 64), r, w), expected)
    assert same_bits(ops.layer_norm(x.expand(3, 4, 64), w)[2, 1], ops.layer_norm(x, w)[0])


def test_negated_view(device: str) -> None:
    """The imaginary part of a conjugate is a view whose sign lies in the tensor, not in its memory."""
    z = torch.complex(random(3, 64, device=device), random(3, 64, seed=1, device=device))
    part = z.conj().imag
    assert part.is_neg() and same_bits(ops.add3(part, part, part), (part + part) + part)
    one = z[:1, :1].conj().imag
    assert one.is_neg() and one.is_contiguous() and same_bits(ops.add3(one, one, one), (one + one) + one)


def test_output_with_gaps(device: str) -> None:
    x, w = random(2, 3, 64, device=device), random(64, device=device)
    memory = torch.full((2, 3, 70), float("nan"), device=device)
    ops.layer_norm(x, w, out=memory[..., 1:65])
    assert same_bits(memory[..., 1:65].contiguous(), ops.layer_norm(x, w))
    assert memory[..., 0].isnan().all() and memory[..., 65:].isnan().all()


def test_output_in_place(device: str) -> None:
    x, r, w = random(4, 64, device=device), random(4, 64, seed=1, device=device), random(64, device=device)
    expected = ops.layer_norm_residual(x, r, w)
    version = r._version
    ops.layer_norm_residual(x, r, w, out=r)
    assert same_bits(r, expected) and r._version > version  # autograd must hear of it


def test_attention_layouts(dtype: Any, device: str) -> None:
    like = {"dtype": dtype, "device": device}
    q, k, v = random(2, 4, 3, 32, **like), random(2, 2, 9, 32, **like), random(2, 2, 9, 32, seed=1, **like)
    have = ops.attention(q, k, v)
    assert have.transpose(1, 2).is_contiguous()
    for b in range(2):
        assert same_bits(ops.attention(q[b], k[b], v[b]), have[b])
    other = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert same_bits(ops.attention(*other), have)
    last = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v)]
    assert same_bits(ops.attention(*last), have)
    five = [t[:, None] for t in (q, k, v)]
    assert same_bits(ops.attention(*five)[:, 0], have)
    # Rows at positions of their own see no key behind them.
    poisoned = k.clone()
    poisoned[:, :, 5:] = float("nan")
    early = ops.attention(q, poisoned, v, positions=torch.tensor([1, 2, 4], device=device, dtype=torch.int32))
    assert not early.isnan().any()
    assert same_bits(early[:, :, 2], ops.attention(q[:, :, 2:], k[:, :, :5], v[:, :, :5])[:, :, 0])


def test_heads_without_a_batch(device: str) -> None:
    """What needs no copy takes a shorter way: its bits and strides are those of the long one, which `out` takes."""
    wide = torch.full((1, 2, 20, 40), float("nan"), device=device)
    k, v = wide[:, :, :9, :32], wide[:, :, 9:18, 8:]  # a cache with room behind it
    k.copy_(random(1, 2, 9, 32, device=device))
    v.copy_(random(1, 2, 9, 32, seed=1, device=device))
    q = random(1, 4, 3, 32, device=device)
    for given in ((q, k, v), (q[0], k[0], v[0])):
        have, out = ops.attention(*given), torch.empty_like(given[0])
        assert same_bits(ops.attention(*given, out=out), have) and not have.isnan().any()
        assert have.transpose(-3, -2).is_contiguous()
    x, positions = random(5, 3, 40, device=device)[..., :32], torch.arange(5, device=device)
    have = ops.rope(x, positions)
    assert have.is_contiguous() and same_bits(ops.rope(x, positions, out=torch.empty_like(have)), have)
    # The sign of a negated view lies in the tensor, also where its memory has no gaps.
    z = torch.complex(x.contiguous(), x.contiguous())
    negative = z.conj().imag.as_strided((5, 3, 32), (96, 32, 1))
    assert negative.is_neg() and same_bits(ops.rope(negative, positions), ops.rope(negative.clone(), positions))
    assert same_bits(ops.attention(negative, negative, negative), ops.attention(*[negative.clone()] * 3))
    with pytest.raises((fusebox.UsageError, NotImplementedError)):
        ops.attention(q[0], k[0].to_sparse(), v[0])


def test_rope_options(device: str) -> None:
    x, positions = random(2, 5, 3, 32, device=device), torch.arange(5, device=device)
    have = ops.rope(x, positions)
    assert same_bits(ops.rope(x, positions.int()), have)
    assert same_bits(ops.rope(x, positions.expand(2, 5)), have)
    assert same_bits(ops.rope(x.transpose(1, 2).contiguous().transpose(1, 2), positions), have)
    part = ops.rope(x, positions, rotary=8)
    assert same_bits(part[..., 8:].contiguous(), x[..., 8:].contiguous()) and not torch.equal(part, x)
    given = [10000.0 ** (-i / 16) for i in range(16)]
    assert torch.allclose(ops.rope(x, positions, frequencies=given), have, atol=1e-6)
    assert same_bits(ops.rope(x, positions, theta=500.0, frequencies=[0.0] * 16), x)
    out = x.clone()
    assert ops.rope(out, positions, out=out) is out and same_bits(out, have)
    assert ops.rope(x[:, :0], positions[:0]).shape == (2, 0, 3, 32)


# ---- threads -------------------------------------------------------------------------------------------------


def test_threads() -> None:
    """Threads that call at the same time get their own results."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        x, w, m = random(3, 64, seed=seed), random(64, seed=seed), random(16, 64, seed=seed)
        normed, product = ops.layer_norm(x, w), ops.linear_bias_act(x, m)
        for _ in range(300):
            if not torch.equal(ops.layer_norm(x, w), normed) or not torch.equal(ops.linear_bias_act(x, m), product):
                wrong.append("values")
            try:
                ops.layer_norm(x, w[: 10 + seed])
            except ValueError as error:
                if f"columns {10 + seed} " not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
