"""What a model is, what its fuses do to it, and which devices there are."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator

from . import _c
from ._c import call, dtype_name, lib, take_text, text, text_or_none, to_bytes
from ._text import digits, paragraph, plural, preformatted, scaled, shown, table
from .errors import SystemFailure

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Weights:
    """The weights of one dtype."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """What a model is. It prints as ``fusebox info``."""

    path: str
    architecture: str
    """"gpt_neox", "llama" or "gpt2"."""
    layers: int
    hidden: int
    vocab: int
    context: int
    parameters: int
    """Each stored weight counted once."""
    has_tokenizer: bool
    chat_templates: dict[str, str]
    """By name, "default" first: the file beside the model, or the GGUF file's key, that each is from."""
    weights: dict[str, Weights]
    """By dtype."""
    facts: dict[str, str]
    """Every config value that affects the result."""
    program: str
    """The plain program: one op a line, with shapes."""

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "model", self.path
        yield from self.facts.items()
        yield "layers", f"{self.layers}"
        yield "hidden", f"{self.hidden}"
        yield "vocabulary", f"{self.vocab}"
        yield "context", f"{self.context}"
        yield "parameters", f"{scaled(self.parameters)} ({digits(self.parameters)})"
        for name, w in self.weights.items():
            amount = f"{scaled(w.bytes)}B ({digits(w.bytes)} bytes, {digits(w.parameters)} parameters)"
            yield f"{'weights':<12}{name}", amount
        yield "tokenizer", "yes" if self.has_tokenizer else "none"
        names, sources = list(self.chat_templates), list(self.chat_templates.values())
        named = f": {', '.join(names)}" if len(names) > 1 else ""
        yield "chat template", f"{sources[0]}{named}" if names else "none"

    def __str__(self) -> str:
        lines = [f"{name:<24}{shown(value)}" for name, value in self._lines()]
        return "\n".join([*lines, "", shown(self.program, lines=True).rstrip("\n")])

    def _repr_html_(self) -> str:
        return table(["", ""], self._lines()) + preformatted(self.program)


def read_info(model: Model) -> ModelInfo:
    pointer = model._handle.pointer
    info = _c.fb_model_info(size=ctypes.sizeof(_c.fb_model_info))
    lib.fb_model_fill_info(pointer, ctypes.byref(info))
    dtype, count, size = _c.Dtype(), ctypes.c_int64(), ctypes.c_int64()
    weights: dict[str, Weights] = {}
    while lib.fb_model_weights(pointer, len(weights), *map(ctypes.byref, (dtype, count, size))):
        weights[dtype_name(dtype.value)] = Weights(count.value, size.value)
    name, value = ctypes.c_char_p(), ctypes.c_char_p()
    facts: dict[str, str] = {}
    while lib.fb_model_fact(pointer, len(facts), ctypes.byref(name), ctypes.byref(value)):
        facts[text(name.value)] = text(value.value)
    templates: dict[str, str] = {}
    while lib.fb_model_chat_template(pointer, len(templates), ctypes.byref(name), ctypes.byref(value)):
        templates[text(name.value)] = text(lib.fb_model_chat_source(pointer, len(templates)))
    return ModelInfo(
        path=model.path,
        architecture=text(info.architecture),
        layers=info.layers,
        hidden=info.hidden,
        vocab=info.vocab,
        context=info.context,
        parameters=info.parameters,
        has_tokenizer=info.has_tokenizer,
        chat_templates=templates,
        weights=weights,
        facts=facts,
        program=take_text(lib.fb_model_program_text, pointer),
    )


# ---- another type of weights ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FasterType:
    """A smaller type for a model's weights, with which a step would read much less."""

    of: str
    """The type of most weights: "f32"."""
    to: str
    """The smaller one, without much loss: "q8_0"."""
    bytes: float
    """A step would read this many times as much."""
    decoded: bool
    """A GPU decodes the present type to f16."""

    def __str__(self) -> str:
        why = ", which a GPU decodes to f16" if self.decoded else ""
        return (
            f"note: weights are {self.of}{why}; as {self.to} a step would read {self.bytes:.2f} times as much "
            f"(fusebox quantize --type {self.to})"
        )


def read_faster_type(model: Model, isa: str) -> FasterType | None:
    of, to, size = _c.Dtype(), _c.Dtype(), ctypes.c_double()
    handle, outs = model._handle, (ctypes.byref(of), ctypes.byref(to), ctypes.byref(size))
    if not lib.fb_faster_type(handle.pointer, to_bytes("isa", isa), *outs):
        return None
    return FasterType(dtype_name(of.value), dtype_name(to.value), size.value, of.value > _c.dtype("f64"))


# ---- fuses ---------------------------------------------------------------------------------------------------

CONFLICT_RULE = "applied in this order; one whose ops an earlier one has taken does not apply"


@dataclass(frozen=True)
class Fuse:
    """A fuse, and what it does to a model."""

    name: str
    text: str
    """What it combines."""
    bound: str | None
    """How far it may differ from the plain ops; None: not at all."""
    backends: str
    why_not: str | None
    """Why it does not apply to the model, even alone; None: it does."""
    taken_by: str | None
    """The fuse that takes its ops when all are on."""
    in_all: bool
    bit: bool
    """Bit-identical to the plain ops; if False, only with ``exact``."""
    greedy: bool
    """Applies to greedy sessions only."""
    calls_per_step: int

    @property
    def applies(self) -> str:
        """Whether it applies here, in a few words."""
        if self.why_not is not None:
            return f"no: {self.why_not}"
        if self.taken_by is not None:
            return f"alone only: taken by {self.taken_by}"
        return f"yes, {plural(self.calls_per_step, 'call')} a step{', when greedy' if self.greedy else ''}"

    def _cells(self) -> tuple[str, str, str, str, str]:
        return self.name, "bit" if self.bit else "tol", self.backends, self.applies, self.text


@dataclass(frozen=True)
class Fuses:
    """Every fuse, in the order in which they are applied. It prints as ``fusebox fuses``."""

    path: str
    fuses: tuple[Fuse, ...]

    def __iter__(self) -> Iterator[Fuse]:
        return iter(self.fuses)

    def __len__(self) -> int:
        return len(self.fuses)

    def __getitem__(self, name: str) -> Fuse:
        for fuse in self.fuses:
            if fuse.name == name:
                return fuse
        raise KeyError(name)

    _HEADER = ("fuse", "class", "backends", "applies here", "what becomes one")

    def _notes(self) -> Iterator[str]:
        yield f"here: {shown(self.path)}"
        yield "bit: the bits of the plain operators"
        for fuse in self.fuses:
            if not fuse.bit:
                yield f"tol: {fuse.name}: {fuse.bound}"
        yield CONFLICT_RULE

    def __str__(self) -> str:
        rows = [self._HEADER, *(fuse._cells() for fuse in self.fuses)]
        lines = ["{:<12}  {:<5}  {:<9}  {:<54}  {}".format(*row) for row in rows]
        return "\n".join([*lines, "", *self._notes()])

    def _repr_html_(self) -> str:
        return table(self._HEADER, (fuse._cells() for fuse in self.fuses)) + "".join(map(paragraph, self._notes()))


def read_fuses(model: Model) -> Fuses:
    info = _c.fb_fuse_info(size=ctypes.sizeof(_c.fb_fuse_info))
    fuses: list[Fuse] = []
    while lib.fb_model_fill_fuse(model._handle.pointer, len(fuses), ctypes.byref(info)):
        fuses.append(
            Fuse(
                name=text(info.name),
                text=text(info.text),
                bound=text_or_none(info.bound),
                backends=text(info.backends),
                why_not=text_or_none(info.why_not),
                taken_by=text_or_none(info.taken_by),
                in_all=info.in_all,
                bit=info.bit,
                greedy=info.greedy,
                calls_per_step=info.calls_per_step,
            )
        )
    return Fuses(model.path, tuple(fuses))


# ---- devices -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A GPU that the library may be able to use."""

    index: int
    name: str
    isa: str
    memory: int
    memory_free: int
    l2_bytes: int
    multiprocessors: int
    shared_bytes: int
    driver: int
    runtime: int
    why_not: str
    """The reason if it cannot be used; empty if it can."""

    def __str__(self) -> str:
        line = (
            f"cuda:{self.index:<18} {shown(self.name)}, {self.isa}, {self.multiprocessors} multiprocessors, "
            f"{scaled(self.memory)}B ({scaled(self.memory_free)}B free), L2 {scaled(self.l2_bytes)}B, "
            f"{self.shared_bytes // 1024} KB of shared memory a block, "
            f"driver for CUDA {self.driver // 1000}.{self.driver % 1000 // 10}"
        )
        return line + (f"\n{'':24} not usable: {self.why_not}" if self.why_not else "")


class Devices(tuple[Device, ...]):
    """The GPUs that were found. It prints as ``fusebox info --devices``."""

    why_not: str = ""
    """Why there is none."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self or not self.why_not else f"no device: {self.why_not}"


def devices() -> Devices:
    """The GPUs that were found; if there cannot be any, ``why_not`` says why."""
    info, found = _c.fb_device_info(size=ctypes.sizeof(_c.fb_device_info)), ctypes.c_bool()
    result: list[Device] = []
    why_not = ""
    try:
        while True:
            call(lib.fb_device_fill, len(result), ctypes.byref(found), ctypes.byref(info))
            if not found.value:
                break
            values = {name: getattr(info, name) for name, *_ in _c.fb_device_info._fields_ if name != "size"}
            decoded: dict[str, Any] = {name: text(v) if isinstance(v, bytes) else v for name, v in values.items()}
            result.append(Device(index=len(result), **decoded))
    except SystemFailure as error:
        why_not = str(error)
    all_devices = Devices(result)
    all_devices.why_not = why_not
    return all_devices
