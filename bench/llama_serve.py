"""llama.cpp under the load of serve.py, without HTTP: a process that serve.py asks, as cpu.py asks llama_engine.py.

A step is what llama-server's is: the next token of every answer that is being written, and the prompts of the requests
that have come meanwhile, in one llama_decode; then each answer's best token, by llama.cpp's own sampler."""
import itertools
import json
import sys
import time

import llama_engine as engine
from load import Times, requests

lib = engine.lib


class Slot:
    """A client: its sequence in the cache, and the request that it waits for."""

    def __init__(self, sequence, source):
        self.sequence, self.source = sequence, source
        self.ask()

    def ask(self):
        self.rows, self.left = next(self.source)
        self.position, self.sent, self.last = 0, time.perf_counter(), None


class Batch:
    def __init__(self, room):
        self.native, self.room = lib.llama_batch_init(room, 0, 1), room

    def fill(self, slots):
        """Rows of all slots, and the index of each slot's last one."""
        n, ends = 0, []
        for slot in slots:
            for i, token in enumerate(slot.rows):
                self.native.token[n], self.native.pos[n] = token, slot.position + i
                self.native.n_seq_id[n], self.native.seq_id[n][0] = 1, slot.sequence
                self.native.logits[n] = i == len(slot.rows) - 1
                n += 1
            ends.append(n - 1)
        self.native.n_tokens = n
        return ends


class Server:
    def __init__(self):
        self.model = self.session = None
        self.greedy = lib.llama_sampler_init_greedy()

    def open(self, path, threads, clients, prompt, gen):
        """Loads a model; the settings that are fastest in a short trial, as text."""
        if not self.model:
            self.model = engine.Model(path)
        if self.session:
            self.session.close()
        self.load = clients, prompt, gen
        trials = []
        for flash, unified in itertools.product((True, False), repeat=2):
            self.start(threads, flash, unified)
            trials.append((self.run(1, 2)["tokens_per_s"], flash, unified))
            self.session.close()
        _, flash, unified = max(trials)
        self.start(threads, flash, unified)
        return ("flash" if flash else "no flash") + (", one cache" if unified else "")

    def start(self, threads, flash, unified):
        clients, prompt, gen = self.load
        self.session = engine.Session(self.model, prompt[1] + gen[1] + 1, threads, flash, clients, unified, clients * prompt[1])

    def run(self, warm, seconds):
        clients, prompt, gen = self.load
        memory = lib.llama_get_memory(self.session.handle)
        lib.llama_memory_clear(memory, True)
        batch = Batch(clients * prompt[1])
        slots = [Slot(i, requests(i, self.model.vocab, prompt, gen)) for i in range(clients)]
        begin = time.perf_counter() + warm
        times = Times(begin, begin + seconds)
        while time.perf_counter() < times.end:
            ends = batch.fill(slots)
            self.session.decode(batch.native)
            for slot, end in zip(slots, ends):
                token = lib.llama_sampler_sample(self.greedy, self.session.handle, end)
                now = time.perf_counter()
                times.token(now, slot.sent, slot.last)
                slot.position, slot.rows, slot.last, slot.left = slot.position + len(slot.rows), [token], now, slot.left - 1
                if slot.left == 0:
                    lib.llama_memory_seq_rm(memory, slot.sequence, -1, -1)
                    slot.ask()
        lib.llama_batch_free(batch.native)
        return times.report()


def main():
    server = Server()
    print(json.dumps({"value": engine.version()}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": {"open": server.open, "run": server.run}[name](*arguments)}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
