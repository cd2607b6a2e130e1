"""The pictures of the course: one function a picture, each returns None and shows its figure.

The look lives in `course.mplstyle` and `picture`; each notebook's pictures have a module.
"""

from helpers.plots_icicle import dispatch_icicle
from helpers.plots_memory import copies, intensity_sweep, work_and_time
from helpers.plots_overhead import (
    crossover_by_gpu,
    precision_bars,
    repeats_over_time,
    share_by_size,
    sweep_crossover,
)
from helpers.plots_profiler import (
    cost_run,
    gap_by_step,
    option_bars,
    schedule_strip,
    self_and_total,
    window_check,
)
from helpers.plots_roofline import roofline
from helpers.plots_small import small_timelines
from helpers.plots_start import (
    block_floor,
    copy_bandwidth,
    lab_errors,
    matmul_fills,
    three_places,
)
from helpers.plots_timeline import timeline
from helpers.plots_traces import idle_breakdown, launch_delays, trace_diff

__all__ = [
    "copy_bandwidth",
    "matmul_fills",
    "lab_errors",
    "three_places",
    "block_floor",
    "self_and_total",
    "schedule_strip",
    "gap_by_step",
    "option_bars",
    "cost_run",
    "window_check",
    "sweep_crossover",
    "share_by_size",
    "precision_bars",
    "repeats_over_time",
    "crossover_by_gpu",
    "timeline",
    "small_timelines",
    "dispatch_icicle",
    "launch_delays",
    "idle_breakdown",
    "trace_diff",
    "roofline",
    "intensity_sweep",
    "work_and_time",
    "copies",
]
