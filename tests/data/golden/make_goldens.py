#!/usr/bin/env python3
"""How the tiny checkpoints beside this file were made: random weights (norms and biases too), answers by Hugging Face
transformers in float32 on the CPU. Never run by the build. Usage: make_goldens.py OUT_DIR [CASE...]   (needs torch, transformers)"""
import json, os, sys, torch
from safetensors.torch import load_file, save_file
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

TOKENS, GREEDY, VOCAB = 24, 32, 320
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def rope(kind, theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


CASES = {
    # name: (model, stored dtype, edit of the written config, edit of the written tensors, shards)
    "llama-llama3-bias": (
        lambda: LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCAB, hidden_size=66, intermediate_size=100, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, head_dim=24, attention_bias=True, mlp_bias=True, max_position_embeddings=128,
            tie_word_embeddings=True, rms_norm_eps=1e-6,
            rope_parameters=rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=32))),
        torch.float16, {}, None, False),
    "llama-linear-sharded": (
        lambda: LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=3,
            num_key_value_heads=1, max_position_embeddings=128, rope_parameters=rope("linear", factor=2.5))),
        torch.bfloat16,
        # The spelling of older checkpoints; head_dim is then derived.
        {"rope_parameters": None, "head_dim": None, "rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 10000.0},
        None, True),
    "neox-old-nobias": (
        lambda: GPTNeoXForCausalLM(GPTNeoXConfig(
            vocab_size=VOCAB, hidden_size=72, intermediate_size=100, num_hidden_layers=3, num_attention_heads=3,
            hidden_act="gelu_new", attention_bias=False, use_parallel_residual=True, max_position_embeddings=128,
            rope_parameters=rope("default", 5000.0, partial_rotary_factor=0.5))),
        torch.float32,
        {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 5000},
        "old-neox-buffers", False),
    "neox-fast-tied": (
        lambda: GPTNeoXForCausalLM(GPTNeoXConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=100, num_hidden_layers=3, num_attention_heads=2,
            hidden_act="gelu_fast", use_parallel_residual=False, max_position_embeddings=128, tie_word_embeddings=True,
            rope_parameters=rope("linear", factor=2.0, partial_rotary_factor=0.25))),
        torch.float16, {}, None, False),
    "gpt2-inner": (
        lambda: GPT2LMHeadModel(GPT2Config(
            vocab_size=VOCAB, n_embd=60, n_head=5, n_layer=3, n_positions=128, n_inner=100, activation_function="gelu",
            tie_word_embeddings=False, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)),
        torch.float16, {}, "no-prefix", False),
}


def family(model, **config):
    """A case of another family, with the sizes that most of them share; windows are shorter than the text."""
    base = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=0)
    settings = getattr(transformers, model + "Config")(**{**base, **config})
    return lambda: getattr(transformers, model.removesuffix("Text") + "ForCausalLM")(settings)


CASES |= {
    "mistral-window": (family("Mistral", sliding_window=7, rms_norm_eps=1e-5, head_dim=24), torch.bfloat16, {}, None, False),
    "qwen2": (family("Qwen2", tie_word_embeddings=True, rope_parameters=rope("yarn", 1000.0, factor=4.0,
              original_max_position_embeddings=16)), torch.bfloat16, {}, None, False),
    "qwen2-window": (family("Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=2), torch.float16, {}, None, False),
    "qwen3": (family("Qwen3", head_dim=24, rope_parameters=rope("default", 1000000.0)), torch.bfloat16, {}, None, False),
    "gemma2": (family("Gemma2", head_dim=24, query_pre_attn_scalar=20, sliding_window=6, attn_logit_softcapping=5.0,
               final_logit_softcapping=30.0), torch.bfloat16, {}, None, False),
    "gemma3": (family("Gemma3Text", num_hidden_layers=6, head_dim=24, query_pre_attn_scalar=20, sliding_window=6,
               rope_parameters={"full_attention": rope("linear", 1000000.0, factor=8.0),
               "sliding_attention": rope("default", 10000.0)}), torch.bfloat16, {}, None, False),
    "gemma3-old": (family("Gemma3Text", num_hidden_layers=4, head_dim=32, query_pre_attn_scalar=32, sliding_window=6,
               num_key_value_heads=1, tie_word_embeddings=True,
               layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
               rope_parameters={"full_attention": rope("default", 500000.0), "sliding_attention": rope("default", 20000.0)}),
               torch.float16,
               {"rope_parameters": None, "layer_types": None, "sliding_window_pattern": 2, "rope_theta": 500000.0,
                "rope_local_base_freq": 20000.0}, None, False),
    "phi3": (family("Phi3", rope_parameters=rope("default", partial_rotary_factor=0.75), sliding_window=11,
             num_attention_heads=2, num_key_value_heads=1), torch.bfloat16, {}, None, False),
    "phi3-long": (family("Phi3", original_max_position_embeddings=16, tie_word_embeddings=True,
                  rope_parameters=rope("longrope", short_factor=[1.0 + i / 8 for i in range(8)],
                  long_factor=[1.0 + i for i in range(8)], original_max_position_embeddings=16)), torch.float16, {}, None, False),
    "olmo2": (family("Olmo2", rms_norm_eps=1e-6), torch.float32, {}, None, False),
    "granite": (family("Granite", embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.3,
                logits_scaling=2.5, attention_bias=True, mlp_bias=True), torch.bfloat16, {}, None, False),
    "smollm3": (family("SmolLM3", no_rope_layer_interval=2, tie_word_embeddings=True), torch.bfloat16, {}, None, False),
    "stablelm": (family("StableLm", use_qkv_bias=True, rope_parameters=rope("default", partial_rotary_factor=0.25),
                 num_key_value_heads=4), torch.float16, {}, None, False),
    "mixtral": (family("Mixtral", num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
                torch.bfloat16, {}, None, False),
    "qwen3-moe": (family("Qwen3Moe", num_hidden_layers=2, head_dim=24, num_experts=5, num_experts_per_tok=2,
                  moe_intermediate_size=32, norm_topk_prob=True), torch.float16, {}, None, False),
}

# Rounding must not change which experts a token uses: the least distance between the last score that is chosen and the
# first that is not, in standard deviations. Weights are drawn until it is reached.
MARGIN = 0.03


def margin(model, ids):
    used, least = model.config.num_experts_per_tok, MARGIN
    with torch.no_grad():
        for _ in range(GREEDY):
            answer = model(ids, output_router_logits=True)
            scores = torch.cat(answer.router_logits)
            ranked = scores.sort(descending=True).values
            least = min(least, ((ranked[:, used - 1] - ranked[:, used]) / scores.std()).min().item())
            if least < MARGIN:
                break
            ids = torch.cat([ids, answer.logits[:, -1:].argmax(-1)], 1)
    return least


def edit_tensors(path, kind):
    tensors = load_file(path)
    if kind == "old-neox-buffers":
        for i in range(3):
            base = f"gpt_neox.layers.{i}.attention."
            tensors[base + "bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
            tensors[base + "masked_bias"] = torch.tensor(-1e9)
            tensors[base + "rotary_emb.inv_freq"] = torch.ones(6)
    if kind == "no-prefix":
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def make(name, out):
    build, dtype, config_edit, tensor_edit, sharded = CASES[name]
    ids = torch.randint(0, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(7))
    torch.manual_seed(sum(name.encode()))
    model = build().eval()
    model.config._attn_implementation = "eager"
    draw(model, name, dtype)
    while "num_experts_per_tok" in vars(model.config) and margin(model, ids) < MARGIN:
        draw(model, name, dtype)
    folder = os.path.join(out, name)
    model.to(dtype).save_pretrained(folder, max_shard_size="80KB" if sharded else "5GB")
    model = type(model).from_pretrained(folder, dtype=torch.float32, **EAGER).eval()
    answers(name, model, ids, folder, config_edit, tensor_edit)


def draw(model, name, dtype):
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn_like(p)
            if name.startswith("gemma") and "norm" in key:  # stored less 1
                p.copy_(0.1 * noise)
                continue
            p.copy_(1 + 0.1 * noise if "norm" in key and key.endswith("weight") or "ln_" in key and key.endswith("weight")
                    else 0.1 * noise if key.endswith("bias") else noise * (0.5 if "emb" in key or "wte" in key else 0.15))
            p.copy_(p.to(dtype))


def answers(name, model, ids, folder, config_edit, tensor_edit):
    with torch.no_grad():
        answer = model(ids, output_hidden_states=True)
        seq = ids
        for _ in range(GREEDY):
            seq = torch.cat([seq, model(seq).logits[:, -1:].argmax(-1)], 1)
        truth = type(model).from_pretrained(folder, dtype=torch.float64, **EAGER).eval()(ids).logits
    golden = {f"hidden.{i}": h[0].contiguous() for i, h in enumerate(answer.hidden_states)}
    golden |= {"input_ids": ids[0].int(), "logits": answer.logits[0].contiguous(), "logits_f64": truth[0].contiguous(),
               "greedy": seq[0, TOKENS:].int().contiguous()}
    top = answer.logits[0].topk(2).values
    save_file(golden, os.path.join(folder, "golden.safetensors"), metadata={"source": "transformers float32 eager on CPU"})
    config = json.load(open(os.path.join(folder, "config.json")))
    config = {k: v for k, v in {**config, **config_edit}.items() if v is not None or k not in config_edit}
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)
    if tensor_edit:
        edit_tensors(os.path.join(folder, "model.safetensors"), tensor_edit)
    g = os.path.join(folder, "generation_config.json")
    if os.path.exists(g):
        os.remove(g)
    print(name, sorted(os.listdir(folder)), "f32 vs f64", (answer.logits.double() - truth).abs().max().item(),
          "top-two gap", (top[:, 0] - top[:, 1]).min().item(), len(set(seq[0, TOKENS:].tolist())))


for case in sys.argv[2:] or CASES:
    make(case, sys.argv[1])
