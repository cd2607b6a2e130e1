"""The small timelines of several traces: what they draw, against traces made by hand."""

import numpy as np
import pytest
from hand_trace import HandTrace
from test_plots_traces import bars, heights

from helpers import plots
from helpers.diagnose import diagnose
from helpers.picture import COLOURS
from helpers.plots_bars import COPY, IDLE, OTHER, PIXEL
from helpers.plots_small import MARGIN, POINTS, pale

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"


def three_steps():
    """Three steps of 900 us; in each, all that there is to draw."""
    h = HandTrace()
    for n in range(3):
        at, first = 1000 * n, 10 * n + 1
        h.step(at, 900)
        h.op("aten::linear", at + 50, 200)
        h.op("aten::addmm", at + 100, 100)
        h.label("forward", at + 240, 60)
        h.op("aten::add", at + 400, 100, tid=7)
        h.launch("cudaFuncGetAttributes", at + 60, 20)
        h.launch("cudaLaunchKernel", at + 120, 50, correlation=first)
        h.launch("cudaMemcpyAsync", at + 410, 20, correlation=first + 1)
        h.launch("cudaLaunchKernel", at + 440, 20, correlation=first + 2)
        h.sync("cudaStreamSynchronize", at + 500, 300)
        h.kernel(GEMM, at + 150, 250, correlation=first)
        h.copy("Memcpy DtoH (Device -> Pinned)", at + 450, 100, correlation=first + 1)
        h.kernel("my_own_kernel", at + 600, 150, correlation=first + 2, stream=9)
    return h


def times(axes, colour, start=0.0):
    """The bars of a colour in microseconds since `start` after the step's begin."""
    zero = min(axes.get_xticks()) + start  # the first tick is the step's begin
    return [(round(low - zero, 6), round(high - zero, 6)) for low, high in bars(axes, colour)]


def test_the_middle_step_has_three_lanes_without_names(figures):
    assert plots.small_timelines({"a": three_steps().trace()}) is None
    [axes] = figures[-1].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["host", "calls", "GPU"]
    assert times(axes, COLOURS["host"]) == [(50, 300), (400, 500)]  # a union, of all threads
    assert times(axes, COLOURS["launch"]) == [(120, 170), (410, 430), (440, 460)]
    assert set(times(axes, COLOURS["limit"])) == {(500, 800)}
    assert not bars(axes, OTHER)  # calls that neither launch nor wait
    assert times(axes, COLOURS["compute"]) == [(150, 400)]
    assert times(axes, COPY) == [(450, 550)]
    assert times(axes, COLOURS["memory"]) == [(600, 750)]  # on another stream
    idle = [span for span in times(axes, IDLE) if span[1] - span[0] > 20]
    assert idle == [(-18, 150), (400, 450), (550, 600), (750, 918)]
    written = {
        text.get_text() for text in figures[-1].findobj(lambda x: hasattr(x, "get_text"))
    }
    for name in ("aten", "linear", "forward", "cuda", "Memcpy", "gemm", "my_own", "Profiler"):
        assert not any(name in text for text in written), name


def test_the_panel_is_the_step_with_a_margin_and_its_own_axis(figures):
    short = HandTrace()
    short.step(0, 40)
    plots.small_timelines({"a": three_steps().trace(), "b": short.trace()})
    above, below = figures[-1].axes
    assert above.get_xlim() == pytest.approx((0, 900 * (1 + 2 * MARGIN)))
    assert below.get_xlim() == pytest.approx((0, 40 * (1 + 2 * MARGIN)))
    labels = [label.get_text() for label in above.get_xticklabels()]
    assert labels == ["0", "200", "400", "600", "800"]
    assert np.allclose(above.get_xticks() - 900 * MARGIN, [0, 200, 400, 600, 800])
    assert [axes.get_title(loc="left") for axes in figures[-1].axes] == ["a", "b"]


def test_the_number_is_the_diagnosis_length_of_a_step(figures):
    trace = three_steps().trace()
    plots.small_timelines({"a": trace})
    assert diagnose(trace).as_dict()["step_us"] == pytest.approx(2900 / 3)
    assert figures[-1].axes[0].get_title(loc="right") == "967 us a step"


def test_a_step_ends_with_its_work_on_the_gpu_and_other_steps_are_pale(figures):
    h = HandTrace()
    for n in range(3):  # the host is ahead of the GPU
        h.step(100 * n, 90)
        h.run(GEMM, 100 * n + 10, n + 1, 500 * n + 50, 500)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    assert axes.get_xlim()[1] == pytest.approx(950 * (1 + 2 * MARGIN))  # from 100 to 1050
    assert times(axes, COLOURS["compute"]) == [(450, 950)]
    assert times(axes, pale(COLOURS["compute"])) == [(-19, 450), (950, 969)]
    assert times(axes, COLOURS["host"]) == [(10, 20)]
    assert times(axes, pale(COLOURS["host"])) == [(110, 120)]
    legend = [text.get_text() for text in figures[-1].legends[0].get_texts()]
    assert legend[-1] == "paler: another step"
    plots.small_timelines({"a": h.trace()}, step=0)
    [axes] = figures[-1].axes
    assert times(axes, COLOURS["compute"]) == [(50, 550)]


def test_bars_thinner_than_a_pixel_are_a_pixel_wide(figures):
    h = HandTrace()
    h.step(0, 100_000)
    for n in range(100):  # far apart: each is drawn
        h.run("tiny", 1000 * n, n + 1, 1000 * n + 20, 1)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    kernels = np.array(bars(axes, COLOURS["memory"]))
    assert len(kernels) == 100
    pixel = axes.get_xlim()[1] * PIXEL / POINTS
    assert np.allclose(kernels[:, 1] - kernels[:, 0], pixel)
    assert np.allclose(heights(axes, COLOURS["memory"]), 1.2)
    assert "height" not in axes.get_xlabel()
    inches = axes.get_position().width * figures[-1].get_figwidth()
    assert inches * 72 == pytest.approx(POINTS)  # what a pixel was computed with


def test_bars_denser_than_pixels_become_the_share_of_time_they_fill(figures):
    h = HandTrace()
    h.step(0, 20_000)
    for n in range(2000):  # a kernel of 6 us every 10 us
        h.run("tiny", 10 * n, n + 1, 10 * n + 2, 6)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    full = [height for height in heights(axes, COLOURS["memory"]) if height > 0.3]
    assert len(full) > 200
    assert np.allclose(full[1:-1], 0.6 * 1.2, atol=0.05)  # of a lane 1.2 high
    assert axes.get_xlabel().endswith("their height is the share of time they fill")
    assert len(axes.get_children()) < 100  # not an artist an event


def test_a_copy_too_thin_for_stripes_is_seen_and_named(figures):
    h = HandTrace()
    h.step(0, 10_000)
    h.launch("cudaMemcpyAsync", 100, 20, correlation=1)
    h.copy("Memcpy DtoH (Device -> Pinned)", 200, 1, correlation=1)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    assert [round(start) for start, _ in times(axes, COLOURS["memory"])] == [200]
    legend = [text.get_text() for text in figures[-1].legends[0].get_texts()]
    assert legend == ["launch", "copy, memset", "GPU idle"]


def test_of_two_gpus_the_busiest_is_drawn(figures):
    h = HandTrace()
    h.step(0, 1000)
    h.run(GEMM, 10, 1, 100, 200, device=0)
    h.run("my_own_kernel", 30, 2, 100, 600, device=1)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    assert times(axes, COLOURS["memory"]) == [(100, 700)]
    assert not bars(axes, COLOURS["compute"])


def test_no_gpu_events_are_no_idle_gpu(figures):
    h = HandTrace()
    h.step(0, 100)
    h.op("aten::mm", 10, 50)
    plots.small_timelines({"a": h.trace()})
    [axes] = figures[-1].axes
    assert [text.get_text() for text in axes.texts] == ["no GPU events"]
    assert not bars(axes, IDLE)


def test_traces_without_the_step_are_refused(figures):
    trace = three_steps().trace()
    with pytest.raises(ValueError, match="trace 'a' has steps 0 to 2, no step 3"):
        plots.small_timelines({"a": trace}, step=3)
    h = HandTrace()
    h.op("aten::mm", 0, 10)
    with pytest.raises(ValueError, match="trace 'b' has no steps; capture"):
        plots.small_timelines({"a": trace, "b": h.trace()})
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.small_timelines({})
    assert not figures


def test_a_step_with_nothing_in_it_has_no_legend(figures, recwarn):
    h = HandTrace()
    h.step(0, 100)
    plots.small_timelines({"cost $5 or $6_": h.trace()})
    assert not figures[-1].legends and not recwarn.list


def test_the_step_of_two_ranks_is_one_step(figures):
    h = HandTrace()
    for rank in (0, 1):
        for n in range(3):
            h.step(100 * n, 100, number=n, pid=10 + rank)
            h.op("aten::mm", 100 * n + 5, 10, pid=10 + rank)
    plots.small_timelines({"ranks": h.trace()})
    assert figures[-1].axes[0].get_title("right") == "100 us a step"


def test_the_panels_stand_apart_and_fit_a_notebook(figures):
    plots.small_timelines({letter: three_steps().trace() for letter in "abcdef"})
    figure = figures[-1]
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(low.y1 < high.y0 for high, low in zip(boxes, boxes[1:], strict=False))
    assert figure.legends[0].get_window_extent().y1 < boxes[-1].y0
    assert figure.get_tightbbox().width < 7.8  # inches
    assert figure.get_tightbbox().height < 7
