#!/usr/bin/env python3
"""CPU and GPU against the same reference answers, layer by layer: the GPU's error may not be much more than the CPU's.

    tests/gpu/agree.py --fusebox build/fusebox [--backend cuda] [--only CASE,...]

Both are held to verify's own limits; then, at every layer and for the logits, the GPU's relative error to three times
the CPU's plus four units of the activations' type: their sums have another order, their roundings the same places.
"""
import argparse, concurrent.futures, json, os, subprocess, sys

GOLDENS = "tests/data/golden"
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def verify(fusebox, case, backend, act, fuse):
    model = "models/storyteller" if case == "storyteller" else f"{GOLDENS}/{case}"
    command = [fusebox, "verify", model, "--golden", f"{GOLDENS}/{case}/golden.safetensors", "--backend", backend,
               "--act", act, "--fuse", fuse, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    rows = {f"layer {x['layer']}": x for x in report["layers"]}
    rows["logits"] = report["logits"]
    return report["ok"], rows


def compare(fusebox, case, backend, act):
    cpu_ok, cpu = verify(fusebox, case, "cpu", act, "auto")
    bad = [] if cpu_ok else ["the CPU does not verify"]
    worst = 0.0
    for fuse in ("none", "all"):
        ok, gpu = verify(fusebox, case, backend, act, fuse)
        if not ok:
            bad.append(f"fuse {fuse}: the GPU does not verify")
        for name, row in gpu.items():
            limit = 3 * cpu[name]["rel"] + 4 * UNIT[act]
            if row["rel"] is None or not row["rel"] <= limit:
                bad.append(f"fuse {fuse}, {name}: relative error {row['rel']}, the CPU's is {cpu[name]['rel']:.3g}")
            else:
                worst = max(worst, row["rel"] / limit)
    return case, act, cpu["logits"]["rel"], gpu["logits"]["rel"], worst, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusebox", default="build/fusebox")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    cases = sorted(x for x in os.listdir(GOLDENS) if os.path.exists(f"{GOLDENS}/{x}/golden.safetensors"))
    cases = [x for x in cases if not args.only or x in args.only.split(",")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        jobs = [pool.submit(compare, args.fusebox, c, args.backend, a) for c in cases for a in UNIT]
        for job in jobs:
            case, act, cpu, gpu, worst, bad = job.result()
            failed += bool(bad)
            print(f"{'not ok' if bad else 'ok'} - {case}, {act}: logits' relative error {cpu:.2e} on the CPU, {gpu:.2e} on "
                  f"the GPU; at most {worst:.0%} of what is allowed" + "".join(f"\n    {x}" for x in bad))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
