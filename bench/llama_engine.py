"""llama.cpp through the low-level interface of llama-cpp-python, as a process that cpu.py asks: a line of JSON,
[command, argument, …], is answered by a line of JSON, {"value": …} or {"error": …}.

A process of its own, so that its threads and its memory are nobody else's, and that a crash is an answer, too.
"""
import ctypes
import json
import statistics
import sys
import time

try:
    import llama_cpp as lib
except ImportError as missing:
    print(json.dumps({"error": str(missing)}))
    sys.exit(0)

UBATCH = 512  # tokens that llama.cpp computes at once: its own default


@lib.llama_log_callback
def _quiet(level, text, user):
    pass


lib.llama_log_set(_quiet, ctypes.c_void_p(0))
lib.llama_backend_init()


def version():
    features = [part.split("=")[0].strip() for part in lib.llama_print_system_info().decode().split("|")
                if part.strip().endswith("= 1")]
    names = [name.split(":")[-1].strip() for name in features]
    return f"llama-cpp-python {lib.__version__} ({', '.join(names)})"


class Model:
    def __init__(self, path):
        self.handle = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self.handle:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.handle))

    def close(self):
        lib.llama_model_free(self.handle)


class Session:
    """A cache in float16 for `capacity` tokens of each of `sequences`; logits of a batch's last token only, or of all
    tokens of a decode step. `unified`: one buffer holds the caches of all sequences. `rows`: the most of a batch."""

    def __init__(self, model, capacity, threads, flash, sequences=1, unified=False, rows=0):
        params = lib.llama_context_default_params()
        # llama.cpp divides n_ctx by the sequences and rounds each part up to 256.
        params.n_ctx = (capacity + 255) // 256 * 256 * sequences if sequences > 1 else capacity
        params.n_batch = max(capacity, sequences, rows)
        params.n_seq_max = sequences
        params.kv_unified = unified
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = lib.GGML_TYPE_F16
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model, self.flash, self.sequences, self.unified = model, flash, sequences, unified
        self.handle = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp: no session of {capacity} tokens (flash attention {'on' if flash else 'off'})")

    def reset(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.handle), True)

    def feed(self, ids):
        """Appends tokens and returns the seconds until their logits were there."""
        tokens = (lib.llama_token * len(ids))(*ids)
        return self.decode(lib.llama_batch_get_one(tokens, len(ids)))

    def feed_rows(self, rows):
        """The same for rows (token, position, sequence, whether its logits are wanted)."""
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        try:
            return self.decode(batch)
        finally:
            lib.llama_batch_free(batch)

    def decode(self, batch):
        start = time.perf_counter()
        status = lib.llama_decode(self.handle, batch)
        lib.llama_get_logits(self.handle)  # waits for them
        seconds = time.perf_counter() - start
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        return seconds

    def best(self):
        """The last token's best successor."""
        logits = lib.llama_get_logits(self.handle)[0 : self.model.vocab]
        return max(range(len(logits)), key=logits.__getitem__)

    def sample(self, prompt, gen, kind):
        """Milliseconds of a prefill of `prompt` tokens, or the median of `gen` decode steps after it."""
        self.reset()
        prefill = self.feed([(7919 * i + 13) % self.model.vocab for i in range(prompt)])
        if kind == "prefill":
            return 1e3 * prefill
        return 1e3 * statistics.median(self.feed([(104729 * i + 5) % self.model.vocab]) for i in range(gen))

    def sample_batch(self, prompt, gen):
        """The median of `gen` steps in which each sequence decodes a token, after a prompt each."""
        self.reset()
        for sequence in range(self.sequences):
            ids = [(7919 * i + 13 + sequence) % self.model.vocab for i in range(prompt)]
            self.feed_rows([(token, i, sequence, i == prompt - 1) for i, token in enumerate(ids)])
        return 1e3 * statistics.median(
            self.feed_rows([((104729 * i + 5 + sequence) % self.model.vocab, prompt + i, sequence, True)
                            for sequence in range(self.sequences)]) for i in range(gen))

    def close(self):
        lib.llama_free(self.handle)


# ---- what cpu.py asks for ----


class Engine:
    def __init__(self):
        self.path = self.model = self.session = None
        self.work = ()

    def open(self, path):
        if self.path == path:
            return
        if self.model:
            self.model.close()
        self.path = self.model = None
        self.model = Model(path)
        self.path = path

    def agree(self, path, threads, prompt, tokens):
        """How many of the tokens after the prompt are the best in llama.cpp's eyes, each after those before it."""
        self.open(path)
        session = Session(self.model, len(prompt) + len(tokens), threads, False)
        session.feed(prompt)
        equal = 0
        for token in tokens:
            equal += session.best() == token
            session.feed([token])
        session.close()
        return equal

    def prepare(self, path, threads, prompt, gen, kind, sequences):
        """A warm session with the settings that are fastest in a trial; returns them as text."""
        self.open(path)
        self.work = (prompt, gen, kind)
        layouts = (False, True) if kind == "batch" else (False,)
        sessions = [Session(self.model, prompt + gen, threads, flash, sequences, unified)
                    for flash in (True, False) for unified in layouts]
        for session in sessions:
            self.take(session, min(prompt, max(1, 32 // sequences)), 1, kind)  # pages of the file, buffers
        times = [self.take(session, prompt, (gen + 3) // 4, kind) for session in sessions]
        self.session = sessions[times.index(min(times))]
        for session in sessions:
            if session is not self.session:
                session.close()
        return ("flash" if self.session.flash else "no flash") + (", one cache" if self.session.unified else "")

    @staticmethod
    def take(session, prompt, gen, kind):
        return session.sample_batch(prompt, gen) if kind == "batch" else session.sample(prompt, gen, kind)

    def sample(self):
        return self.take(self.session, *self.work)

    def release(self):
        self.session.close()
        self.session = None


def main():
    engine = Engine()
    commands = {name: getattr(engine, name) for name in ("agree", "prepare", "sample", "release")}
    print(json.dumps({"value": version()}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": commands[name](*arguments)}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
