"""The pictures of traces: what they draw, against traces made by hand to the microsecond."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hand_trace import HandTrace
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import same_color, to_hex
from matplotlib.text import Text

from helpers import picture, plots, traces
from helpers.picture import COLOURS
from helpers.plots_bars import COPY, IDLE, Lane, fitting, width
from helpers.plots_lanes import OPS, count, kernel_text, label_text, levels, op_text, percent
from helpers.plots_timeline import ARROWS

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = Path(os.environ.get("PUBLIC_TRACES", ROOT.parent / "shared" / "traces"))
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"


def axes_of(figures, index=0):
    return figures[-1].axes[index]


def corners(axes, colour):
    """Return the corners of all bars of one colour."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection):
            faces = collection.get_facecolor()
            for n, path in enumerate(collection.get_paths()):
                if len(faces) and same_color(to_hex(faces[n % len(faces)]), colour):
                    found.append(path.vertices)
    return found


def bars(axes, colour):
    """Return the (start, end) of all bars of one colour, in order."""
    xs = [points[:, 0] for points in corners(axes, colour)]
    return sorted((float(x.min()), float(x.max())) for x in xs)


def heights(axes, colour):
    return [float(np.ptp(points[:, 1])) for points in corners(axes, colour)]


def lanes(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def two_devices():
    """One step of 0 to 1000: device 0 on two streams, device 1 with the same stream id."""
    h = HandTrace()
    h.step(0, 1000)
    h.label("forward", 10, 800)
    h.op("aten::linear", 20, 300)
    h.op("aten::addmm", 30, 250)
    h.launch("cudaLaunchKernel", 100, 50, correlation=1)
    h.launch("cudaMemcpyAsync", 400, 50, correlation=2)
    h.launch("cudaLaunchKernel", 500, 50, correlation=3)
    h.sync("cudaStreamSynchronize", 600, 390)
    h.kernel(GEMM, 200, 300, correlation=1, device=0, stream=7)
    h.copy("Memcpy HtoD (Pinned -> Device)", 450, 150, correlation=2, device=0, stream=13)
    h.kernel("my_own_kernel", 600, 300, correlation=3, device=1, stream=7)
    return h


def test_the_timeline_has_a_lane_for_what_host_and_each_stream_did(figures):
    trace = two_devices().trace()
    assert plots.timeline(trace) is None
    axes = axes_of(figures)
    host = ["steps", "labels", "ops", "", "calls"]
    gpus = ["GPU 0\nstream 7", "GPU 0\nstream 13", "GPU 1\nstream 7"]
    assert lanes(axes) == host + gpus
    assert bars(axes, OPS[0]) == [(20, 320)]
    assert bars(axes, OPS[1]) == [(30, 280)]
    assert bars(axes, COLOURS["launch"]) == [(100, 150), (400, 450), (500, 550)]
    assert bars(axes, COLOURS["limit"]) == [(600, 990)]
    assert bars(axes, COLOURS["compute"]) == [(200, 500)]
    assert bars(axes, COPY) == [(450, 600)]
    assert bars(axes, COLOURS["memory"]) == [(600, 900)]


def test_the_timeline_shades_idle_time_of_each_device(figures):
    plots.timeline(two_devices().trace())
    axes = axes_of(figures)
    # device 0: 0..200, 600..1000; device 1: 0..600, 900..1000; shared time counts once
    exact = {(0, 200), (600, 1000), (0, 600), (900, 1000)}
    shaded = [span for span in bars(axes, IDLE) if span[1] - span[0] > 5]
    assert set(shaded) == exact
    assert (
        axes.get_title(loc="left")
        == "2 GPUs, busy 30% to 40% of 1,000 us: 2 kernels and 1 copy"
    )


def test_arrows_run_from_the_start_of_a_call_to_what_it_started(figures):
    plots.timeline(two_devices().trace())
    [arrows] = [c for c in axes_of(figures).collections if isinstance(c, LineCollection)][-1:]
    spans = [tuple(segment[:, 0]) for segment in arrows.get_segments()]
    assert spans == [(100, 200), (400, 450), (500, 600)]
    downwards = [segment[0, 1] > segment[1, 1] for segment in arrows.get_segments()]
    assert all(downwards)


def test_a_window_begins_at_zero_and_cuts_what_reaches_over_it(figures):
    trace = two_devices().trace()
    plots.timeline(trace, 250, 450, "A part")
    axes = axes_of(figures)
    assert axes.get_title(loc="left") == "A part"
    assert axes.get_xlim() == (0, 200)
    assert axes.get_xlabel() == "microseconds since 250 us of the trace"
    assert bars(axes, COLOURS["compute"]) == [(0, 200)]
    assert bars(axes, OPS[0]) == [(0, 70)]
    assert "GPU 1\nstream 7" not in lanes(axes)


def test_the_default_window_ends_with_the_last_kernel_launched_in_a_step(figures):
    h = HandTrace()
    h.op("aten::before", 0, 10)
    h.step(100, 100)
    h.run("late", 110, 1, 400, 100)
    h.op("aten::after", 600, 50)
    plots.timeline(h.trace())
    axes = axes_of(figures)
    assert axes.get_xlim() == (0, 400)
    assert bars(axes, OPS[0]) == [(10, 20)]
    assert axes.get_title(loc="left") == "The GPU is idle 75% of 400 us: 1 kernel"


def test_bars_too_thin_to_draw_become_the_share_of_time_they_fill(figures):
    h = HandTrace()
    h.step(0, 20_000)
    for n in range(2000):  # a kernel of 6 us every 10 us
        h.run("tiny", 10 * n, n + 1, 10 * n + 2, 6)
    plots.timeline(h.trace())
    axes = axes_of(figures)
    assert "their height is the share" in axes.get_xlabel()
    assert np.allclose(heights(axes, COLOURS["memory"])[1:-1], 0.6 * 1.2, atol=0.05)
    assert np.allclose(heights(axes, IDLE)[1:-1], 0.4 * 1.2, atol=0.05)  # of a lane 1.2 high
    assert axes.get_title(loc="left") == "The GPU is busy 60% of 20,000 us: 2,000 kernels"
    [arrows] = [c for c in axes.collections if isinstance(c, LineCollection)][-1:]
    assert 0 < len(arrows.get_segments()) <= ARROWS
    legend = [text.get_text() for text in figures[-1].legends[0].get_texts()]
    assert legend[-1] == f"launch to start ({len(arrows.get_segments())} of 2,000)"
    assert len(axes.get_children()) < 200  # not an artist an event


def test_labels_stay_inside_their_bars(figures):
    h = HandTrace()
    h.step(0, 1000)
    for n, us in enumerate((4, 10, 20, 40, 80, 160, 320)):
        h.run(GEMM, 2 * us, n + 1, 2 * us, us)
    plots.timeline(h.trace())
    axes = axes_of(figures)
    places = [text for text in axes.texts if "matmul" in text.get_text()]
    assert {text.get_text() for text in places} >= {"cuBLAS matmul bf16 128x128x64", "matmul"}
    for text in places:
        box = text.get_window_extent().transformed(axes.transData.inverted())
        around = [
            s for s in bars(axes, COLOURS["compute"]) if s[0] <= text.get_position()[0] <= s[1]
        ]
        assert any(start <= box.x0 and box.x1 <= end for start, end in around), text


def test_threads_and_streams_beyond_the_limit_are_counted(figures):
    h = HandTrace()
    for n in range(5):
        h.op("aten::mm", 10, 50, tid=n)
    for n in range(5):  # the busiest thread is not that of the steps
        h.op("aten::add", 100 + 10 * n, 5, tid=0)
    h.step(0, 1000, tid=4)
    h.launch("cudaLaunchKernel", 20, 5, correlation=1, tid=4)
    for stream in range(10):
        h.kernel("k", 100 + stream, 50 + stream, correlation=1, stream=stream)
    plots.timeline(h.trace())
    axes = axes_of(figures)
    assert axes.get_xlabel().endswith("not drawn: 2 more threads, 2 more streams")
    names = [name for name in lanes(axes) if name.startswith("thread")]
    assert names[0] == "thread 4"  # that of the steps
    assert len(names) == 3
    streams = [name for name in lanes(axes) if "stream" in name]
    assert streams == [f"GPU 0\nstream {n}" for n in range(2, 10)]


def test_a_trace_without_gpu_work_says_so(figures):
    h = HandTrace()
    h.op("aten::mm", 0, 10)
    plots.timeline(h.trace())
    assert axes_of(figures).get_title(loc="left") == "No GPU work in these 10 us"
    assert not figures[-1].legends


def test_an_almost_idle_gpu_is_not_called_idle_all_the_time(figures):
    h = HandTrace()
    h.step(0, 100_000)
    h.run("k", 10, 1, 20, 10)
    plots.timeline(h.trace())
    assert axes_of(figures).get_title(loc="left").startswith("The GPU is idle over 99% of")


def test_windows_without_anything_are_refused(figures):
    trace = two_devices().trace()
    with pytest.raises(ValueError, match="nothing between 5,000 and 6,000 us"):
        plots.timeline(trace, 5000, 6000)
    with pytest.raises(ValueError, match="ends after it starts: not 300 to 200 us"):
        plots.timeline(trace, 300, 200)
    h = HandTrace()
    h.overhead("Buffer Flush", 0, 10)
    with pytest.raises(ValueError, match="neither operators nor calls nor GPU events"):
        plots.timeline(h.trace())
    assert not figures


def test_nested_labels_have_rows_of_their_own():
    h = HandTrace()
    for name, start, us in (
        ("a", 0, 100),
        ("b", 10, 50),
        ("c", 20, 10),
        ("d", 60, 40),
        ("e", 200, 5),
    ):
        h.label(name, start, us)
    labels = h.trace().annotations
    assert dict(zip(labels["name"], levels(labels), strict=True)) == {
        "a": 0, "b": 1, "c": 2, "d": 1, "e": 0
    }  # fmt: skip


def test_names_are_shortened_to_their_room():
    assert op_text("aten::mm", 8) == "aten::mm"
    assert op_text("aten::mm", 7) == "mm"
    assert op_text("aten::mm", 1) == ""
    assert op_text("autograd::engine::evaluate_function: MmBackward0", 12) == "MmBackward0"
    assert label_text("ProfilerStep#12", 20) == "step 12"
    assert label_text("## forward ##", 20) == "forward"
    assert label_text("a long label", 8) == "a long …"
    assert label_text("a long label", 4) == ""
    rooms = (40, 25, 14, 8, 3)
    words = [
        "cuBLAS matmul bf16 128x128x64",
        "matmul bf16 128x128x64",
        "matmul bf16",
        "matmul",
        "",
    ]
    assert [kernel_text(GEMM, room) for room in rooms] == words
    assert kernel_text("resolve_future_token_ids_kernel", 12) == "resolve_fut…"
    assert [percent(x) for x in (0, 0.004, 0.5, 0.996, 1)] == [
        "0%", "under 1%", "50%", "over 99%", "100%"
    ]  # fmt: skip
    assert count(1, "copy", "copies") == "1 copy"
    assert count(1200, "copy", "copies") == "1,200 copies"


def test_what_fits_is_measured_not_guessed():
    lane = Lane("", None, None, None, lambda name, letters: name[:letters])
    for name in ("mmmmmmmmmmmm", "iiiiiiiiiiii"):
        text = fitting(lane, name, 40)
        assert width(text) <= 40
        assert len(text) == 12 or width(name[: len(text) + 1]) > 40


def matmul_add():
    h = HandTrace()
    for start in (0, 1000):
        h.step(start, 200)
        h.label("matmul_add", start + 10, 180)
        h.op("aten::matmul", start + 20, 80)
        h.op("aten::mm", start + 30, 60)
        h.launch("cuLaunchKernelEx", start + 60, 20, correlation=start + 1)
        h.op("aten::add", start + 120, 50)
        h.launch("cudaLaunchKernel", start + 140, 10, correlation=start + 2)
        h.kernel(GEMM, start + 90, 40, correlation=start + 1)
        h.kernel("my_add", start + 160, 20, correlation=start + 2)
    return h


def test_the_icicle_of_a_label_has_its_last_chain_to_scale(figures):
    plots.dispatch_icicle(matmul_add().trace(), "matmul_add")
    axes = axes_of(figures)
    assert lanes(axes) == ["step", "label", "operators", "", "calls", "GPU 0\nstream 7"]
    zero = axes.get_xlim()[1] * 0.02 / 1.04  # the margin before the label
    shift = 10 - zero  # times from the start of the step become times on the axis
    assert np.allclose(bars(axes, OPS[0]), np.array([(20, 100), (120, 170)]) - shift)
    assert np.allclose(bars(axes, OPS[1]), np.array([(30, 90)]) - shift)
    assert np.allclose(bars(axes, COLOURS["compute"]), np.array([(90, 130)]) - shift)
    assert axes.get_title(loc="left") == "matmul_add: 180 us on the host, 60 us on the GPU"
    assert f"since {1010 - zero:,.0f} us of the trace" in axes.get_xlabel()
    for text in ("aten::matmul  80 us", "aten::mm  60 us", "matmul_add  180 us"):
        assert text in texts(axes)


def test_the_icicle_of_an_operator_leaves_its_neighbours_out(figures):
    trace = matmul_add().trace()
    row = int(trace.ops.index[trace.ops["name"] == "aten::mm"][0])
    plots.dispatch_icicle(trace, row)
    axes = axes_of(figures)
    assert axes.get_title(loc="left") == "aten::mm: 60 us on the host, 40 us on the GPU"
    assert len(bars(axes, OPS[0])) == 1  # aten::matmul around it, no aten::add
    assert not bars(axes, COLOURS["memory"])


def test_the_icicle_tells_of_a_kernel_that_waits_in_the_queue(figures):
    h = HandTrace()
    h.op("aten::mm", 0, 100)
    h.launch("cudaLaunchKernel", 50, 10, correlation=1)
    h.kernel(GEMM, 5000, 100, correlation=1)
    plots.dispatch_icicle(h.trace(), 0)
    axes = axes_of(figures)
    assert axes.get_xlim()[1] < 110
    assert "1 event later, up to 4,950 us after the call" in texts(axes)


def test_the_icicle_knows_what_there_is(figures):
    trace = matmul_add().trace()
    with pytest.raises(KeyError, match="no label 'matmul'.* its labels: matmul_add"):
        plots.dispatch_icicle(trace, "matmul")
    with pytest.raises(KeyError, match="no row 99 in trace.ops, which has 6 rows"):
        plots.dispatch_icicle(trace, 99)
    assert not figures


def test_launch_delays_have_their_median_and_count_what_comes_early(figures):
    h = HandTrace()
    h.step(0, 1000)
    for n, delay in enumerate((5, 10, 20, 400, -3)):
        h.launch("cudaLaunchKernel", 100 * n + 10, 5, correlation=n + 1)
        h.kernel("k", 100 * n + 10 + delay, 1, correlation=n + 1, stream=n)
    late = HandTrace()
    late.launch("cudaGraphLaunch", 10, 5, correlation=1)
    for n in range(50):
        late.kernel("k", 110 + 10 * n, 5, correlation=1)
    plots.launch_delays({"mine": h.trace(), "a graph": late.trace()})
    above, below = figures[-1].axes
    title = above.get_title(loc="left")
    assert title == "mine: 5 launches, median 10 us; 1 start before their call, not drawn"
    assert below.get_title(loc="left") == "a graph: 1 launches, median 100 us"
    assert sum(patch.get_height() for patch in above.patches) == 4
    assert sum(patch.get_height() for patch in below.patches) == 1
    assert above.get_xlim() == below.get_xlim()
    assert [line.get_xdata()[0] for line in above.lines] == [10]


def test_launch_delays_of_nothing(figures):
    h = HandTrace()
    h.op("aten::mm", 0, 10)
    with pytest.raises(ValueError, match="no kernel in these traces"):
        plots.launch_delays({"cpu": h.trace()})
    with pytest.raises(ValueError, match=r"nothing to draw: launch_delays\("):
        plots.launch_delays({})


def dollars():
    h = HandTrace()
    h.step(0, 1000)
    h.run("void foo<bar::$_0, baz::$_1{x}>(int)", 10, 1, 30, 900, op="$_{$")
    h.label("price $5 and $6_", 5, 990)
    h.op("a$b_{$c", 500, 400)
    return h.trace()


@pytest.mark.parametrize("picture", ["timeline", "icicle", "delays", "shares", "diff"])
def test_a_dollar_in_a_name_is_a_dollar(figures, picture):
    trace, name = dollars(), "a$x_{ b$"
    if picture == "timeline":
        plots.timeline(trace, title=name)
    elif picture == "icicle":
        plots.dispatch_icicle(trace, "price $5 and $6_")
    elif picture == "delays":
        plots.launch_delays({name: trace})
    elif picture == "shares":
        plots.idle_breakdown({name: shares(kernels=1.0)})
    else:
        plots.trace_diff(traces.compare(trace, trace), name, "b$_$")
    drawn = [text for text in figures[-1].findobj(Text) if "$" in text.get_text()]
    mathematics = [text for text in drawn if text.get_parse_math()]
    assert len(drawn) > len(mathematics)
    assert all("mathdefault" in text.get_text() for text in mathematics)


def shares(**parts):
    keys = ("kernels", "copies", "launch_rate", "synchronisation", "host_stall", "profiler")
    return SimpleNamespace(shares={key: parts.get(key, 0.0) for key in keys})


def test_the_idle_breakdown_adds_up_to_the_window(figures):
    found = {
        "tiny": shares(kernels=0.1, launch_rate=0.85, profiler=0.05),
        "copies": shares(copies=0.75, synchronisation=0.25),
        "cpu": SimpleNamespace(shares={}),
    }
    plots.idle_breakdown(found)
    axes = axes_of(figures)
    assert (
        axes.get_title(loc="left")
        == "The GPU is idle 25% to 90% of the time, for these reasons"
    )
    for row in (0, 1):
        mine = [bar for bar in axes.patches if bar.get_y() < -row < bar.get_y() + 0.7]
        assert sum(bar.get_width() for bar in mine) == pytest.approx(100)
    assert sorted(texts(axes)) == ["10%", "25%", "5%", "75%", "85%", "no GPU events"]
    legend = [text.get_text() for text in figures[-1].legends[0].get_texts()]
    assert legend == ["kernels", "copies", "idle: launch rate", "synchronisation", "profiler"]


def test_the_difference_of_two_traces_keeps_all_time(figures):
    def trace(ops, us):
        h = HandTrace()
        h.step(0, 10_000)
        for n, op in enumerate(ops):
            h.run("k", 100 * n + 10, n + 1, 100 * n + 20, us, op=op)
        return h.trace()

    names = [f"aten::op{n}" for n in range(14)]
    table = traces.compare(trace(names, 50), trace(names[:13], 20))
    plots.trace_diff(table, "before", "after")
    axes = axes_of(figures)
    assert axes.get_title(loc="left") == "Kernels a step: before 700 us, after 260 us"
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(960)
    assert " 4 other paths" in [text.get_text() for text in axes.texts]
    assert axes.texts[0].get_text() == " aten::op13"  # the largest difference
    assert [text.get_text() for text in axes.texts[:3]][1:] == [" 50 us, 1 kernel", " none"]


def test_the_difference_of_traces_without_kernels(figures):
    h = HandTrace()
    h.op("aten::mm", 0, 10)
    with pytest.raises(ValueError, match="neither of the traces has kernels"):
        plots.trace_diff(traces.compare(h.trace(), h.trace()), "a", "b")


def test_the_same_trace_gives_the_same_bytes(monkeypatch):
    pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(picture, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda image: shown.append(image.data))
    for _ in range(2):
        trace = two_devices().trace()
        plots.timeline(trace)
        plots.dispatch_icicle(trace, "forward")
        plots.launch_delays({"two": trace})
    assert shown[:3] == shown[3:]
    assert len(set(shown)) == 3
    assert max(map(len, shown)) < 60_000


FILES = (
    "*megatron_kineto_7*",
    "*sampled_rank-1*",
    "*24050*",
    "*sglang*",
    "*Qwen*",
    "*gpu_metrics*",
)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not here")
@pytest.mark.parametrize("pattern", FILES)
def test_public_traces_have_a_timeline(pattern, figures):
    trace = traces.read(next(PUBLIC.glob(pattern)))
    plots.timeline(trace)
    axes = axes_of(figures)
    assert len(axes.get_children()) < 500
    box = figures[-1].get_tightbbox()
    assert box.width < 8.6  # inches: as wide as a notebook
    names = [text.get_window_extent() for text in axes.get_yticklabels()]
    names.sort(key=lambda place: place.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in zip(names, names[1:], strict=False))
