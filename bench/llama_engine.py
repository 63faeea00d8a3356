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
    """A cache in float16 for `capacity` tokens; logits of the last token of a batch only."""

    def __init__(self, model, capacity, threads, flash):
        params = lib.llama_context_default_params()
        params.n_ctx = capacity
        params.n_batch = capacity
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = lib.GGML_TYPE_F16
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model, self.flash = model, flash
        self.handle = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp: no session of {capacity} tokens (flash attention {'on' if flash else 'off'})")

    def reset(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.handle), True)

    def feed(self, ids):
        """Appends tokens and returns the seconds until their logits were there."""
        tokens = (lib.llama_token * len(ids))(*ids)
        start = time.perf_counter()
        status = lib.llama_decode(self.handle, lib.llama_batch_get_one(tokens, len(ids)))
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

    def prepare(self, path, threads, prompt, gen, kind):
        """A warm session with flash attention on or off, whichever is faster; returns which."""
        self.open(path)
        self.work = (prompt, gen, kind)
        sessions = [Session(self.model, prompt + gen, threads, flash) for flash in (True, False)]
        for session in sessions:
            session.sample(min(prompt, 32), 1, kind)  # pages of the file, buffers
        times = [session.sample(*self.work) for session in sessions]
        best = times.index(min(times))
        sessions[1 - best].close()
        self.session = sessions[best]
        return self.session.flash

    def sample(self):
        return self.session.sample(*self.work)

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
