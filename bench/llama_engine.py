"""llama.cpp through the low-level interface of llama-cpp-python: one model, and sessions that take times.

Importing this fails with ImportError where llama-cpp-python is not installed.
"""
import ctypes
import statistics
import time

import llama_cpp as lib

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


def fastest(model, capacity, threads, prompt, gen, kind):
    """A warm session with flash attention on or off, whichever was faster."""
    sessions = [Session(model, capacity, threads, flash) for flash in (True, False)]
    for session in sessions:
        session.sample(min(prompt, 32), 1, kind)  # pages of the file, buffers
    times = [session.sample(prompt, gen, kind) for session in sessions]
    best = times.index(min(times))
    sessions[1 - best].close()
    return sessions[best]
