#!/usr/bin/env python3
"""Where the files in this folder come from; nothing in the build runs it.

    python3 make_steps.py ../../oz.txt      with `tokenizers` 0.23.3, `sentencepiece`, `unicodedata2` 16.0.0, `transformers` 5

Each <name>.json is a small tokenizer that has steps which published ones have, and <name>.cases.json what `tokenizers`
gives with it. pieces-*/ have a tokenizer.model, and what SentencePiece itself or `transformers` gives. every_character.json
has checksums of what each step makes of every character of Unicode 16.
"""
import json, os, random, sys, tempfile, zlib

import sentencepiece, unicodedata2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "Der Fluß fließt träge übers Äckerchen.", "Où est l’été ? Voilà déjà l’automne.", "Мороз и солнце; день чудесный.",
    "Ο ήλιος ανατέλλει.", "月が昇り、川は静かに流れる。", "山高水长，风吹过竹林。", "바람이 불고.", "नदी धीरे बहती है।", "القمر يطلع.",
    "1234567890 3.14 50% ½ ٣٤٥ Ⅷ", "I'll say they've CAN'T it's",
]
TEXTS = SENTENCES + [
    "", " ", "   ", "\n", "a", " a", "a ", "  two   spaces  ", "tabs\tand\r\nnewlines\n\n \n end\n", "I'LL we'D 'S '' don''t '\u017f \u212a",
    "e\u0301 \u00e9 a\u0315\u0300\u05aeb \u1100\u1161\u11a8 \u212b \ufb01 q\u0323\u0307 \u0344 \u0958", "\ufdfa \u33a5 \uff46\uff55\uff4c\uff4c \u2460 \u01c5 \u0130 \u1e9e",
    "\u0300\u0301 marks \u05d0\u05b0 \u0e01\u0e33", "emoji \U0001f642\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001fac6\U0001fadf \U0001f1e9\U0001f1ea",
    "nul\x00in\x00side", "\x01\x7f\x80\x9f", "\u00a0|\u1680|\u2003|\u2028|\u202f|\u3000|\u0085|\x0b|\u180e|\u200b|\ufeff|\u00ad",
    "\U0002ebf0\U00031350\U00016d70\U0001ccf0\U0001df25x \U00011f02 \u1c89\ua7cb \U0001e030 \U00011938", "a1b2 x=10+20*(30-4)/5; //c\n    return x[0];",
    "\u2581already\u2581meta \u2581\u2581", "<0x41><unk> <s>x</s> <tool> y<tool>", "a" * 40, "\u0301\u0323" * 6, "(a) [b] {c} $d ^e `f ~g |h <i> =j +k",
    "HTTPServer iOS XMLHttp ÉTÉ ÀÉ", "\u00a0\u0301 \u2003\u0301x \t\u0301",
]
RULES = [("\u00a0", " "), ("\uff46", "f"), ("\u212b", "\u00c5"), ("\ufb01", "fi"), ("e\u0301", "\u00e9"), ("\u2026", "..."), ("\u3000", " "), ("\u00ad", ""),
         ("\t", " "), ("\n", " "), ("\u2460", "1"), ("A\u030a", "\u00c5")]
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


def dump(name, value):
    with open(name, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def dump_cases(name, cases):
    with open(name, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases) + "\n]\n")


def write(name, tokenizer):
    dump(name + ".json", json.loads(tokenizer.to_str()))
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    dump_cases(name + ".cases.json", cases)


def bpe(corpus, splitter, normalizer=None, vocab=260, **options):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=90, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def byte_level(corpus, patterns):
    tokenizer = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_pieces(corpus, folder, kind, rules, **options):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        with open(scratch + "/corpus", "w") as file:
            file.write("\n".join(corpus))
        if rules:
            with open(scratch + "/rules", "w") as file:
                for source, target in RULES:
                    file.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
            options["normalization_rule_tsv"] = scratch + "/rules"
        else:
            options["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(input=scratch + "/corpus", model_prefix=scratch + "/m", model_type=kind, num_threads=1,
                                                 user_defined_symbols=["<tool>"], character_coverage=0.98, minloglevel=2, **options)
        with open(scratch + "/m.model", "rb") as file:
            model = file.read()
    with open(folder + "/tokenizer.model", "wb") as file:
        file.write(model)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def write_pieces(corpus):
    """Files without tokenizer_config.json are SentencePiece's own. It takes "<s>" for text and stops at a NUL."""
    plain = [text for text in TEXTS if "<" not in text and "\0" not in text]
    for name, kind, rules, options in [
        ("pieces-unigram", "unigram", True, dict(vocab_size=300)),
        ("pieces-unigram-bytes", "unigram", True, dict(vocab_size=520, byte_fallback=True)),
        ("pieces-bpe", "bpe", False, dict(vocab_size=260, remove_extra_whitespaces=False)),
    ]:
        processor = train_pieces(corpus, name, kind, rules, **options)
        dump(name + "/tokenizer_config.json", {"add_bos_token": False})
        dump_cases(name + "/cases.json", [{"text": text, "ids": processor.encode(text)} for text in plain])
    write_llama(corpus)


def write_llama(corpus):
    import transformers
    train_pieces(corpus, "pieces-llama", "bpe", False, vocab_size=520, byte_fallback=True, remove_extra_whitespaces=False)
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>", "added_tokens_decoder": {"520": {"content": "<|im_end|>", "special": True, "normalized": False}}}
    dump("pieces-llama/tokenizer_config.json", config)
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("tokenizer.model", "tokenizer_config.json"):
            with open("pieces-llama/" + name, "rb") as source, open(f"{scratch}/{name}", "wb") as target:
                target.write(source.read())
        tokenizer = transformers.LlamaTokenizer.from_pretrained(scratch)
    cases = []
    for text in TEXTS + ["<s>x <tool> y</s> z<|im_end|> a"]:
        ids = tokenizer._tokenizer.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer._tokenizer.decode(ids, skip_special_tokens=False)})
    dump_cases("pieces-llama/cases.json", cases)


def write_every_character():
    """Of each character between two marks, and in a word: the checksum of what each step gives, line by line."""
    codes = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata2.category(chr(c)) != "Cn"]
    sums = {}
    steps = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
             "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents()}
    for name, step in steps.items():
        lines = "".join(step.normalize_str("a\u0345" + c + "\u0301\u0334") + "\n" for c in codes)
        sums[name] = zlib.crc32(lines.encode())
    steps = {"Punctuation": pre_tokenizers.Punctuation(), "Digits": pre_tokenizers.Digits(individual_digits=True),
             "Whitespace": pre_tokenizers.Whitespace(), "WhitespaceSplit": pre_tokenizers.WhitespaceSplit()}
    for name, step in steps.items():
        lines = "".join("|".join(piece for piece, _ in step.pre_tokenize_str("x" + c + "-")) + "\n" for c in codes)
        sums[name] = zlib.crc32(lines.encode())
    dump("every_character.json", sums)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        corpus = file.read()[:30000].split("\n") + SENTENCES * 3
    write_every_character()
    write_pieces(corpus)
    pieces = sentencepiece.SentencePieceProcessor(model_file="pieces-unigram/tokenizer.model")
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocab += [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(4, pieces.get_piece_size())]
    from sentencepiece import sentencepiece_model_pb2 as proto
    model = proto.ModelProto()
    with open("pieces-unigram/tokenizer.model", "rb") as file:
        model.ParseFromString(file.read())
    charsmap = model.normalizer_spec.precompiled_charsmap
    bytes_ = [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]

    def unigram(vocab, normalizer, splitter, decoder, **options):
        tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, **options))
        tokenizer.normalizer = normalizer
        if splitter:
            tokenizer.pre_tokenizer = splitter
        tokenizer.decoder = decoder
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
        return tokenizer

    write("t5", unigram(vocab, normalizers.Precompiled(charsmap),
                        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), decoders.Metaspace()))
    xlm = [normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
    write("xlm", unigram(vocab, normalizers.Sequence(xlm), pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first")))
    write("unigram-bytes", unigram(vocab[:3] + bytes_ + vocab[3:], normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "\u2581")]), None,
                                   decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]), byte_fallback=True))
    write("nfd", bpe(corpus, pre_tokenizers.Whitespace(), normalizers.NFD()))
    lower = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()]
    lowered = bpe(corpus, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")]), normalizers.Sequence(lower))
    lowered.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    write("lower", lowered)
    cuts = [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.Split(Regex(r"\w+"), "merged_with_next", invert=True),
            pre_tokenizers.Split("e", "merged_with_previous"), pre_tokenizers.CharDelimiterSplit("z")]
    write("cuts", bpe(corpus, pre_tokenizers.Sequence(cuts), vocab=160, fuse_unk=True))
    write("deepseek", byte_level(corpus, [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK]))
    write("cased", byte_level(corpus, [CASED]))


main()
