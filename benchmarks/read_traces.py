"""How long reading a large trace takes, and how much memory (`make bench`).

Repeats a recorded trace, times and ids shifted, until it is as large as asked for, and reads
it in several ways, each in a process of its own. Seconds are those of reading and adding up,
imports left out; memory is the peak of the whole process. HolisticTraceAnalysis takes part
where it is installed (`pip install traceinsight`).

    python benchmarks/read_traces.py [TRACE] [--mb 100] [--large]
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "data/nvidia-h200/03_loop_optimizer.json.gz"
IDS = ("correlation", "External id", "external id", "Ev Idx")


def make(source, size_mb, path):
    """Write a trace of a size by repeating another one; return its number of events.

    Steps are not repeated: a large trace has few long ones, and HolisticTraceAnalysis takes
    time in proportion to steps times events.
    """
    raw = Path(source).read_bytes()
    trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    once, again = [], []
    for event in trace["traceEvents"]:
        one = event["ph"] == "M" or event["name"].startswith("ProfilerStep#")
        (once if one else again).append(event)
    ends = [event["ts"] + event.get("dur", 0) for event in again]
    shift_us = round(max(ends) - min(event["ts"] for event in again)) + 1000
    ids = [event.get("id", 0) for event in again]
    ids += [event.get("args", {}).get(key, 0) for event in again for key in IDS]
    shift_id = max(ids) + 1
    count = len(once)
    with open(path, "w") as file:
        head = {key: value for key, value in trace.items() if key != "traceEvents"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event) for event in once))
        copies = 0
        while file.tell() < size_mb * 1e6:
            for event in again:
                shifted = _shifted(event, copies * shift_us, copies * shift_id)
                file.write(",\n" + json.dumps(shifted))
            copies += 1
        file.write("\n]}\n")
    return count + copies * len(again)


def _shifted(event, time_us, number):
    event = {**event, "ts": round(event["ts"] + time_us, 3)}
    if "id" in event:
        event["id"] += number
    if args := event.get("args"):
        event["args"] = args | {key: args[key] + number for key in IDS if args.get(key)}
    return event


def with_helpers(path):
    """Read it into linked tables; return (seconds, kernels)."""
    from helpers import traces

    start = time.perf_counter()
    kernels = traces.read(path).kernels
    table = kernels.groupby("name", observed=True)["dur_us"].agg(["count", "sum"])
    return time.perf_counter() - start, int(table["count"].sum())


def with_pandas(path):
    """Load the file with json into one DataFrame, without any links; as above."""
    import pandas

    start = time.perf_counter()
    with open(path) as file:
        events = pandas.DataFrame(json.load(file)["traceEvents"])
    table = events[events["cat"] == "kernel"].groupby("name")["dur"].agg(["count", "sum"])
    return time.perf_counter() - start, int(table["count"].sum())


def with_hta(path):
    """Parse it with HolisticTraceAnalysis and break down its kernels; (seconds, None)."""
    from hta.trace_analysis import TraceAnalysis

    start = time.perf_counter()
    TraceAnalysis(trace_files={0: str(path)}).get_gpu_kernel_breakdown(visualize=False)
    return time.perf_counter() - start, None  # it reports the longest kernels only


READERS = {
    "helpers.traces": with_helpers,
    "json + DataFrame": with_pandas,
    "HolisticTraceAnalysis": with_hta,
}


def measure(reader, path):
    """Run one reader in a fresh process; return (seconds, peak MB, kernels)."""
    command = [sys.executable, __file__, str(path), "--reader", reader]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{reader} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _measured_here(reader, path):
    sys.path.insert(0, str(ROOT))
    seconds, kernels = READERS[reader](path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mega = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kilobytes on Linux
    print(json.dumps([seconds, peak / mega, kernels]))


def compare(trace, main_mb, large):
    """Make the files, run every reader, print the table."""
    sizes = [main_mb / 2, main_mb] + ([4 * main_mb] if large else [])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "large.json"
            print(f"making {size:.0f} MB from {Path(trace).name} ...", flush=True)
            events = make(trace, size, path)
            for reader in READERS if size == main_mb else ["helpers.traces"]:
                if reader == "HolisticTraceAnalysis" and not find_spec("hta"):
                    print(f"{reader} is not installed: left out", flush=True)
                    continue
                print(f"  {events:,} events: {reader} ...", flush=True)
                rows.append((reader, size, events, *measure(reader, path)))
    ours = next(row for row in rows if row[:2] == ("helpers.traces", main_mb))
    line = "{:22} {:>5} {:>10} {:>8} {:>8} {:>8} {:>7} {:>7}".format
    print(
        "\n"
        + line("reader", "MB", "events", "seconds", "peak MB", "kernels", "time", "memory")
    )
    for reader, size, events, seconds, peak, kernels in rows:
        found = "-" if kernels is None else f"{kernels:,}"
        ratios = f"{seconds / ours[3]:.1f}x", f"{peak / ours[4]:.1f}x"
        size, seconds, peak = f"{size:.0f}", f"{seconds:.2f}", f"{peak:.0f}"
        print(line(reader, size, f"{events:,}", seconds, peak, found, *ratios))
    print(f"\nmsgspec is {'' if find_spec('msgspec') else 'not '}installed.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", default=TRACE, help="the trace to repeat")
    parser.add_argument("--mb", type=float, default=100, help="size of the file (100)")
    parser.add_argument("--large", action="store_true", help="also read four times the size")
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        _measured_here(options.reader, options.trace)
    else:
        compare(options.trace, options.mb, options.large)


if __name__ == "__main__":
    main()
