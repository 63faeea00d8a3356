"""The load of serve.py: clients that ask, wait for the whole answer, and ask again. Both engines get the same requests."""
import random


def requests(client, vocab, prompt, gen):
    """The endless requests of one client, as (ids of the prompt, tokens of the answer); always the same ones."""
    r = random.Random(client)
    while True:
        ids = [r.randrange(vocab) for _ in range(r.randint(*prompt))]
        yield ids, r.randint(*gen)


class Times:
    """When requests were sent and their tokens came, of what lies in [begin, end)."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end
        self.tokens, self.first, self.between = 0, [], []

    def token(self, now, sent, last):
        """A token of the request that was sent then; `last`: when the one before it came, or None."""
        if not self.begin <= now < self.end:
            return
        self.tokens += 1
        if last is None:
            self.first.append(now - sent)
        else:
            self.between.append(now - last)

    def report(self):
        return {"tokens_per_s": self.tokens / (self.end - self.begin), "first_ms": [1e3 * t for t in self.first],
                "between_ms": [1e3 * t for t in self.between]}
