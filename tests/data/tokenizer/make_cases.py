#!/usr/bin/env python3
"""Where the files in this folder come from; nothing in the build runs it.

    python3 make_cases.py TEXT_FILE        with the package `tokenizers` 0.23.3

Trains small tokenizers in the styles of published models on TEXT_FILE (a public-domain book) and the sentences below, and
writes <name>.json with <name>.cases.json: texts, their ids and what the ids decode to, all computed by the library.
"""
import json
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "Der Fluß fließt träge übers Äckerchen, und müde Füße gehen heim.",
    "Où est l’été ? Voilà déjà l’automne, et la forêt s’éteint.",
    "Мороз и солнце; день чудесный. Кот идёт направо.",
    "Ο ήλιος ανατέλλει πάνω από τη θάλασσα.",
    "月が昇り、川は静かに流れる。カタカナもある。",
    "山高水长，风吹过竹林。",
    "바람이 불고 나뭇잎이 떨어진다.",
    "नदी धीरे बहती है और चाँद निकलता है।",
    "القمر يطلع فوق النهر.",
    "1234567890 3.14159 2,718 0x7f 50% ½ ٣٤٥ Ⅷ",
    "I'll say they've said we'd CAN'T won't it's I'm you're",
]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEXTS = SENTENCES + [
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "a",
    " a",
    "a ",
    "   leading and trailing   ",
    "Once upon a time there was a little girl who lived in the great prairies.",
    "two  spaces   three    four",
    "tabs\tand\nnewlines\n\n\nand \n mixed \t \n ends \n",
    "CRLF\r\nlines\r\n\r\nend\r",
    "I'LL THEY'VE we'D can'T 'S 's '' ' 'x don''t",
    "’s curly ‘quotes’ “double” — dash – en… ellipsis",
    "'\u017f long s after a quote, \u212a kelvin",
    "e\u0301 vs \u00e9, a\u0315\u0300\u05aeb, \u1100\u1161\u11a8, \u212b, \ufb01, q\u0323\u0307 q\u0307\u0323",
    "\u0300\u0301 marks first, \u0344 \u0958 \u2126",
    "emoji \U0001f642\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea ok",
    "nul\x00in\x00side\x00",
    "\x01\x02\x1f\x7f\x80\x9f controls",
    "space kinds:\u00a0|\u1680|\u2003|\u2028|\u2029|\u202f|\u205f|\u3000|\u0085|\x0b|\x0c|",
    "not spaces:\u180e|\u200b|\u2060|\ufeff|\u00ad|",
    "\u180e \u180e\u180ea \u180e",
    "a\u200bb \ufffd \uffff \U0010ffff \ue000 \U000e0001",
    "\U0002ebf0\U00031350 new letters \U00016d70\U0001ccf0 new digits \U0001df25x",
    "1 12 123 1234 12345 123456 1234567 1,234.5 ½¾ Ⅻ ٠١٢ 𝟘𝟙",
    "a1b2c3 1a 2b x=10+20*(30-4)/5; // c\n    return x[0]; }",
    "https://example.org/a?b=c&d=%20#e user@host.tld /usr/lib/x.so.1",
    "\u2581already\u2581meta \u2581\u2581 x",
    "\u0120byte \u010alevel\u0100chars",
    "<0x41><0x0A> <unk> <0xZZ>",
    "\U00012000\U00012001 cuneiform, \U0001d4d0 script, ß ẞ ŉ İ ı",
    "a" * 70,
    " " * 41 + "x",
    "\n" * 20 + "y" + " " * 9,
    "ab" * 40 + "!" * 33,
    "é" * 21 + "日" * 22 + "\U0001f642" * 11,
    "\u0301\u0323" * 12,
    "<|endoftext|>Once<|endoftext|>",
    "<|begin_of_text|>x<|eot|> y <|eot|>\n\n<|im_start|>user\nhi<|im_end|>",
    "<s>x</s> <s> y</s>",
    "<|end<|endoftext|><|endoftext|x|><|eot",
    "<strip>  <strip> a <strip>b\t<strip>\u2003",
    "word wordy sword word, _word word_ word\u0301 (word) word",
    "<norm> a<norm> <norm>  \u00e9<norm>e\u0301 cafe\u0301 caf\u00e9",
    "<long> <longer> <longest><longe",
]

# Added to every style: white space stripped on both sides; a single word; matched in the normalised text; prefixes of another.
ADDED = [
    AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False, special=False),
    AddedToken("word", single_word=True, normalized=False, special=False),
    AddedToken("<norm>", normalized=True, special=False),
    AddedToken("caf\u00e9", normalized=True, special=False),
    AddedToken("<long>", normalized=False, special=False),
    AddedToken("<longer", normalized=False, special=False),
    AddedToken("<longest>", normalized=False, special=True),
]


def train(corpus, specials, vocab=480, alphabet=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=specials, initial_alphabet=list(alphabet), show_progress=False
    )
    return tokenizer, lambda: tokenizer.train_from_iterator(corpus, trainer)


def begin_template(token, tokenizer):
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, tokenizer.token_to_id(token))]
    )


def byte_level(corpus, specials, split=None, begin=None, normalizer=None, prefix=False, **model):
    tokenizer, run = train(corpus, specials, alphabet=pre_tokenizers.ByteLevel.alphabet(), **model)
    if normalizer:
        tokenizer.normalizer = normalizer
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    if split:
        cut = pre_tokenizers.Split(Regex(split), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_only])
    else:
        tokenizer.pre_tokenizer = bytes_only
    tokenizer.decoder = decoders.ByteLevel()
    run()
    offsets = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = (
        processors.Sequence([offsets, begin_template(begin, tokenizer)]) if begin else offsets
    )
    return tokenizer


def sentencepiece(corpus):
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer, run = train(
        corpus, ["<unk>", "<s>", "</s>"] + bytes_, vocab=590, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # for the training only: merges stay inside words
    run()
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["content"].startswith("<0x")]
    parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = begin_template("<s>", tokenizer)
    return tokenizer


def metaspace(corpus):
    tokenizer, run = train(corpus, ["<unk>", "<s>", "</s>"], vocab=420, unk_token="<unk>", fuse_unk=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    run()
    return tokenizer


def write(name, tokenizer, old_merges=False):
    tokenizer.add_tokens(ADDED)
    parts = json.loads(tokenizer.to_str())
    if old_merges:
        parts["model"]["merges"] = [" ".join(pair) for pair in parts["model"]["merges"]]
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    tokenizer = Tokenizer.from_str(text)
    with open(f"{name}.json", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    cases = []
    for text in TEXTS:
        special = tokenizer.encode(text).ids
        cases.append(
            {
                "text": text,
                "ids": special,
                "plain_ids": tokenizer.encode(text, add_special_tokens=False).ids,
                "decoded": tokenizer.decode(special, skip_special_tokens=False),
                "plain_decoded": tokenizer.decode(special, skip_special_tokens=True),
            }
        )
    # Decoding of ids that no text gives: every id by itself, and a walk that cuts characters anywhere.
    size = tokenizer.get_vocab_size()
    walk = [(i * i * 7 + i * 13) % size for i in range(400)]
    for ids in [walk[i : i + 20] for i in range(0, 400, 20)] + [list(range(i, min(i + 64, size))) for i in range(0, size, 64)]:
        cases.append(
            {
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "plain_decoded": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    with open(f"{name}.cases.json", "w", encoding="utf-8") as file:
        lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases]
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        corpus = file.read()[:60000].split("\n") + SENTENCES * 3
    write("gpt2", byte_level(corpus, ["<|endoftext|>"]), old_merges=True)
    write("prefix", byte_level(corpus, ["<|endoftext|>"], vocab=300, prefix=True))
    write(
        "llama3",
        byte_level(
            corpus,
            ["<|begin_of_text|>", "<|eot|>", "<|im_start|>", "<|im_end|>"],
            split=LLAMA3,
            begin="<|begin_of_text|>",
            ignore_merges=True,
        ),
    )
    write(
        "qwen2",
        byte_level(
            corpus, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], split=QWEN2, normalizer=normalizers.NFC()
        ),
    )
    write("llama2", sentencepiece(corpus))
    write("metaspace", metaspace(corpus))


main()
