"""The forward that takes a layer's place.

The first patched layer of a step looks at the mask, the positions and the cache, and decides for all layers: they
run in the C library, or, if the step asks for something that it does not do, as they were.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch
from torch import Tensor, nn

from ...errors import UsageError
from . import _layer as native
from ._layer import NativeLayer
from ._models import ATTENTIONS, Family, attention_of, hooks_of, parameter_names, weights_of

# A dynamic cache gets room for so many more tokens when it must grow, at least; and an eighth of its length.
GROWTH = 128


# Arguments of a layer that it knows. With another one that is given, the step runs in the original layers.
KNOWN = {
    *("attention_mask", "position_ids", "past_key_values", "layer_past", "use_cache", "position_embeddings"),
    *("output_attentions", "output_hidden_states", "return_dict", "cache_position", "labels", "logits_to_keep"),
    *("num_items_in_batch", "hidden_states"),
}


class Running:
    """A step that is under way."""

    def __init__(self) -> None:
        self.active = False  # its layers run in the C library
        self.began = False  # the same, until the model's forward has ended
        self.kind = "none"  # of its cache
        self.length = 0  # tokens in the cache before the step; 0 for a static cache, which has them on the device
        self.context = 0  # slots that rows may look into
        self.places: dict[torch.device, Tensor] = {}
        self.positions: Tensor | None = None
        self.counted: list[int] = []  # layers whose static entries must be told how many tokens came


class Uncopied:
    """A copy would free the C library's layers a second time."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError("fuse: a model with fused layers cannot be copied or pickled (call report.undo() before)")


class Step(Uncopied):
    """What the layers of a model share. Each thread has a step of its own under way."""

    def __init__(self, family: Family, config: Any) -> None:
        self.family, self.config = family, config
        self.forwards = 0  # eager steps that ran in the C library
        self.fallbacks: dict[str, int] = {}  # eager steps that did not, by reason
        self._lock = threading.Lock()
        self._local = threading.local()
        self._traced = Running()  # torch.compile cannot trace what belongs to a thread

    def running(self) -> Running:
        if torch.compiler.is_compiling():
            return self._traced
        found: Running | None = getattr(self._local, "running", None)
        if found is None:
            found = self._local.running = Running()
        return found

    def ended(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """A hook: the model's forward has ended, without an exception. The layers cannot count this themselves: they
        may be the ones that are not called."""
        run = self.running()
        if run.began:
            run.began = False
            self.count(None)

    def count(self, reason: str | None) -> None:
        """An eager step has ended (None), or runs in the original layers."""
        if torch.compiler.is_compiling():
            return
        with self._lock:
            if reason is None:
                self.forwards += 1
            else:
                self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1


# ---- caches -----------------------------------------------------------------------------------------------------


def cache_layer(cache: Any, index: int) -> Any:
    """The entry of a layer in a cache; a dynamic cache makes entries as they are needed."""
    while len(cache.layers) <= index and getattr(cache, "layer_class_to_replicate", None) is not None:
        cache.layers.append(cache.layer_class_to_replicate())
    return cache.layers[index]


def kind_of(cache: Any, index: int) -> str:
    """"none", "dynamic" or "static"; or, in words, why the cache is none of these."""
    if cache is None:
        return "none"
    if getattr(cache, "offloading", False):
        return "an offloaded cache"
    if not hasattr(cache, "layers"):
        return f"a {type(cache).__name__}"
    entry = cache_layer(cache, index)
    name = type(entry).__name__
    if name == "DynamicLayer":
        return "dynamic"
    return "static" if name == "StaticLayer" and isinstance(entry.cumulative_length, Tensor) else f"a {name}"


class Room:
    """Memory of a dynamic entry with room to spare: k and v [sequences, heads, slots, width]. Copies of the entry share
    it; the first ``used`` slots were given to somebody."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v, self.used = k, v, 0

    def fits(self, entry: Any, before: int, total: int, shape: tuple[int, int, int], like: Tensor) -> bool:
        k, v = self.k, self.v
        return (
            self.used == before
            and total <= k.shape[2]
            and (k.shape[0], k.shape[1], k.shape[3]) == shape
            and k.dtype == like.dtype
            and k.device == like.device
            and entry.keys.data_ptr() == k.data_ptr()
            and entry.values.data_ptr() == v.data_ptr()
        )

    def __deepcopy__(self, memo: Any) -> None:
        return None  # the copied entry has tensors of its own, and makes room for itself


def dynamic_slots(entry: Any, like: Tensor, heads: int, width: int, rows: int) -> tuple[Tensor, Tensor]:
    """k and v with room for ``rows`` more tokens, of which the entry then has its views: what torch.cat would make,
    but with room to spare, so that not every token copies the whole cache. A slot is written once: a cache that was
    cropped gets new memory, because somebody may hold a view of what was there."""
    sequences = like.shape[0]
    if not entry.is_initialized:
        none = like.new_empty((sequences, heads, 0, width))
        entry.lazy_initialization(none, none)
    before = entry.get_seq_length()
    total = before + rows
    if before and entry.keys.shape != (sequences, heads, before, width):
        wanted = (sequences, heads, before, width)
        raise UsageError(f"fuse: the cache has keys {tuple(entry.keys.shape)} (this step needs {wanted})")
    room: Room | None = getattr(entry, "_fusebox_room", None)
    if room is None or not room.fits(entry, before, total, (sequences, heads, width), like):
        shape = (sequences, heads, total + max(GROWTH, total // 8), width)
        room = Room(like.new_empty(shape), like.new_empty(shape))
        if before:
            room.k[:, :, :before].copy_(entry.keys)
            room.v[:, :, :before].copy_(entry.values)
        entry._fusebox_room = room
    room.used = total
    entry.keys, entry.values = room.k[:, :, :total], room.v[:, :, :total]
    return entry.keys, entry.values


def slots(run: Running, cache: Any, index: int, like: Tensor, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """k and v [sequences, heads, slots, width] for the step's rows of a layer."""
    rows = like.shape[1]
    if cache is None:
        shape = (like.shape[0], heads, rows, width)
        return like.new_empty(shape), like.new_empty(shape)
    entry = cache_layer(cache, index)
    if run.kind == "static":
        if not entry.is_initialized:
            none = like.new_empty((like.shape[0], heads, 0, width))
            entry.lazy_initialization(none, none)
        return entry.keys, entry.values
    if torch.compiler.is_compiling():  # the graph must see what becomes of the old tensors
        none = like.new_empty((like.shape[0], heads, rows, width))
        k, v = entry.update(none, none)
        return k, v
    return dynamic_slots(entry, like, heads, width, rows)


def same_cache(run: Running, cache: Any, index: int) -> bool:
    """Whether a layer's entry is like that of the first one: of the same kind, and as long."""
    if cache is None:
        return True
    if kind_of(cache, index) != run.kind:
        return False
    entry = cache_layer(cache, index)
    if run.kind == "static":
        return bool(entry.max_cache_len == run.context)
    return bool(entry.get_seq_length() == run.length)


# ---- the decision of a step ----------------------------------------------------------------------------------------


def is_causal(mask: Tensor | None, position_ids: Tensor | None, positions: Tensor) -> Tensor | None:
    """Whether the mask lets every row see exactly the slots up to its position, and rotary positions are the slots; a
    bool tensor on the device, or None if there is nothing to check. positions [rows]: the slots of the rows."""
    answers = []
    if position_ids is not None:
        answers.append((position_ids == positions).all())
    if mask is not None and mask.dim() == 2:  # of flash attention: which tokens are there
        answers.append((mask != 0).all())
    elif mask is not None:
        causal = torch.arange(mask.shape[-1], device=mask.device) <= positions[:, None]
        if mask.dtype == torch.bool:
            answers.append((mask == causal).all())
        else:  # it is added to the scores: 0, or so little that nothing is left
            nothing = mask <= torch.finfo(mask.dtype).min / 2
            answers.append((torch.where(causal, mask == 0, nothing)).all())
    if not answers:
        return None
    return answers[0] if len(answers) == 1 else answers[0] & answers[1]


def unseen() -> bool:
    """Whether values of tensors cannot be looked at: the step is compiled, or captured in a CUDA graph."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def refuses(step: Step, arguments: dict[str, Any], kind: str, x: Tensor, training: bool) -> str | None:
    """Why the layers cannot do a step, as far as its arguments' kinds tell; None: they can."""
    mask = arguments.get("attention_mask")
    if kind not in ("none", "dynamic", "static"):
        return f"the cache is {kind}"
    if training:
        return "the model is in training mode"
    if arguments.get("output_attentions", getattr(step.config, "output_attentions", False)):
        return "output_attentions is asked for"
    if torch.is_autocast_enabled(x.device.type):
        return "autocast is on"
    if getattr(step.config, "_attn_implementation", None) not in ATTENTIONS:
        return "attention is a function of the caller's"
    if mask is not None and not (isinstance(mask, Tensor) and (mask.dtype == torch.bool or mask.is_floating_point())):
        if not (isinstance(mask, Tensor) and mask.dim() == 2):
            return "the mask is neither of bool nor of floats"
    for name, value in arguments.items():
        if name not in KNOWN and value is not None and value is not False:
            return f"{name} is given"
    return None


def begin(step: Step, run: Running, patch: Patch, x: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Decides for the step. Returns x, or NaN where a compiled step turns out to be none that the layers can do."""
    cache, index, rows = arguments.get(step.family.cache), patch.index, x.shape[1]
    run.kind = kind = kind_of(cache, index)
    run.positions, run.length, run.context = None, 0, rows
    reason = refuses(step, arguments, kind, x, patch.module.training)
    if reason is None:
        if kind == "static":
            entry = cache_layer(cache, index)
            run.context = entry.max_cache_len
            run.positions = torch.arange(rows, device=x.device) + entry.cumulative_length.to(x.device)
            positions = run.positions
        else:
            run.length = 0 if cache is None else cache_layer(cache, index).get_seq_length()
            run.context = run.length + rows
            positions = torch.arange(run.length, run.context, device=x.device)
        causal = is_causal(arguments.get("attention_mask"), arguments.get("position_ids"), positions)
        if causal is not None:
            if unseen():
                x = torch.where(causal, x, torch.nan)
            elif not bool(causal):
                reason = "the mask or the positions are not those of one unpadded sequence a row"
    run.active = run.began = reason is None
    run.places, run.counted = {}, []
    if reason is not None:
        step.count(reason)
    return x


def places_for(run: Running, x: Tensor, layer: NativeLayer) -> Tensor:
    """Where the rows stand, for the device of x; computed once a run."""
    found = run.places.get(x.device)
    if found is None:
        numbers = run.length, x.shape[0], x.shape[1], run.context
        positions = None if run.positions is None else run.positions.to(x.device)
        if torch.compiler.is_compiling():
            found = native.places(x, positions, *numbers, layer.number)
        else:
            if positions is not None:
                positions = positions.expand(x.shape[0], x.shape[1]).contiguous()
            found = layer.places(positions, *numbers)
        run.places[x.device] = found
    return found


# ---- a layer ------------------------------------------------------------------------------------------------------


class Patch(Uncopied):
    """One replaced layer."""

    def __init__(self, module: nn.Module, index: int, step: Step, make: Callable[[dict[str, Tensor]], NativeLayer]):
        self.module, self.index, self.step = module, index, step
        self.first = self.last = False  # of the patched layers
        self.returns_tuple = False
        self.original = module.forward
        self._make = make
        self.skipped = 0  # eager steps in the C library in which this layer ran its original
        self.disabled = False
        # Where modules and parameters are, not what they are: somebody may put others there.
        self._slots: list[tuple[Any, str]] = [
            (m._parameters, name) for m in module.modules() for name, p in m._parameters.items() if p is not None
        ]
        self._children: list[tuple[Any, str, nn.Module]] = [
            (m._modules, name, child)
            for m in module.modules()
            for name, child in m._modules.items()
            if child is not None
        ]
        self.past: dict[str, int] = {}  # calls of layers that this one replaced
        self._make_layer()
        config = attention_of(module).config
        heads = config.num_attention_heads
        self.heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.names = parameter_names(module)

    def _make_layer(self) -> None:
        self.layer = self._make(weights_of(self.module))
        self._copied = any(slots[name].data_ptr() not in self.layer.pointers for slots, name in self._slots)
        self._seen = self._fingerprint()

    def _fingerprint(self) -> list[int]:
        seen = [slots[name].data_ptr() for slots, name in self._slots]
        return seen + [slots[name]._version for slots, name in self._slots] if self._copied else seen

    def _changed(self) -> bool:
        """Whether the layer is not made of the modules any more that were proven."""
        for modules, name, child in self._children:
            if modules.get(name) is not child:
                return True
            if (child._forward_hooks or child._forward_pre_hooks) and hooks_of(child):
                return True
        return any(slots.get(name) is None for slots, name in self._slots)

    def refresh(self) -> None:
        """Makes the layer anew if its parameters have moved; or, where they are copies, have changed."""
        if self._fingerprint() == self._seen:
            return
        for row in self.layer.fuses():
            self.past[row["name"]] = self.past.get(row["name"], 0) + row["calls"]
        self._make_layer()

    def calls(self) -> dict[str, int]:
        """How often each fuse's op ran in this layer."""
        return {row["name"]: row["calls"] + self.past.get(row["name"], 0) for row in self.layer.fuses()}

    def _runs(self, run: Running, arguments: dict[str, Any]) -> bool:
        """Whether this layer runs in the C library in the step that is under way."""
        if not run.active:
            return False
        if torch.compiler.is_compiling():
            return same_cache(run, arguments.get(self.step.family.cache), self.index)
        if not self._changed() and same_cache(run, arguments.get(self.step.family.cache), self.index):
            self.refresh()
            return True
        self.skipped += 1
        return False

    def forward(self, hidden_states: Tensor, *positional: Any, **arguments: Any) -> Any:
        if self.disabled:
            return self.original(hidden_states, *positional, **arguments)
        if positional:
            for name, value in zip(self.names[1:], positional):
                arguments[name] = value
        step, x = self.step, hidden_states
        if torch.is_grad_enabled() and (
            x.requires_grad or any(slots[name].requires_grad for slots, name in self._slots if name in slots)
        ):
            raise UsageError("fuse: gradients are on (fused layers have none; use torch.no_grad() or generate())")
        run = step.running()
        if self.first:
            x = begin(step, run, self, x, arguments)
        if not self._runs(run, arguments):
            out = self.original(x, **arguments)
        else:
            cache = arguments.get(step.family.cache)
            k, v = slots(run, cache, self.index, x, self.heads, self.width)
            places = places_for(run, x, self.layer)
            if torch.compiler.is_compiling():
                out = native.layer(x, places, k, v, run.context, self.layer.number)
            else:
                out = self.layer.run(x, places, k, v, run.context)
            if run.kind == "static":
                run.counted.append(self.index)
            out = (out,) if self.returns_tuple else out
        if self.last and run.active:
            self._end(run, arguments.get(step.family.cache), x.shape[1])
        return out

    def _end(self, run: Running, cache: Any, rows: int) -> None:
        """After the last patched layer. Layers that ran their originals have counted for themselves."""
        if run.counted:
            torch._foreach_add_([cache.layers[index].cumulative_length for index in run.counted], rows)
        run.active = False  # a layer that is called alone has no step
        run.places = {}
