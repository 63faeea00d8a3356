"""The table that cpu.py prints: rows of samples, as Markdown."""
import statistics

# Samples of the same work that differ by more were disturbed.
QUIET = 1.5


def show_time(row, samples):
    """Milliseconds a token for decode, tokens a second for prefill and batches; the median, and the extremes."""
    if row["kind"] == "decode":
        unit, values = "ms", samples
    else:
        tokens = row["prompt"] if row["kind"] == "prefill" else row["sequences"]
        unit, values = "tok/s", [1e3 * tokens / sample for sample in samples]
    digits = 3 if statistics.median(values) < 10 else 1
    return f"{statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def show_ratio(row):
    ratios = [theirs / ours for ours, theirs in zip(row["fusebox_ms"], row["llama_ms"])]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def show_bandwidth(row, samples):
    if row["kind"] == "prefill":
        return ""
    return f"{100 * row['bytes'] / (1e-3 * statistics.median(samples)) / row['bytes_per_s']:.0f}%"


def show_work(row):
    return row["work"].replace("@", {"decode": " at ", "prefill": " of ", "batch": " of "}[row["kind"]])


def is_quiet(row):
    return all(max(samples) <= QUIET * min(samples) for samples in (row["fusebox_ms"], row["llama_ms"]) if samples)


def print_header(header):
    machine = header["machine"]
    print(f"{machine['cpu']}, {' and '.join(map(str, header['threads']))} of {machine['cores']} cores, {header['date']}. fusebox {header['version']} "
          f"({header['commit']}, {header['isa']}); {header['llama'] or 'without llama.cpp (pip install llama-cpp-python)'}.")
    print(f"`{header['command']}`; medians of {header['reps']} repetitions (least to most).")
    if header["agreement"]:
        print(f"Greedy tokens at f16 that llama.cpp chooses as well: {', '.join(header['agreement'])}.")


def print_table(rows):
    with_llama = any(row["llama_ms"] or row["llama_error"] for row in rows)
    with_threads = len({row["threads"] for row in rows}) > 1
    columns = ["model", "weights", *["threads"] * with_threads, "work", "fusebox", "of read bandwidth"]
    if with_llama:
        columns += ["llama.cpp", "of read bandwidth", "its setting", "faster by [least, most]"]
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        cells = [row["shape"], row["type"], *[str(row["threads"])] * with_threads, show_work(row)]
        cells += [show_time(row, row["fusebox_ms"]), show_bandwidth(row, row["fusebox_ms"])]
        if row["llama_ms"]:
            cells += [show_time(row, row["llama_ms"]), show_bandwidth(row, row["llama_ms"]),
                      row["llama_setting"], show_ratio(row)]
        elif with_llama:
            cells += [f"failed: {row['llama_error']}", "", "", ""]
        print("| " + " | ".join(cells) + " |")
    speeds = sorted({f"{row['bytes_per_s'] / 1e9:.1f}" for row in rows}, key=float)
    print(f"\nRead bandwidth, measured over as many bytes as a step reads: {' to '.join(speeds[:1] + speeds[1:][-1:])} GB/s.")
    loud = [f"{row['shape']} {row['type']} {row['work']}" for row in rows if not is_quiet(row)]
    if loud:
        print(f"Something else was using this machine: samples differ by more than {QUIET} times in {', '.join(loud)}.")
