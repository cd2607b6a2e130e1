"""Reading a trace file: every layout gives the same columns, damage loses what it hits."""

import codecs
import gc
import gzip
import io
import json
import os
import zlib
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import trace_decode
from helpers.trace_file import KINDS, TraceError, load
from helpers.trace_kinds import Kinds
from helpers.trace_mend import mend

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"
PUBLIC = Path(os.environ.get("PUBLIC_TRACES", BESIDE))
BASE = 5_124_683_565_849  # microseconds, as of torch 2.11: since baseTimeNanoseconds


def event(cat, name, start, dur, pid=7, tid=7, **args):
    ts = round(BASE + start, 3)
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


STEP = event("user_annotation", "ProfilerStep#2", 0, 100.5)
OP = event("cpu_op", "aten::mm", 10.125, 30, **{
    "External id": 4, "Sequence number": 9, "Fwd thread id": 1, "Input Dims": [[8, 4], [4, 2]],
    "Input type": ["float", "float"]})  # fmt: skip
CALL = event("cuda_runtime", "cudaLaunchKernel", 20.001, 5, correlation=11)
KERNEL = event("kernel", "gemm<float>", 40.75, 50, pid=0, tid=7, **{
    "device": 1, "stream": 20, "correlation": 11, "grid": [4, 1, 1], "block": [128, 1, 1],
    "External id": 4})  # fmt: skip
COPY = event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 92, 3, pid=0, tid=7, device=1,
             stream=7, correlation=12, bytes=4096)  # fmt: skip
FRAME = event("python_function", "model.py(3): forward", 5, 60, **{"Python id": 1})
OTHERS = [
    {
        "ph": "M",
        "name": "process_name",
        "pid": 7,
        "tid": 0,
        "ts": 0,
        "args": {"name": "python"},
    },
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "autograd"}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 11, "pid": 7, "tid": 7, "ts": BASE + 20},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 11, "pid": 0, "tid": 7, "ts": BASE + 40},
    {
        "ph": "i",
        "name": "[memory]",
        "pid": 7,
        "tid": 7,
        "ts": BASE + 3,
        "args": {"Bytes": 512},
    },
    {"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "ts": BASE, "args": {"Utilization": 1}},
]
EVENTS = [STEP, OP, CALL, KERNEL, COPY, FRAME, *OTHERS]
TOP = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
}
OBJECT = {**TOP, "traceEvents": EVENTS, "traceName": "t.json"}
PLAIN = json.dumps(OBJECT)


def read(text, **options):
    data = text if isinstance(text, bytes) else text.encode()
    return load(io.BytesIO(data), **options)


def wrapped(*events):
    return json.dumps({"traceEvents": list(events)})


def assert_same(a, b):
    """All columns and lists equal."""
    for field in fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        elif field.name not in ("meta", "parts"):
            assert left == right, field.name
    for column in {column for part in a.parts for column in part}:
        left, right = a.take(column), b.take(column)
        np.testing.assert_array_equal(left, right, err_msg=column)


def test_each_column_of_each_kind():
    e = read(PLAIN)
    assert [KINDS[k] for k in e.kind] == ["label", "op", "call", "kernel", "memcpy", "python"]
    assert [e.names[i] for i in e.name] == [row["name"] for row in EVENTS[:6]]
    start = e.start_us + (e.origin_us - BASE)
    assert start.tolist() == pytest.approx([0, 10.125, 20.001, 40.75, 92, 5], abs=1e-9)
    assert e.dur_us.tolist() == [100.5, 30, 5, 50, 3, 60]
    assert [e.pids[i] for i in e.pid] == [7, 7, 7, 0, 0, 7]
    assert [e.tids[i] for i in e.tid] == [7] * 6
    assert e.correlation.tolist() == [0, 0, 11, 11, 12, 0]
    assert e.external.tolist() == [0, 4, 0, 4, 0, 0]
    assert e.device.tolist() == [-1, -1, -1, 1, 1, -1]
    assert e.stream.tolist() == [-1, -1, -1, 20, 7, -1]
    assert e.sequence.tolist() == [-1, 9, -1, -1, -1, -1]
    np.testing.assert_array_equal(e.bytes, [np.nan] * 4 + [4096, np.nan])
    assert e.shapes.tolist() == [-1, 0, -1, -1, -1, -1] and e.shape_texts == ["[[8,4],[4,2]]"]
    assert e.types.tolist() == [-1, 0, -1, -1, -1, -1] and e.type_texts == [
        '["float","float"]'
    ]
    launch = [e.launch_texts[e.grid[3]], e.launch_texts[e.block[3]]]
    assert launch == ["[4,1,1]", "[128,1,1]"] and e.grid.tolist().count(-1) == 5
    assert e.meta == {**TOP, "traceName": "t.json"}
    assert (e.flows, e.counters, e.instants, e.frames) == (2, 1, {"[memory]": 1}, 1)
    assert e.process_names == {7: "python"} and e.thread_names == {(7, 8): "autograd"}
    assert (e.lost, e.mended, len(e)) == ("", 0, 6)


LAYOUTS = {
    "one line": json.dumps(OBJECT, separators=(",", ":")).encode(),
    "indented": json.dumps(OBJECT, indent=4).encode(),
    "Windows line ends": json.dumps(OBJECT, indent=1).replace("\n", "\r\n").encode(),
    "bare list": json.dumps(EVENTS).encode(),
    "events last": json.dumps({**TOP, "traceName": "t", "traceEvents": EVENTS}).encode(),
    "events first": json.dumps({"traceEvents": EVENTS, **TOP}).encode(),
    "UTF-8 mark": codecs.BOM_UTF8 + PLAIN.encode(),
    "UTF-16": PLAIN.encode("utf-16"),
    "gzip": gzip.compress(PLAIN.encode()),
    "gzip twice": gzip.compress(gzip.compress(PLAIN.encode())),
    "gzip members": gzip.compress(PLAIN[:700].encode()) + gzip.compress(PLAIN[700:].encode()),
    "gzip and padding": gzip.compress(PLAIN.encode()) + bytes(512),
    "trailing comma": json.dumps(OBJECT).replace("}], ", "}, ], ").encode(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_columns(layout, tmp_path):
    expected = read(PLAIN)
    path = tmp_path / "trace.json"  # also what is packed: the name proves nothing
    path.write_bytes(LAYOUTS[layout])
    for found in load(path), load(str(path)), read(LAYOUTS[layout]):
        assert_same(found, expected)
        assert found.meta.get("deviceProperties") in (TOP["deviceProperties"], None)
        assert bool(found.meta) == (layout != "bare list")


class Trickle:
    """A file that cannot seek and gives a few bytes at a time."""

    def __init__(self, data, size):
        self.file, self.size = io.BytesIO(data), size

    def read(self, size):
        return self.file.read(min(size, self.size))


@pytest.mark.parametrize("layout", ["indented", "gzip", "UTF-16", "events first"])
def test_any_kind_of_file_object(layout, tmp_path):
    expected = read(PLAIN)
    for size in 1, 3, 1000:
        assert_same(load(Trickle(LAYOUTS[layout], size)), expected)
    path = tmp_path / "t.json"
    path.write_bytes(LAYOUTS[layout])
    with path.open("rb") as binary, path.open(errors="replace") as text:
        assert_same(load(binary), expected)
        assert_same(load(text), expected)
    assert_same(load(io.StringIO(PLAIN)), expected)
    with gzip.open(io.BytesIO(gzip.compress(PLAIN.encode()))) as unpacking:
        assert_same(load(unpacking), expected)


def many(count=400):
    """Events whose texts and arguments look like the border between two events."""
    for n in range(count):
        args = {"External id": n + 1, "Input Dims": [[n]], "x": [{"ph": 1}, {"ph": 2}]}
        yield event("cpu_op", f'odd"}},{{"ph": "X" {n} \\ "}}], ', n, 1, **args)


@pytest.mark.parametrize("size", [10, 150, 1000, 5000, 1 << 18])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_are_cut_between_events_only(monkeypatch, size, indent):
    monkeypatch.setattr(trace_decode, "CHUNK_BYTES", size)
    text = json.dumps({"traceEvents": list(many()), **TOP}, indent=indent)
    e = load(Trickle(text.encode(), 997))
    assert e.external.tolist() == list(range(1, 401))
    assert e.dur_us.tolist() == [1.0] * 400 and len(e.names) == 400
    assert (e.lost, e.mended, e.meta) == ("", 0, TOP)


def test_times_as_text_and_as_number():
    as_text = [dict(e, ts=str(e["ts"]), dur=str(e["dur"])) for e in EVENTS if "dur" in e]
    expected = read(wrapped(*EVENTS[:6]))
    found = read(wrapped(*as_text))
    np.testing.assert_allclose(found.start_us, expected.start_us, atol=1e-6)
    np.testing.assert_array_equal(found.dur_us, expected.dur_us)


@pytest.mark.parametrize("quote", ["", '"'])
def test_microseconds_of_the_epoch_keep_their_nanoseconds(quote, monkeypatch):
    """A float64 of that size is 0.25 us wide."""
    monkeypatch.setattr(trace_decode, "CHUNK_BYTES", 500)
    row = '{{"ph":"X","cat":"kernel","ts":{q}17528300833{n:05}.{n:03}{q},"dur":0.004}}'
    rows = ",".join(row.format(q=quote, n=n) for n in range(1, 100))
    e = read('{"traceEvents": [' + rows + "]}")
    start = e.start_us + (e.origin_us - 1_752_830_083_300_000)
    np.testing.assert_allclose(start, [n + n / 1000 for n in range(1, 100)], atol=1e-9)
    assert (e.dur_us == 0.004).all() and not e.mended


def test_one_absurd_time_does_not_blur_the_others():
    rows = [event("kernel", "k", n / 1000, 1) for n in range(1, 50)]
    e = read(wrapped(dict(OP, ts=1.5), *rows))
    starts = e.start_us[1:] + (e.origin_us - BASE)
    np.testing.assert_allclose(starts, [n / 1000 for n in range(1, 50)], atol=1e-6)


def test_time_zero_and_no_time_are_told_apart():
    rows = [event("kernel", "k", n, 1) for n in range(4)]
    rows[1]["ts"], rows[2]["ts"] = 0, "N/A"
    del rows[3]["dur"]
    e = read(wrapped(*rows))
    assert e.start_us[1] == -e.origin_us and np.isnan(e.start_us[2])
    assert np.isnan(e.dur_us).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "value", [0, -1, 2**32 - 1, 2**64 - 1, 10**30, None, "none", [], {}, 1e999]
)
def test_no_correlation_is_zero(value):
    rows = [
        event("kernel", "k", 0, 1, correlation=value),
        event("kernel", "k", 1, 1, correlation=5),
    ]
    text = wrapped(*rows).replace("Infinity", "1e999")
    assert read(text).correlation.tolist() == [0, 5]
    assert read(
        wrapped(event("kernel", "k", 0, 1, correlation="77"))
    ).correlation.tolist() == [77]


def test_ids_beyond_32_bits(monkeypatch):
    """They may come late, when those before them lie in a narrower column."""
    monkeypatch.setattr(trace_decode, "CHUNK_BYTES", 500)
    ids = [1, 2**31 - 1, *range(2, 30), 2**31, 2**62, 5]
    rows = [event("kernel", "k", n, 1, correlation=id, stream=id) for n, id in enumerate(ids)]
    e = read(wrapped(*rows, CALL))
    assert e.correlation.tolist() == [*ids, 11] and e.stream.tolist() == [*ids, -1]
    assert read(wrapped(*rows[:5], CALL)).correlation.dtype == np.int32


def test_begin_and_end_events_are_paired_by_thread():
    rows = [
        {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 100},
        {"ph": "B", "cat": "cpu_op", "name": "other", "pid": 1, "tid": 2, "ts": 101},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 110},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 115, "args": {"External id": 3}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 150},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 160},  # begun before the recording
    ]
    e = read(wrapped(*rows))
    found = zip([e.names[i] for i in e.name], e.dur_us, e.external, strict=True)
    assert list(found) == [("inner", 5, 3), ("outer", 50, 0)]


def test_categories_of_all_versions_and_vendors():
    kinds = Kinds()
    expected = {"Operator": "op", "cpu_op": "op", "Runtime": "call", "cuda_driver": "call",
                "xpu_runtime": "call", "privateuse1_runtime": "call", "Kernel": "kernel",
                "Memcpy": "memcpy", "gpu_memset": "memset", "cuda_sync": "sync",
                "user_annotation": "label", "gpu_user_annotation": "gpu_label",
                "overhead": "overhead", "Trace": "other", None: "other"}  # fmt: skip
    assert {category: KINDS[kinds[category]] for category in expected} == expected


def test_the_list_of_the_autograd_profiler():
    """EventList.export_chrome_trace: no categories, processes are called by their role."""
    rows = [{"name": "aten::mm", "ph": "X", "ts": 5.5, "dur": 2.0, "tid": 1,
             "pid": "CPU functions", "args": {}},
            {"name": "gemm", "ph": "X", "ts": 8, "dur": 2, "tid": 0, "pid": "CUDA functions"},
            {"name": "aten::mm", "ph": "s", "ts": 5.5, "tid": 1, "pid": "CPU functions",
             "id": 0, "cat": "cpu_to_cuda", "args": {}}]  # fmt: skip
    e = read(json.dumps(rows))
    assert [KINDS[k] for k in e.kind] == ["op", "kernel"] and e.flows == 1 and e.meta == {}


def test_plain_arguments_are_kept_of_convolutions_only():
    args = {"Concrete Inputs": ["", "", "", "[1, 1]"]}
    rows = [event("cpu_op", name, 0, 1, **args) for name in ("aten::add", "aten::conv2d")]
    e = read(wrapped(*rows))
    assert e.inputs.tolist() == [-1, 0] and e.input_texts == ['["","","","[1, 1]"]']


def test_device_and_stream_from_pid_and_tid():
    rows = [event("Kernel", "k", 0, 1, pid=2, tid="stream 13"),
            event("kernel", "k", 0, 1, pid=0, tid=7, device=3, stream=-1),
            event("gpu_user_annotation", "step", 0, 1, pid=1, tid=20),
            event("kernel", "k", 0, 1, pid=430_000, tid="queue")]  # fmt: skip
    e = read(wrapped(*rows))
    assert e.device.tolist() == [2, 3, 1, -1] and e.stream.tolist() == [13, 7, 20, -1]


def test_nonsense_where_values_belong_is_no_crash():
    rows = [
        {"ph": "X"},
        {"ph": "X", "name": None, "pid": [1], "tid": {}, "cat": ["a"], "ts": [], "dur": {}},
        {"ph": "X", "name": {"a": 1}, "ts": True, "args": "text"},
        {
            "ph": "X",
            "cat": "kernel",
            "name": 5,
            "ts": "x",
            "args": {"device": 1e300, "grid": 3},
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": 5,
            "args": {"Input Dims": 7, "Sequence number": "a"},
        },
        {"ph": ["X"]},
        {"ph": "M", "name": "process_name", "pid": [], "args": None},
        {"ph": "M", "name": "thread_name", "args": {"name": [1]}},
        {"ph": "E"},
        {},
        None,
        [[]],
        17,
    ]
    e = read(wrapped(OP, *rows, KERNEL))
    assert len(e) == 7 and e.names[e.name[0]] == "aten::mm" and e.device[-1] == 1
    assert [e.names[i] for i in e.name[1:6]] == ["", "", '{"a":1}', "5", "5"]
    assert e.device[4] == -1 and e.sequence[5] == -1
    assert "no events" in e.lost


def test_half_a_surrogate_pair_becomes_printable():
    e = read(wrapped(dict(OP, name="a\ud800b"), KERNEL))
    assert e.names[0].encode() == b"a?b"


# What writers get wrong: (what stands in the file, the name that is read).
FAULTS = {
    "backslashes": (r'"name": "C:\Users\new\mod.py(3): f"', r"C:\Users\new\mod.py(3): f"),
    "escaped as well": (r'"name": "C:\Users \"x\""', 'C:\\Users "x"'),
    "control character": ('"name": "a\x01\tb"', "a\x01\tb"),
    "bare N/A": ('"x": N/A, "name": "n"', "n"),
    "bare nan": ('"x": nan, "y": -nan(ind), "z": [inf, -inf], "name": "n"', "n"),
    "trailing comma": ('"x": [1, 2,], "y": {"a": 1,}, "name": "n"', "n"),
    "nothing": ('"x": , "name": "n"', "n"),
    "bad UTF-8": (b'"name": "a\xffb"', "a\ufffdb"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_event_is_mended_and_its_neighbours_are_kept(fault):
    broken, name = FAULTS[fault]
    broken = broken if isinstance(broken, bytes) else broken.encode()
    for count in 1, 300:
        rows = [json.dumps(row).encode() for row in many(count)]
        rows.insert(
            count // 2, json.dumps(KERNEL).encode().replace(b'"name": "gemm<float>"', broken)
        )
        e = read(b'{"traceEvents": [' + b",".join(rows) + b'], "traceName": "t"}')
        assert (len(e), e.mended, e.lost, e.meta) == (count + 1, 1, "", {"traceName": "t"})
        row = count // 2
        assert e.names[e.name[row]] == name and e.correlation[row] == 11


def test_an_event_beyond_repair_is_left_out_and_counted():
    rows = [json.dumps(row) for row in many(300)]
    rows.insert(100, '{"ph": "X", "name": "quo"te", "ts": 5}')
    rows.insert(200, '{"ph": "X", "name": "ts": }}}')
    e = read('{"traceEvents": [' + ",".join(rows) + "]}")
    assert e.external.tolist() == list(range(1, 301))
    assert e.lost == "Unreadable events left out: 2; events read: 300."


def test_an_event_nested_too_deep_is_left_out():
    deep = '{"ph": "X", "args": ' + "[" * 100_000 + "]" * 100_000 + "}"
    e = read('{"traceEvents": [' + ",".join([json.dumps(OP), deep, json.dumps(OP)]) + "]}")
    assert e.external.tolist() == [4, 4] and "left out: 1" in e.lost


def test_a_long_event_beside_a_broken_one(monkeypatch):
    """Halving a piece ends where one event fills it."""
    monkeypatch.setattr(trace_decode, "_SMALL_BYTES", 1000)
    long = event("cpu_op", "long", 1, 1, **{"External id": 8, "x": [{"a": 1}] * 20_000})
    e = read(wrapped(OP, long, OP).replace("long", "lo\ng"))
    assert e.external.tolist() == [4, 8, 4] and e.mended == 1


@pytest.mark.parametrize("bracket", ['"x": [{', '"x": {"y": ['])
def test_an_event_that_would_swallow_all_others(bracket):
    rows = [json.dumps(row) for row in many(100)]
    rows.insert(20, '{"ph": "X", ' + bracket)
    e = read('{"traceEvents": [' + ",".join(rows) + "]}")
    assert e.external.tolist()[-79:] == list(range(22, 101)) and len(e) >= 99


def test_mend_leaves_sound_json_alone():
    text = json.dumps(
        list(many(20)) + [{"e": -1.5e-7, "t": [True, None, "a, ]", "\\\\ \u20ac"]}]
    )
    assert mend(text) == text


def test_metadata_on_windows():
    text = PLAIN.replace('"t.json"', r'"C:\Users\me\t.json"')
    assert read(text).meta["traceName"] == r"C:\Users\me\t.json"
    broken = read(PLAIN.replace('"traceName": ', '"traceName" '))
    assert len(broken) == 6 and "after the events" in broken.lost


def ends(text):
    """Where each event of a trace ends."""
    decoder, found = json.JSONDecoder(), []
    place = text.index('"traceEvents": [') + 16
    while text[place] in "{, ":
        if text[place] == "{":
            place = decoder.raw_decode(text, place)[1]
            found.append(place)
        else:
            place += 1
    return found


@pytest.mark.parametrize("size", [300, 1 << 18])
def test_of_a_truncated_file_the_complete_events_are_kept(monkeypatch, size):
    monkeypatch.setattr(trace_decode, "CHUNK_BYTES", size)
    text = json.dumps({**TOP, "traceEvents": list(many(40))})
    whole = ends(text)
    for cut in [*range(whole[0], len(text) - 3, 53), *whole]:
        e = read(text[:cut])
        assert len(e) == sum(end <= cut for end in whole), cut
        assert "truncated" in e.lost and f"events read: {len(e)}." in e.lost
        assert e.meta == TOP


def test_a_packed_file_that_is_cut_or_damaged():
    text = json.dumps({**TOP, "traceEvents": list(many(4000))}).encode()
    packed, whole = gzip.compress(text, 1), ends(text.decode())
    cut = packed[: len(packed) // 2]
    came = zlib.decompressobj(31).decompress(cut)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0x55
    for data, cause in (cut, "end early"), (bytes(damaged), "damaged"):
        e = read(data)
        assert cause in e.lost and "events read" in e.lost
        assert len(e) >= sum(end <= len(came) for end in whole) - 300
    with gzip.open(io.BytesIO(cut)) as unpacking:  # its read() ends in an EOFError
        found = load(unpacking)
    assert len(found) == sum(end <= len(came) for end in whole) and "unpacking" in found.lost
    wrong_sum = packed[:-8] + bytes(4) + packed[-4:]
    assert len(read(wrong_sum)) == 4000 and "damaged" in read(wrong_sum).lost


NO_TRACE = {
    b"": "empty",
    b"  \n ": "empty",
    gzip.compress(b""): "empty",
    b"<!DOCTYPE html><html>": "HTML",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "LFS",
    b"PK\x03\x04....": "zip",
    b"\x28\xb5\x2f\xfd....": "zstd",
    b"\x00\x01\x02\x03": "no JSON",
    b"Traceback (most recent call last):": "no JSON",
    b'{"a": 1}': "traceEvents",
    b'{"schemaVersion": 1, "deviceProperties": [': "truncated",
    b'{"traceEvents": {"a": 1}}': "traceEvents",
    b"[]": "no events",
    b"[1, 2, 3]": "no events",
    b'[{"a": 1}, {"b": 2}]': "no events",
    b"[error] something went wrong": "no events",
    b'{"traceEvents": [{"ph": "X", "na': "truncated",
}


@pytest.mark.parametrize("data", NO_TRACE)
def test_what_is_no_trace_is_refused_in_one_sentence(data, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    for source in path, io.BytesIO(data):
        with pytest.raises(TraceError, match=NO_TRACE[data]) as error:
            load(source)
        assert "\n" not in str(error.value)
    with pytest.raises(TraceError, match=r"t\.json"):
        load(path)


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(TraceError, match="folder"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such file: .*none\.json"):
        load(tmp_path / "none.json")


def test_a_trace_of_metadata_alone_is_a_trace():
    e = read(json.dumps({**TOP, "traceEvents": OTHERS[:2]}))
    assert len(e) == 0 and e.start_us.dtype == float and not e.lost


@pytest.mark.parametrize("top", [{}, TOP])
def test_a_file_without_any_event_is_an_error_with_a_remedy(top):
    with pytest.raises(TraceError, match="no events: nothing was recorded. Record at least"):
        read(json.dumps({**top, "traceEvents": []}))


def test_several_traces_in_a_file_are_told():
    one = {**TOP, "traceEvents": [OP]}
    text = json.dumps(one)
    for several, others in (
        (text + text, "another trace"),
        (text + "\n" + text + "\n" + text, "2 other traces"),
        (json.dumps({"rank0": one, "rank1": one}), "another trace"),
        (json.dumps({"rank0": one, "rank1": one, "rank2": one}), "2 other traces"),
    ):
        e = read(several)
        assert len(e) == 1
        assert e.lost.startswith(f"The file holds {others}, left out: write each trace into")
        assert "unreadable" not in e.lost
    assert read(gzip.compress(text.encode()) * 2).lost.startswith("The file holds another")
    assert not read(text + "\n \n").lost


def test_a_list_of_traces_says_what_a_trace_is():
    with pytest.raises(TraceError, match="no events: 2; .* A trace is a list of events"):
        read(json.dumps([{"traceEvents": [OP]}] * 2))


@pytest.mark.parametrize("count", [40, 4000])  # within the first chunk, and beyond it
def test_damage_in_the_first_chunk_of_a_packed_file(count):
    text = json.dumps({**TOP, "traceEvents": list(many(count))}).encode()
    packed = gzip.compress(text, 0)  # stored: a changed byte changes the checksum alone
    for at in (40, len(packed) // 2, len(packed) - 6):
        damaged = bytearray(packed)
        damaged[at] ^= 0x01
        e = read(bytes(damaged))
        assert "damaged" in e.lost and len(e) >= count - 2, (at, e.lost)
    packed = bytearray(gzip.compress(text, 1))
    packed[len(packed) // 2] = packed[len(packed) // 2] ^ 0xFF
    e = read(bytes(packed))
    assert "damaged" in e.lost and len(e) >= 0.2 * count


def test_a_list_inside_a_broken_event_does_not_end_the_events():
    rows = [event("cpu_op", f"op {n}", n, 1, x=[{"ph": 1}, {"ph": 2}]) for n in range(50)]
    text = wrapped(*rows)
    at = text.index('"dur"', text.index("op 20"))
    e = read(text[:at] + "#" + text[at + 1 :])
    assert len(e) >= 48 and e.lost.startswith("Unreadable events left out: 1")
    for n in 3, 20:  # a bracket too many, before the rest of an event
        at = text.index('"cat"', text.index(f"op {n}"))
        assert len(read(text[:at] + "], " + text[at:])) >= 48


@pytest.mark.parametrize("data", [b"\x1f\x8b" + bytes(60), gzip.compress(PLAIN.encode())[:14]])
def test_a_packed_file_of_which_nothing_is_left_is_not_called_empty(data):
    with pytest.raises(TraceError, match="gzip data .* (Copy it again|record)") as error:
        read(data)
    assert "empty" not in str(error.value)


def test_padding_behind_the_last_member_is_no_damage():
    assert not read(gzip.compress(PLAIN.encode()) + bytes(512)).lost


def test_what_is_neither_a_path_nor_a_file():
    for wrong in ({"traceEvents": []}, [OP], PLAIN.encode(), 3):
        with pytest.raises(TypeError, match=f"open file, not from {type(wrong).__name__}"):
            load(wrong)
    with pytest.raises(ValueError, match=r"io\.StringIO\(text\)") as error:
        load(PLAIN)
    assert len(str(error.value)) < 200


def test_a_file_that_was_read_before(tmp_path):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(PLAIN.encode()))
    with gzip.open(path) as file, path.open("rb") as packed:
        for spent in (file, packed):
            spent.read()
            with pytest.raises(TraceError, match=r"read to its end before: call seek\(0\)"):
                load(spent)
            spent.seek(0)
            assert len(load(spent)) == len(load(path))


def test_categories_that_are_not_read_are_counted_once_each():
    rows = [event("mtia_ccp_events", "k", n, 1) for n in range(3)]
    rows += [event("Trace", "PyTorch Profiler (0)", 0, 9), OP]
    rows[1]["args"] = "nonsense"  # makes the reader take the piece again
    e = read(wrapped(*rows))
    assert e.unread == {"mtia_ccp_events": 3, "Trace": 1} and not e.only_unread
    assert read(wrapped(*rows[:3])).only_unread


@pytest.mark.parametrize("data", [b"", b'{"a": 1}', b"hello", b"[]", b'{"traceEvents": []}'])
def test_what_is_no_trace_comes_with_a_remedy(data):
    with pytest.raises(TraceError, match=r"[Rr]ecord|export_chrome_trace|Copy it"):
        read(data)


def test_the_garbage_collector_is_as_before():
    assert gc.isenabled()
    with pytest.raises(TraceError):
        read("nothing")
    assert gc.isenabled()
    gc.disable()
    try:
        read(PLAIN)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_msgspec_changes_nothing(monkeypatch):
    pytest.importorskip("msgspec")
    texts = [PLAIN, wrapped(*many()), wrapped(*EVENTS, dict(OP, ts=float("nan")))]
    with_it = [read(text) for text in texts]
    monkeypatch.setattr(trace_decode, "msgspec", None)
    for text, found in zip(texts, with_it, strict=True):
        assert_same(read(text), found)


SOUND = wrapped(
    *(event("cpu_op", f"op {n}", n, 1, **{"External id": n + 1}) for n in range(200))
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(30, len(SOUND) - 5),
    st.binary(max_size=6)
    | st.sampled_from([b'"', b"}", b"{", b"]", b"[", b"},{", b"\\", b'"},{"']),
    st.integers(0, 25),
    st.sampled_from([200, 3000, 1 << 18]),
)
def test_damage_in_one_place_loses_its_neighbours_at_most(place, inserted, deleted, size):
    data = SOUND.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_decode, "CHUNK_BYTES", size)
        patch.setattr(trace_decode, "_SMALL_BYTES", min(size, 1 << 15))
        e = read(data[:place] + inserted + data[place + deleted :])
    kept = set(e.external.tolist()) & set(range(1, 201))
    assert len(kept) >= 198


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not here")
def test_public_traces_as_json_reads_them():
    for path in sorted(PUBLIC.glob("*.json.gz")):
        data = json.loads(gzip.decompress(path.read_bytes()))
        rows = data if isinstance(data, list) else data["traceEvents"]
        rows = [row for row in rows if row["ph"] == "X"]
        e = load(path)
        assert (len(e), e.lost, e.mended) == (len(rows), "", 0), path.name
        kinds = Kinds()
        assert Counter(e.kind.tolist()) == Counter(kinds[row["cat"]] for row in rows), (
            path.name
        )
        assert [e.names[i] for i in e.name] == [row["name"] for row in rows], path.name
        starts = np.array([row["ts"] for row in rows]) - e.origin_us
        np.testing.assert_allclose(e.start_us, starts, atol=6e-4, err_msg=path.name)
        correlation = [row.get("args", {}).get("correlation", 0) for row in rows]
        assert e.correlation.tolist() == [max(0, number) for number in correlation], path.name
