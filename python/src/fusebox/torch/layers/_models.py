"""What is particular to each Hugging Face architecture: where its layers are, and what they are called with."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UnsupportedError, UsageError


@dataclass(frozen=True)
class Family:
    """One architecture: the class of its layers, the attribute that holds their list, and the parameters of a layer
    by what they mean."""

    model_type: str
    layer: str
    layers: str
    cache: str
    rotary: str | None


# What transformers calls its own kinds of attention. All compute the same.
ATTENTIONS = {None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}

FAMILIES = {
    family.model_type: family
    for family in (
        Family("gpt_neox", "GPTNeoXLayer", "layers", "layer_past", "rotary_emb"),
        Family("llama", "LlamaDecoderLayer", "layers", "past_key_values", "rotary_emb"),
        Family("gpt2", "GPT2Block", "h", "past_key_values", None),
    )
}


def family_of(model: Any) -> Family:
    """The architecture of a model, or why there is none for it."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UnsupportedError(f"fuse: {type(model).__name__}: model type {kind!r} (a Hugging Face model of {known})")
    return FAMILIES[kind]


def base_of(model: nn.Module, family: Family) -> nn.Module:
    """The module that has the layers."""
    for module in model.modules():
        layers = getattr(module, family.layers, None)
        if isinstance(layers, nn.ModuleList) and len(layers) and type(layers[0]).__name__ == family.layer:
            return module
    raise UnsupportedError(f"fuse: {type(model).__name__}: no list of {family.layer} in it")


def layers_of(base: nn.Module, family: Family) -> list[nn.Module]:
    return list(getattr(base, family.layers))


def attention_of(layer: nn.Module) -> Any:
    """The attention of a layer; its config says how many heads there are."""
    names = ("attention", "self_attn", "attn")
    return next(getattr(layer, name) for name in names if hasattr(layer, name))


def frequencies_of(base: nn.Module, family: Family) -> list[float]:
    """The frequencies that the model uses. ``model.half()`` rounds them to 16 bits: they are not the config's then."""
    if family.rotary is None:
        return []
    return [float(f) for f in getattr(base, family.rotary).inv_freq.double()]


def weights_of(layer: nn.Module) -> dict[str, Tensor]:
    """The layer's parameters as the C library reads them: matrices [outputs, inputs] without gaps. Those of GPT-2
    are stored transposed, so they are copied."""
    turned = {f"{name}.weight" for name, module in layer.named_modules() if type(module).__name__ == "Conv1D"}
    weights = {}
    for name, parameter in layer.named_parameters():
        tensor = parameter.detach()
        weights[name] = tensor.t().contiguous() if name in turned else tensor.contiguous()
    return weights


def hooks_of(module: nn.Module) -> list[Any]:
    """Hooks of others. Transformers' own sleep until output_attentions is asked for; the step then falls back."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return [hook for hook in hooks if getattr(hook, "__module__", "") != "transformers.utils.output_capturing"]


def why_not(layer: nn.Module, family: Family, index: int) -> str | None:
    """Why layer ``index`` cannot be replaced, in a few words; None: it can."""
    if type(layer).__name__ != family.layer:
        return f"it is a {type(layer).__name__}"
    if "forward" in vars(layer) or hasattr(layer, "_hf_hook"):
        return "its forward is replaced already"
    devices = {str(p.device) for p in layer.parameters()}
    dtypes = {str(p.dtype) for p in layer.parameters()}
    if len(devices) > 1:
        return f"its parameters are on {' and '.join(sorted(devices))}"
    if len(dtypes) > 1:
        return f"its parameters are {' and '.join(sorted(dtypes))}"
    for name, module in layer.named_modules():
        if name and (hooks_of(module) or "forward" in vars(module)):
            return f"{name} has a hook or a forward of its own, which would not run"
    if hasattr(layer, "crossattention"):
        return "it has cross attention"
    attention = attention_of(layer)
    if getattr(attention, "layer_idx", index) != index:
        return f"its layer_idx is {attention.layer_idx}, but it is layer {index}"
    if getattr(attention.config, "_attn_implementation", None) not in ATTENTIONS:
        return f"its attention is a function of the caller's: {attention.config._attn_implementation}"
    if next(layer.parameters()).device.type not in ("cpu", "cuda"):
        return f"it is on {next(layer.parameters()).device}"
    return None


def parameter_names(layer: nn.Module) -> list[str]:
    """The names of the layer's positional parameters, without self."""
    parameters = inspect.signature(type(layer).forward).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][1:]


def in_float64(layer: nn.Module) -> nn.Module:
    """A copy of the layer that computes in float64, with PyTorch's plain attention."""
    double = copy.deepcopy(layer).double().eval()
    module: Any  # its config is a Hugging Face one
    for module in double.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            module.config = copy.deepcopy(config)
            module.config._attn_implementation = "eager"
    return double


def check(model: Any) -> None:
    """Refuses what fuse cannot do at all."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"fuse: model: {type(model).__name__} (must be a Hugging Face model)")
    family_of(model)
    if model.training:
        raise UsageError("fuse: the model is in training mode (call model.eval())")


def hidden_of(output: Any) -> Tensor:
    """The hidden state in what a layer returns: a tensor, or a tuple that begins with it."""
    return output if isinstance(output, torch.Tensor) else output[0]
