"""A GGUF file taken apart and put together, without any code of ours: `keys FILE` prints its values as JSON;
`split FILE NAME N` writes it as N files; `add FILE OUT KEY TYPE VALUE...` adds values; `mix FILE OUT OTHER PART...` takes the
tensors whose names contain a PART from the file OTHER."""
import json, struct, sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY, ALIGNMENT = 8, 9, 32
TYPES = {"u16": 2, "i32": 5, "u32": 4, "u64": 10, "i64": 11, "f64": 12, "string": STRING, "strings": ARRAY}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.take(SCALARS[kind])
        kind, count = self.take("I"), self.take("Q")
        return kind, [self.value(kind) for _ in range(count)]


def put_value(kind, value):
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        kind, items = value
        return struct.pack("<IQ", kind, len(items)) + b"".join(put_value(kind, item) for item in items)
    return struct.pack("<" + SCALARS[kind], value)


def read(path):
    """Values {key: (type, value)}, and tensors as (name, info without its offset, data)."""
    r = Reader(open(path, "rb").read())
    assert r.data[:4] == b"GGUF"
    r.at = 8
    tensors, values = r.take("Q"), r.take("Q")
    found = {}
    for _ in range(values):
        key = r.text()
        kind = r.take("I")
        found[key] = kind, r.value(kind)
    infos = []
    for _ in range(tensors):
        name = r.text()
        start = r.at
        for _ in range(r.take("I")):
            r.take("Q")
        r.take("I")
        infos.append((name, r.data[start : r.at], r.take("Q")))
    begin = -(-r.at // ALIGNMENT) * ALIGNMENT
    ends = sorted(offset for _, _, offset in infos) + [len(r.data) - begin]
    data = [r.data[begin + o : begin + min(e for e in ends if e > o)] for _, _, o in infos]
    return found, [(name, info, bytes_) for (name, info, _), bytes_ in zip(infos, data)]


def write(path, values, tensors):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, (kind, value) in values.items():
        out += put_value(STRING, key) + struct.pack("<I", kind) + put_value(kind, value)
    data = b""
    for name, info, bytes_ in tensors:
        out += put_value(STRING, name) + info + struct.pack("<Q", len(data))
        data += bytes_ + b"\0" * (-len(bytes_) % ALIGNMENT)
    open(path, "wb").write(out + b"\0" * (-len(out) % ALIGNMENT) + data)


def main(command, path, *rest):
    values, tensors = read(path)
    if command == "keys":
        print(json.dumps({key: value[1] if kind == ARRAY else value for key, (kind, value) in values.items()}))
    elif command == "split":
        name, count = rest[0], int(rest[1])
        for i in range(count):
            own = {"split.no": (2, i), "split.count": (2, count), "split.tensors.count": (5, len(tensors))}
            write(f"{name}-{i + 1:05}-of-{count:05}.gguf", {**(values if i == 0 else {}), **own}, tensors[i::count])
    elif command == "mix":
        others = {name: (name, info, data) for name, info, data in read(rest[1])[1]}
        taken = [t[0] for t in tensors if any(part in t[0] for part in rest[2:])]
        assert taken, "no tensor has such a name"
        write(rest[0], values, [others[t[0]] if t[0] in taken else t for t in tensors])
    else:
        for key, kind, value in zip(*[iter(rest[1:])] * 3):
            parsed = value if kind == "string" else (STRING, value.split(",")) if kind == "strings" else float(value) if kind == "f64" else int(value)
            values[key] = TYPES[kind], parsed
        write(rest[0], values, tensors)


main(*sys.argv[1:])
