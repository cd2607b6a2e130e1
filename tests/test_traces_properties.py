"""Whatever happens to a file: a Trace or one clear sentence, and sums that add up."""

import gzip
import io
import json
import random
from functools import cache

import numpy as np
import pytest
from hand_trace import HandTrace, recording

from helpers import traces
from helpers.__main__ import main
from helpers.diagnose import diagnose

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")
given, settings = hypothesis.given, hypothesis.settings

FILES = ["sleeping_loader", "pageable_copies", "block_eager", "graph_replay", "by hand"]
few = settings(max_examples=25, deadline=None, derandomize=True, database=None)
TABLES = ["ops", "calls", "kernels", "copies", "annotations", "steps", "overhead", "gpu"]
files, seeds = st.sampled_from(FILES), st.integers(0, 2**32)
JUNK = [
    b"\x00",
    b"\xff\xfe",
    b"\\",
    b'"',
    b"{",
    b"}",
    b"]",
    b",",
    b",,",
    b"NaN",
    b"\n",
    b"\x1f\x8b",
    b'{"ph": "X"}',
    b"[[[[",
    "é\u2028".encode(),
]
VALUES = [
    None,
    "",
    "x",
    "NaN",
    "-1",
    "1e400",
    0,
    -1,
    -5.5,
    1e300,
    2**63,
    2**70,
    -(2**70),
    0.5,
    True,
    [],
    [1, [2]],
    {},
    {"a": {"b": []}},
    "\ud83d\ude00" * 40,
]
CATEGORIES = ["kernel", "cpu_op", "cuda_runtime"]
FIELDS = "ph cat name pid tid ts dur args id".split()
ARGS = ["correlation", "device", "stream", "bytes", "grid", "External id"]
ARGS += ["Input Dims", "Input type", "Sequence number"]


def by_hand():
    """All that a file can hold, in little."""
    h = HandTrace(devices=[{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200"}])
    for i in range(3):
        at = 1000 * i
        h.step(at, 900)
        h.op("aten::linear", at + 5, 100, shapes=[[8, 4], [2, 4]], types=["float", "float"])
        h.run("gemm", at + 10, 10 * i + 1, at + 40, 30)
        h.run("other", at + 120, 10 * i + 2, at + 150, 30, device=1)
        h.run("beside", at + 140, 10 * i + 3, at + 155, 30, stream=9)
        h.launch("cudaMemcpyAsync", at + 200, 20, 10 * i + 4)
        h.copy("Memcpy HtoD (Pageable -> Device)", at + 210, 60, 10 * i + 4, bytes=2**20)
        h.op("aten::item", at + 300, 200)
        h.sync("cudaStreamSynchronize", at + 310, 150)
        h.overhead("Buffer Flush", at + 500, 50)
        h.label("forward", at, 300)
        h.gpu_label("forward", at + 40, 200)
        h.event("python_function", "train.py(1): step", at, 890)
    return h.text().encode()


@cache
def text(name):
    return by_hand() if name == "by hand" else gzip.decompress(recording(name).read_bytes())


def top_of(name):
    return json.loads(text(name))


def union(starts, ends):
    total, reach = 0.0, -np.inf
    for start, end in sorted(zip(starts, ends, strict=True)):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def sound(trace):
    """What must hold of any Trace, however odd its file."""
    assert isinstance(trace, traces.Trace) and "\n" not in repr(trace)
    for name in (
        "ops",
        "calls",
        "kernels",
        "copies",
        "annotations",
        "steps",
        "overhead",
        "gpu",
    ):
        table = getattr(trace, name)
        times = table[["start_us", "dur_us"]].to_numpy(float)
        assert np.isfinite(times).all() and (times[:, 1] >= 0).all(), name
    ops = trace.ops
    assert (ops["self_us"] <= ops["dur_us"] + 1e-6).all()
    below = (ops["self_us"] < -1).any()  # ops that overlap without nesting: said, not mended
    assert not below or any("self" in note for note in trace.notes), trace.notes
    parent = ops["parent"].to_numpy()
    assert ((parent >= -1) & (parent < len(ops))).all()
    has = parent >= 0
    above = ops.iloc[parent[has]]
    assert (ops["depth"].to_numpy()[has] == above["depth"].to_numpy() + 1).all()
    assert (ops["depth"].to_numpy()[~has] == 0).all()
    roots = ops.loc[~has, "dur_us"].sum()
    near = 1e-3 + 1e-9 * ops["dur_us"].sum()
    assert ops["self_us"].sum() == pytest.approx(roots, rel=1e-6, abs=near)
    linked = links_hold(trace)
    gpu = len(trace.kernels) + len(trace.copies)
    assert (trace.linked is None) == (gpu == 0)
    assert gpu == 0 or trace.linked == pytest.approx(linked / gpu)
    aside = sum(trace.set_aside.values())  # they have a call too
    assert linked <= int(trace.calls["gpu_events"].sum()) <= linked + aside
    assert bool(trace.why_no_kernels) == (len(trace.kernels) == 0)
    assert all(isinstance(note, str) and note and "\n" not in note for note in trace.notes)
    return trace


def links_hold(trace):
    """Every link leads to a row that has the same correlation; returns how many there are."""
    linked, calls = 0, trace.calls
    for table in (trace.kernels, trace.copies):
        call = table["call"].to_numpy()
        assert ((call >= -1) & (call < len(calls))).all()
        some = table[call >= 0]
        linked += len(some)
        to = calls.iloc[call[call >= 0]]
        for column in ("correlation", "op", "step"):
            assert (some[column].to_numpy() == to[column].to_numpy()).all(), column
        assert not some["correlation"].eq(0).any()
        delay = some["start_us"].to_numpy() - to["start_us"].to_numpy()
        assert np.allclose(some["delay_us"], delay, rtol=1e-9, atol=1e-6)
        none = table[call < 0]
        assert none["launch_us"].isna().all() and none["step"].eq(-1).all()
        # an External id may name the op where there is no correlation at all
        assert (none["op"].eq(-1) | none["correlation"].eq(0)).all()
    return linked


def adds_up(d):
    """What must hold of any diagnosis."""
    numbers = json.loads(json.dumps(d.as_dict(), allow_nan=False))
    lines = str(d).splitlines()
    assert 0 < len(lines) <= 24 and max(map(len, lines)) <= 95
    assert (numbers["cause"] is not None) <= (numbers["regime"] == "overhead")
    window = numbers["step_us"] * max(numbers["steps"], 1) if numbers["step_us"] else 0
    near = 1e-6 * max(window, 1)
    for device in numbers["devices"].values():
        assert all(value >= 0 for value in device.values())
        assert device["kernel_us"] <= device["kernel_sum_us"] + near
        assert device["busy_us"] <= device["kernel_us"] + device["copy_us"] + near
        assert device["busy_us"] <= window + near
        assert device["busy_us"] + device["idle_us"] == pytest.approx(window, abs=near)
        assert 0 <= device["busy_fraction"] <= 1 + 1e-9
    if numbers["busy_fraction"]:
        assert sum(d.shares.values()) == pytest.approx(1, abs=1e-6)
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in d.shares.values())
        assert numbers["bound_speedup"] >= 1 - 1e-9
    for remedy in numbers["remedies"]:
        assert remedy["at_most"] is None or remedy["at_most"] >= 1 - 1e-9
    shares = [kernel["share"] for kernel in numbers["top_kernels"]]
    assert sum(shares) <= 1 + 1e-6 and shares == sorted(shares, reverse=True)
    return numbers


def survives(data):
    """Read and diagnose these bytes; the Trace, or None when one sentence refused them."""
    try:
        trace = traces.read(io.BytesIO(data))
    except traces.TraceError as error:
        sentence = str(error)
        assert 20 < len(sentence) < 400 and "\n" not in sentence and sentence.isprintable()
        return None
    adds_up(diagnose(sound(trace)))
    return trace


def written(top):
    return json.dumps(top).encode()


# ---------------------------------------------------------------- the files as they are


@pytest.mark.parametrize("name", FILES)
def test_sound_files(name):
    trace = survives(text(name))
    ops = trace.ops
    roots = ops.loc[ops["parent"] < 0, "dur_us"].sum()
    assert ops["self_us"].sum() == pytest.approx(roots)
    numbers = diagnose(trace).as_dict()
    for key, device in numbers["devices"].items():
        mine = trace.gpu[trace.gpu["device"] == int(key)]
        start = trace.steps["start_us"].min()
        end = start + numbers["step_us"] * numbers["steps"]
        starts, ends = mine["start_us"].clip(start, end), mine["end_us"].clip(start, end)
        assert device["busy_us"] == pytest.approx(union(starts, ends), abs=1e-3)


# ---------------------------------------------------------------- damage to the bytes


@few
@given(files, st.floats(0, 1))
def test_cut_anywhere(name, where):
    data = text(name)
    cut = data[: int(where * len(data))]
    trace = survives(cut)
    if trace is not None:
        whole = traces.read(io.BytesIO(data))
        assert len(trace.kernels) <= len(whole.kernels) and len(trace.ops) <= len(whole.ops)
        complete = cut.count(b'"cat": "kernel"') - 1  # the last one may be the one that is cut
        assert len(trace.kernels) >= complete


@few
@given(files, st.floats(0, 1))
def test_cut_while_packed(name, where):
    packed = gzip.compress(text(name), mtime=0)
    survives(packed[: int(where * len(packed))])


@few
@given(files, seeds, st.integers(1, 30))
def test_corrupt_bytes(name, seed, times):
    chance, data = random.Random(seed), bytearray(text(name))
    for _ in range(times):
        data[chance.randrange(len(data))] = chance.randrange(256)
    survives(bytes(data))


@few
@given(files, seeds, st.integers(1, 10))
def test_corrupt_while_packed(name, seed, times):
    chance, data = random.Random(seed), bytearray(gzip.compress(text(name), mtime=0))
    for _ in range(times):
        data[chance.randrange(len(data))] = chance.randrange(256)
    survives(bytes(data))


@few
@given(files, seeds, st.lists(st.sampled_from(JUNK), min_size=1, max_size=4))
def test_junk_between_the_bytes(name, seed, junk):
    chance, data = random.Random(seed), text(name)
    for piece in junk:
        at = chance.randrange(len(data))
        data = data[:at] + piece + data[at:]
    survives(data)


@few
@given(files, seeds)
def test_a_piece_is_missing(name, seed):
    chance, data = random.Random(seed), text(name)
    a, b = sorted(chance.randrange(len(data)) for _ in range(2))
    survives(data[:a] + data[b:])


@few
@given(st.binary(max_size=400))
def test_bytes_that_never_were_a_trace(data):
    survives(data)


# ---------------------------------------------------------------- damage to the events


@few
@given(files, seeds, st.sampled_from(FIELDS + ARGS), st.floats(0, 1))
def test_fields_are_missing(name, seed, field, share):
    chance, top = random.Random(seed), top_of(name)
    for event in top["traceEvents"]:
        if chance.random() < share:
            event.pop(field, None)
            if isinstance(event.get("args"), dict):
                event["args"].pop(field, None)
    survives(written(top))


@few
@given(files, seeds, st.sampled_from(FIELDS + ARGS), st.sampled_from(VALUES), st.floats(0, 1))
@hypothesis.example("by hand", 0, "Input type", "float", 1.0)
@hypothesis.example("by hand", 0, "Input type", [["float"]], 1.0)
@hypothesis.example("by hand", 0, "Input Dims", 3, 1.0)
def test_fields_of_another_type(name, seed, field, value, share):
    chance, top = random.Random(seed), top_of(name)
    for event in top["traceEvents"]:
        if chance.random() < share:
            place = event if field in FIELDS else event.get("args")
            if isinstance(place, dict):
                place[field] = value
    survives(written(top))


@few
@given(files, st.sampled_from(VALUES), st.data())
def test_the_top_level_is_odd(name, value, data):
    top = top_of(name)
    keys = ["deviceProperties", "distributedInfo", "schemaVersion", "baseTimeNanoseconds"]
    top[data.draw(st.sampled_from([*keys, "traceEvents", "new"]))] = value
    survives(written(top))


@few
@given(files, seeds)
def test_the_order_of_the_events_does_not_matter(name, seed):
    top, before = top_of(name), traces.read(io.BytesIO(text(name)))
    random.Random(seed).shuffle(top["traceEvents"])
    after = survives(written(top))
    for table in ("ops", "calls", "kernels", "copies", "steps", "annotations"):
        a, b = getattr(before, table), getattr(after, table)
        assert len(a) == len(b)
        assert sorted(a["start_us"]) == pytest.approx(sorted(b["start_us"]), abs=1e-6)
    assert after.linked == before.linked
    assert after.ops["self_us"].sum() == pytest.approx(before.ops["self_us"].sum())
    one, other = adds_up(diagnose(before)), adds_up(diagnose(after))
    assert (one["regime"], one["cause"]) == (other["regime"], other["cause"])
    assert one["devices"] == {
        key: pytest.approx(device, abs=1e-6) for key, device in other["devices"].items()
    }


@few
@given(files, seeds, st.floats(0, 1))
def test_events_twice(name, seed, share):
    chance, top = random.Random(seed), top_of(name)
    top["traceEvents"] += [e for e in top["traceEvents"] if chance.random() < share]
    once = adds_up(diagnose(traces.read(io.BytesIO(text(name)))))
    trace = survives(written(top))
    twice = adds_up(diagnose(trace))
    for key, device in once["devices"].items():  # a union counts nothing twice
        assert twice["devices"][key]["busy_us"] == pytest.approx(device["busy_us"], abs=1e-6)


@few
@given(files, seeds, st.lists(st.sampled_from(VALUES), min_size=1, max_size=5))
def test_events_that_are_none(name, seed, junk):
    chance, top = random.Random(seed), top_of(name)
    kernels = len(traces.read(io.BytesIO(text(name))).kernels)
    for value in junk:
        top["traceEvents"].insert(chance.randrange(len(top["traceEvents"])), value)
    trace = survives(written(top))
    assert trace is not None and len(trace.kernels) == kernels


@few
@given(
    files, seeds, st.floats(-1e6, 1e6), st.sampled_from(["kernel", "cpu_op", "cuda_runtime"])
)
def test_times_that_jump(name, seed, by, category):
    chance, top = random.Random(seed), top_of(name)
    for event in top["traceEvents"]:
        if event.get("cat") == category and chance.random() < 0.5:
            event["ts"] += by * chance.random()
            event["dur"] *= chance.choice([0, 1, 100, -1])
    survives(written(top))


# ---------------------------------------------------------------- the command


@settings(few, max_examples=12)
@given(files, seeds, st.floats(0, 1), st.booleans())
def test_the_command_answers_0_or_2(tmp_path_factory, name, seed, where, as_json):
    chance, data = random.Random(seed), bytearray(text(name))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path_factory.mktemp("mutant") / "x.json"
    path.write_bytes(bytes(data[: int(where * len(data))]))
    assert main(["diagnose", str(path)] + ["--json"] * as_json) in (0, 2)
