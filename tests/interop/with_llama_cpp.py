#!/usr/bin/env python3
"""What `fusebox quantize` writes, as others read it: every tensor and key by the `gguf` package, tokens and logits by
llama.cpp. Run by hand in the repository root after `make`: tests/interop/with_llama_cpp.py
(needs numpy, safetensors, gguf, llama-cpp-python; without them it says so and fails)."""
import ctypes, json, os, pathlib, random, subprocess, sys, tempfile, unicodedata

try:
    import gguf, llama_cpp, numpy as np
    from gguf.quants import dequantize, quantize
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    sys.exit(f"interop: not run: {missing}")

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
GOLDENS = pathlib.Path("tests/data/golden")
STORYTELLER = pathlib.Path("models/storyteller")
KINDS = gguf.GGMLQuantizationType
TYPES = {"f16": KINDS.F16, "q8_0": KINDS.Q8_0, "q4_0": KINDS.Q4_0}
MODELS = ["neox-parallel", "neox-serial", "llama-mha", "llama-gqa-tied", "llama-linear-sharded", "llama-llama3-bias",
          "gpt2"]
# Logits only. llama.cpp ignores the windows of mistral-window and phi3; the others are refused by quantize, or float32.
FAMILIES = ["qwen2", "qwen3", "gemma3-old", "granite", "stablelm", "mixtral", "qwen3-moe"]
DIGITS = {"type": "Digits", "individual_digits": True}
# tokenizer.ggml.pre, the test tokenizer that splits so, and what is changed in it.
TOKENIZERS = {
    "gpt-2": ("gpt2", lambda t: None),
    "smollm": ("gpt2", lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [DIGITS, t["pre_tokenizer"]]})),
    "llama-bpe": ("llama3", lambda t: None),
    "smaug-bpe": ("llama3", lambda t: t["model"].update(ignore_merges=False)),
    "qwen2": ("qwen2", lambda t: None),
}
# llama.cpp's numbers for general.file_type.
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 11, "q3_k_s": 11, "q3_k_m": 12,
              "q3_k_l": 13, "q4_k": 14, "q4_k_s": 14, "q4_k_m": 15, "q5_k": 16, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18,
              "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38}
failures = 0


def check(name, good, detail=""):
    global failures
    failures += not good
    print(f"ok - {name}" if good else f"not ok - {name}: {detail}", flush=True)


def write(model, out, *options):
    subprocess.run([BUILD / "fusebox", "quantize", model, out, "--force", *options], check=True, stdout=subprocess.DEVNULL)
    return str(out)


def load_llama(path, **options):
    # Token by token: llama.cpp uses AMX for more, which some virtual machines announce and do not have.
    return llama_cpp.Llama(path, verbose=False, n_threads=1, n_batch=1, n_ubatch=1, **options)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def checkpoint(directory):
    """All tensors in float32, by name. BF16, which numpy does not have, by its bits."""
    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        size = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + size])
        data = path.read_bytes()[8 + size :]
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            raw = data[slice(*entry["data_offsets"])]
            if entry["dtype"] == "BF16":
                flat = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                flat = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype(np.float32)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def as_llama_cpp_wants(kind, config, name, x):
    """The converter's orders of rows, written as shapes."""
    if kind == "gpt_neox" and ".query_key_value." in name:
        heads = config["num_attention_heads"]
        return x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads"]
        heads = config.get("num_key_value_heads", heads) if ".k_proj." in name else heads
        return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if kind == "gpt2" and x.ndim == 2 and ".h." in name:
        return x.T
    return x


def check_tensors(directory, type_name, path):
    config = json.loads((directory / "config.json").read_text())
    kind = config["model_type"]
    arch = {"gpt_neox": gguf.MODEL_ARCH.GPTNEOX, "llama": gguf.MODEL_ARCH.LLAMA, "gpt2": gguf.MODEL_ARCH.GPT2}[kind]
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(arch, layers)
    reader = gguf.GGUFReader(path)
    got = {t.name: t for t in reader.tensors}
    bad = []
    for name, x in checkpoint(directory).items():
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None or (config.get("tie_word_embeddings") and to == "output.weight"):
            continue
        want = np.ascontiguousarray(as_llama_cpp_wants(kind, config, name, x))
        tensor = got.pop(to, None)
        if tensor is None:
            bad.append(f"{to}: missing")
            continue
        kind_wanted = TYPES[type_name]
        if want.shape[-1] % gguf.GGML_QUANT_SIZES[kind_wanted][0]:
            kind_wanted = KINDS.F16
        if want.ndim == 1 or to == "position_embd.weight":
            kind_wanted = KINDS.F32
        if tensor.tensor_type != kind_wanted or list(tensor.shape) != list(want.shape[::-1]):
            bad.append(f"{to}: {tensor.tensor_type.name} {tensor.shape}")
        elif kind_wanted == KINDS.Q4_0:  # scales are searched: never farther off than the reference
            ours, theirs = (((dequantize(data, kind_wanted) - want) ** 2).sum(dtype=np.float64)
                            for data in (tensor.data, quantize(want, kind_wanted)))
            if not ours <= theirs:
                bad.append(f"{to}: squared error {ours:g} (at most {theirs:g})")
        elif type_name == "q4_0" and to.endswith(".bias") and "norm" not in to:  # corrected for the matrix's error
            if not np.abs(tensor.data - want).max() < 0.2:
                bad.append(f"{to}: far from what it was")
        elif quantize(want, kind_wanted).tobytes() != tensor.data.tobytes():
            bad.append(f"{to}: other bytes")
    bad += [f"{name}: unexpected" for name in got if name != "rope_freqs.weight"]
    check(f"{directory.name}, {type_name}: {len(reader.tensors)} tensors", not bad and reader.tensors, bad)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    wanted = {"general.architecture": gguf.MODEL_ARCH_NAMES[arch], "general.quantization_version": 2}
    wanted[f"{wanted['general.architecture']}.block_count"] = layers
    check(f"{directory.name}, {type_name}: {len(keys)} keys", all(keys.get(k) == v for k, v in wanted.items()), keys)


# ---- logits ----------------------------------------------------------------------------------------------------------


def check_logits(directory, path):
    golden = load_file(directory / "golden.safetensors")
    ids = golden["input_ids"].tolist()
    llama = load_llama(path, logits_all=True, n_ctx=len(ids))
    llama.eval(ids)
    got, want = np.array(llama.scores[: len(ids)]), golden["logits"]
    off = np.abs(got - want).max() / np.abs(want).max()
    check(f"{directory.name}, f16: llama.cpp's logits", off < 5e-3, f"off by {off:.2e} of the largest")


SEARCHED = ["q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "mxfp4", "q3_k", "q2_k", "q5_K_M",
            "q5_K_S", "q4_K_M", "q4_K_S", "q3_K_L", "q3_K_M", "q3_K_S"]


def check_type(type_name, work):
    """llama.cpp reads the file, and the weights that it multiplies are those that the gguf package decodes: its logits
    are near to those of an f16 file with the decoded weights. It rounds activations to 8 bits, in blocks of 256 where
    weights have such: that moves the logits by up to 3%."""
    path = write(STORYTELLER, work / "type.gguf", "--type", type_name)
    reader = gguf.GGUFReader(path)
    config = json.loads((STORYTELLER / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPTNEOX, config["num_hidden_layers"])
    decoded = {t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}
    folder = work / "decoded"
    folder.mkdir(exist_ok=True)
    tensors = {}
    for name, x in checkpoint(STORYTELLER).items():
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None:
            continue
        value = decoded[to]
        if ".query_key_value." in name:
            heads = config["num_attention_heads"]
            value = value.reshape(3, heads, -1, *x.shape[1:]).swapaxes(0, 1)
        tensors[name] = np.ascontiguousarray(value.reshape(x.shape), np.float32)
    save_file(tensors, folder / "model.safetensors")
    for other in STORYTELLER.glob("*.json"):
        (folder / other.name).write_bytes(other.read_bytes())
    golden = load_file(GOLDENS / "storyteller" / "golden.safetensors")
    ids = golden["input_ids"].tolist()[:48]
    logits = []
    for file in (path, write(folder, work / "decoded.gguf", "--type", "f16")):
        llama = load_llama(file, logits_all=True, n_ctx=len(ids))
        llama.eval(ids)
        logits.append(np.array(llama.scores[: len(ids)]))
    off = np.sqrt(((logits[0] - logits[1]) ** 2).mean() / (logits[1] ** 2).mean())
    check(f"storyteller, {type_name}: llama.cpp's logits are those of the decoded weights", off < 0.05, f"off by {off:.2e}")
    known = reader.fields["general.file_type"].contents()
    check(f"storyteller, {type_name}: general.file_type {known}", known == FILE_TYPES[type_name.lower()])


# ---- tokens ----------------------------------------------------------------------------------------------------------


class Fusebox:
    """The library's tokenizer."""

    def __init__(self, directory):
        self.lib = ctypes.CDLL(str(BUILD / "libfusebox.so"))
        self.model = ctypes.c_void_p()
        assert self.lib.fb_model_open(str(directory).encode(), ctypes.byref(self.model), None) == 0, directory

    def tokenize(self, text):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        status = self.lib.fb_tokenize(
            self.model, text, ctypes.c_size_t(len(text)), ctypes.c_bool(True), ctypes.byref(ids), ctypes.byref(count), None
        )
        assert status == 0, text
        result = ids[: count.value]
        self.lib.fb_free(ids)
        return result


def texts():
    """Those of the tokenizer's own tests, and some of no sense. llama.cpp takes texts as they come: only normalised ones
    can give the same ids."""
    picks = random.Random(7)
    alphabet = list("abcdefgh THE'sldvertm0123456789.,!?-_()\n\t\r  éüß漢字かなжд🙂½²٣\u00a0\u2009\u200d")
    found = [case["text"] for case in json.loads(pathlib.Path("tests/data/tokenizer/storyteller_cases.json").read_text())]
    found += ["".join(picks.choices(alphabet, k=picks.randint(1, 40))) for _ in range(300)]
    return [unicodedata.normalize("NFC", text) for text in found]


def check_tokens(name, directory, path):
    ours, theirs = Fusebox(directory), load_llama(path, vocab_only=True)
    begin = theirs.metadata["tokenizer.ggml.add_bos_token"] == "true"
    strings = [text.encode() for text in texts()]
    bad = [s for s in strings if ours.tokenize(s) != theirs.tokenize(s, add_bos=begin, special=True)]
    check(f"{name}: ids of {len(strings)} texts", not bad, f"{len(bad)} differ: {bad[:3]}")


def with_tokenizer(folder, source, change):
    """A llama of one layer without a purpose, and one of the test tokenizers, less the added tokens that care about the
    text around them: no GGUF file can have those."""
    folder.mkdir()
    tokenizer = json.loads(source.read_text())
    size = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < size]
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((GOLDENS / "llama-mha" / "config.json").read_text())
    config.update(vocab_size=512, num_hidden_layers=1, bos_token_id=0, eos_token_id=0)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: x.astype(np.float16) for name, x in checkpoint(GOLDENS / "llama-mha").items()}
    tensors = {name: x for name, x in tensors.items() if ".layers." not in name or ".layers.0." in name}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.zeros((512, config["hidden_size"]), np.float16)
    save_file(tensors, folder / "model.safetensors")
    return folder


def check_greedy(path, prompt, count):
    answer = subprocess.run(
        [BUILD / "fusebox", "run", STORYTELLER, "-p", prompt, "-n", str(count), "--temp", "0", "--json"],
        check=True, capture_output=True)
    ours = json.loads(answer.stdout)["tokens"]
    llama = load_llama(path, n_ctx=512, logits_all=True)
    llama.eval(llama.tokenize(prompt.encode()))
    theirs = []
    for _ in range(len(ours)):
        theirs.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
        llama.eval(theirs[-1:])
    check(f"storyteller, f16: {len(ours)} greedy tokens after {prompt!r}", ours == theirs, f"{ours} {theirs}")


with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    for type_name in TYPES:
        path = write(STORYTELLER, work / f"storyteller-{type_name}.gguf", "--type", type_name)
        check_tensors(STORYTELLER, type_name, path)
        text = load_llama(path, n_ctx=128)("Once upon a time", max_tokens=24, temperature=0)["choices"][0]["text"]
        check(f"storyteller, {type_name}: llama.cpp writes", len(text) > 20, text)
    for model in MODELS:
        for type_name in TYPES:
            path = write(GOLDENS / model, work / f"{model}-{type_name}.gguf", "--type", type_name)
            check_tensors(GOLDENS / model, type_name, path)
    for model in MODELS + FAMILIES:
        check_logits(GOLDENS / model, write(GOLDENS / model, work / "logits.gguf", "--type", "f16"))
    for type_name in SEARCHED:
        check_type(type_name, work)
    check_tokens("storyteller", STORYTELLER, str(work / "storyteller-f16.gguf"))
    for prompt in ("Once upon a time", "The little dog", "\n\nOne day, the wind"):
        check_greedy(str(work / "storyteller-f16.gguf"), prompt, 64)
    for name, (source, change) in TOKENIZERS.items():
        directory = with_tokenizer(work / name, pathlib.Path(f"tests/data/tokenizer/{source}.json"), change)
        path = write(directory, work / f"{name}.gguf", "--type", "f16")
        check(f"tokenizer {name}: its name", gguf.GGUFReader(path).fields["tokenizer.ggml.pre"].contents() == name)
        check_tokens(f"tokenizer {name}", directory, path)
print(f"{failures} failed")
sys.exit(failures > 0)
