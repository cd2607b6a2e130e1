"""Statements in the prose that rest on measurements, held against every recorded GPU."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from compile_claims import COMPILE_CLAIMS
from fused_claims import FUSED_CLAIMS
from kernel_claims import KERNEL_CLAIMS
from linear_claims import LINEAR_CLAIMS
from memory_claims import MEMORY_CLAIMS
from trace_claims import TRACE_CLAIMS, other_traces

from helpers import storage, traces
from helpers.device import bandwidth
from helpers.roofline import matmul_flops

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("data/*/machine.json"))
PUBLISHED = pd.read_csv(ROOT / "data" / "published.csv").set_index(["experiment", "quantity"])
FIGURES = PUBLISHED[["value"]].apply(pd.to_numeric, errors="coerce")
GPUS = pd.read_csv(ROOT / "data" / "gpus.csv")
GPUS = GPUS.assign(names=GPUS.names.str.split(";")).explode("names").set_index("names")


def within(low, values, high):
    values = np.atleast_1d(values)
    return values.size > 0 and bool(((low <= values) & (values <= high)).all())


def rate(copies, clock):
    return copies.bytes_moved / copies[clock] * 1e6


def datasheet(copies):
    return bandwidth(copies.attrs["gpu"]) or math.inf


def slower_one_decides(t):
    host = list(
        t.host_us > t.gpu_us
    )  # from host-bound in the first row to GPU-bound in the last
    waits = t.wall_us / t[["host_us", "gpu_us"]].max(axis=1)
    return within(0.8, waits, 1.4) and host[0] and not host[-1]


def mistakes_have_sides(copies, facts, products, clocks, fresh):
    small = copies[copies.bytes_moved <= facts["l2_mib"] * 2**20 / 2].iloc[-1]
    us, lab = products.groupby("fill").us.mean(), pd.concat([clocks, fresh])
    lab = lab.set_index("mistake").eval("wrong_us / right_us")
    left = [lab.pop("no synchronisation"), us["zeros"] / us["random"]]
    left.append(small.hot_us / small.cold_us)
    return max(left) < 0.95 and min(lab) > 1.05 and len(lab) == 4


def once_only_costs_spread(fresh):
    times = fresh.set_index("mistake").eval("wrong_us / right_us")
    times = times[["first call included", "a compile inside"]]
    return within(0.09, ((times - 1) / 10 + 1) / times, 0.11)


def zeros_save_energy(products):
    mean = products.groupby("fill")[["us", "power_w", "sm_mhz"]].mean()
    zeros = mean.loc["zeros"] / mean.loc["random"]  # NaN where the driver does not tell
    return zeros.us <= 1.01 and not zeros.power_w > 1 and not zeros.sm_mhz < 1


def burst_beats_sustained(products):
    flops = (products.n**3 / products.us).groupby(products["fill"]).mean()
    return flops["random, burst"] > 1.02 * flops["random"]


def capped_at_little_power(products):
    zeros, random = (products[products["fill"] == fill] for fill in ("zeros", "random"))
    little = zeros.power_w.max() < 0.7 * random.power_w.min()
    seen = little and set(zeros.throttle) == {"power cap"}
    return seen or products.attrs["gpu"] != "NVIDIA H200"


def launch_dwarfs_arithmetic(events, ceiling):
    us = events[events.kind == "kernel"].pipe(lambda k: k.self_cuda_us.sum() / k.calls.sum())
    return 0.5 <= us <= 20 and matmul_flops(64, 64, 64) / ceiling["matmul_flops"] < us / 1e8


def totals_count_twice(events):
    host, kernels = events[events["where"] == "host"], events[events.kind == "kernel"]
    twice = host.cpu_total_us.sum() > 1.5 * host.self_cpu_us.sum()
    return twice and events.cuda_total_us.sum() > 3 * kernels.self_cuda_us.sum()


def first_gap_is_long(gaps):
    gaps = gaps[gaps.profile == 1].groupby(["plain_steps", "step"]).gap_us.median().unstack()
    return len(gaps) == 2 and (gaps[2] > gaps[[3, 4]].max(axis=1)).all()


def recording_slows(options, steps):
    options, us = options[1:], steps.groupby("phase").step_us.median()  # [0]: no profiler
    slower = options.step_us.median() > 1.1 * options.plain_us.median()
    return slower and us["during"] > 1.1 * max(us["before"], us["before again"])


def stacks_fill_the_trace(options):
    by = options.set_index("option")
    stack, usual = by.loc["+ with_stack"], by.loc["CPU + CUDA"]
    return stack.trace_kb > 1.3 * usual.trace_kb and stack.adds == ""


def cold_profile_holds_more(rows, sweep):
    host, warm = rows.groupby("n").self_host_us.sum() / 3, sweep.set_index("n").host_us
    wait = rows[rows.name == "cudaDeviceSynchronize"].set_index("n").self_host_us
    return (host > 2 * warm[host.index]).all() and wait[4096] > wait[64] > 0


def other_sums_are_too_large(rows):
    big = rows[rows.n == 4096]
    right = big.self_device_us[big.kind == "kernel"].sum()
    return min(big.self_device_us.sum(), big.device_us.sum()) >= 1.9 * right > 0


def faster_gpus_cross_later(gpus, sweep):
    names = ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]
    n, found = np.arange(32, 16384), []
    for card in gpus.loc[[*names, "NVIDIA H200", "NVIDIA B200"]].itertuples():
        us = 2 * n**3 / card.fp16_tflops / 1e6 + 12 * n**2 / card.bandwidth_gbs / 1e3
        found.append(np.argmax(us >= sweep.host_us[:3].median()))
    return (np.diff(found) > 0).all()


def gain_is_where_the_gpu_works(rung):
    us = rung.set_index(["rung", "tokens"]).time_us.sort_index()
    half = next(name for name in rung.rung if name.endswith("16"))
    return us["eager, fp32", 8192] / us[half, 8192] > us["eager, fp32", 64] / us[half, 64]


LAB = "00_copy 00_machine 00_matmul 00_lab_clocks 00_lab_fresh"
# fmt: off
CLAIMS = [  # notebook, exact words, predicate, the tables that it gets
    ("00", "wall time follows the larger of the two", slower_one_decides, "00_three_ops"),
    ("00", "Small copies spend most of their time starting",
     lambda t: rate(t, "cold_us").iloc[0] < rate(t, "cold_us").max() / 2, "00_copy"),
    ("00", "the cold plateau is the first ceiling",
     lambda t: within(0.95, rate(t, "cold_us").iloc[-2] / rate(t, "cold_us").iloc[-1], 1.05)
     and rate(t, "cold_us").max() <= datasheet(t), "00_copy"),
    ("00", "the bytes came from the cache",
     lambda t, facts: (t.bytes_moved[rate(t, "hot_us") > datasheet(t)]
                       <= 2 * facts["l2_mib"] * 2**20).all(), "00_copy 00_machine"),
    ("00", "bars to the left flatter the code, bars to the right slander it",
     mistakes_have_sides, LAB),
    ("00", "averaged over ten times as many calls they shrink to about a tenth",
     once_only_costs_spread, "00_lab_fresh"),
    ("00", "Random numbers flip many of the bits", zeros_save_energy, "00_matmul"),
    ("00", "a burst, before the limit is felt, and what a second on end allows",
     burst_beats_sustained, "00_matmul"),
    ("00", "the cap was named for zeros too, far below the power of random numbers",
     capped_at_little_power, "00_matmul"),
    ("01", "mixes three kinds of rows: host calls, kernels, and labels",
     lambda t: set(t.kind) >= {"op", "kernel", "label"}, "01_first_events"),
    ("01", "our label stands at far more than 100 % of Self CUDA",
     lambda t: t.self_cuda_us[(t.kind == "label") & (t["where"] == "device")].sum()
     > 2 * t.self_cuda_us[t.kind == "kernel"].sum(), "01_first_events"),
    ("01", "its arithmetic almost nothing",
     launch_dwarfs_arithmetic, "01_first_events 02_ceilings"),
    ("01", "adding totals counts the same microseconds at every level",
     totals_count_twice, "01_first_events"),
    ("01", "four loops that go wrong",
     lambda said: len(re.findall(r"^\S", said, re.M)) == 4 and ": accepted" not in said,
     "01_schedule_mistakes"),
    ("01", "`on_trace_ready` saw both windows.",
     lambda t: [*t["first"].str[-2:], *t["last"].str[-2:]] == ["#2", "#7", "#4", "#9"]
     and set(t.files) == {2}, "01_windows"),
    ("01", "called twenty times: a hundred kernels or more",
     lambda t: within(100, 20 * t.kernels_per_step[t.tokens == 64], 400), "01_rung"),
    ("01", "Distrust the first recorded step, however warm the model is.",
     first_gap_is_long, "01_first_step_gaps"),
    ("01", "**Stacks** fill the trace, not the table", stacks_fill_the_trace, "01_options"),
    ("01", "The step was slower while it was recorded.",
     recording_slows, "01_options 01_cost"),
    ("01", "A profile slows what it watches", recording_slows, "01_options 01_cost"),
    ("02", "Left of the crossover the points follow the blue line, right of it the green one",
     slower_one_decides, "02_matmul_sweep"),
    ("02", "It is paid per operation, whatever the size",
     lambda t: within(0.5, t.host_us / t.host_us.median(), 2), "02_matmul_sweep"),
    ("02", "The article's host times are far above ours",
     lambda p, t: p.value["matmul_add_64", "self_cpu_time_total"] / 3
     > 5 * t.host_us[t.n == 64].item(), "published 02_matmul_sweep"),
    ("02", "it holds cold code, the profiler's own work, and a wait",
     cold_profile_holds_more, "02_article_tables 02_matmul_sweep"),
    ("02", "GPU time is the sum of kernel rows, plus memsets and copies;",
     other_sums_are_too_large, "02_article_tables"),
    ("02", "a GPU-Util of 100 % can be one thread",
     lambda t: within(90, t.gpu_util[t["loop"] == "one thread"], 100), "02_gpu_util"),
    ("02", "Python adds two integers in a few tens of nanoseconds",
     lambda t: within(0.01, t.time_us[t.what == "one Python add"], 0.1), "02_rates"),
    ("02", "a matmul of hundreds of rows or more",
     lambda t, ceiling: within(200, (ceiling["matmul_flops"] / 2e6 * t.time_us.iloc[-1])
                               ** (1 / 3), 10_000), "02_rates 02_ceilings"),
    ("02", "A few slow calls pull a mean, not a median.",
     lambda t: t.time_us[:5].mean() > 1.1 * t.time_us.median()
     and within(0.9, t.time_us[:5].median() / t.time_us.median(), 1.1), "02_repeats"),
    ("02", "the mean of five calls of one matmul was nearly twice its typical time",
     lambda p: within(1.7, p.value["matmul_4096", "kernel_mean_of_5"]
                      / p.value["matmul_4096", "kernel_typical"], 2), "published"),
    ("02", "In the model a faster GPU moves the crossover right",
     faster_gpus_cross_later, "gpus 02_matmul_sweep"),
    ("02", "Faster arithmetic helps as far as the GPU is what you wait for",
     gain_is_where_the_gpu_works, "02_rung"),
]
# fmt: on
CLAIMS += TRACE_CLAIMS + MEMORY_CLAIMS + COMPILE_CLAIMS + LINEAR_CLAIMS + KERNEL_CLAIMS
CLAIMS += FUSED_CLAIMS


def distortions(value):
    """Yield wrong copies of a table, a dict or a text, and other traces for a trace."""
    if isinstance(value, traces.Trace):
        yield from other_traces(ROOT / "data" / "nvidia-h200")
    elif isinstance(value, str):
        yield re.sub(r": .*", ": accepted", value)
    elif isinstance(value, dict):
        for wrong in (lambda x: 1, lambda x: 1000 * x, lambda x: x / 1e6):
            yield {k: v if isinstance(v, str) else wrong(v) for k, v in value.items()}
    else:
        numbers = value.select_dtypes("number").columns
        swapped = {a: value[b] for a, b in zip(numbers, np.roll(numbers, 1), strict=True)}
        yield from (value.assign(**swapped), value.assign(**dict.fromkeys(numbers, 1.0)))
        for name, column in value.items():
            yield value.assign(**{name: column.to_numpy()[::-1]})
            yield value.assign(**{name: column.iloc[0]})
            if name in numbers:
                yield from (value.assign(**{name: column * f}) for f in (1000, 1e-6))


def tables(folder, names):
    """Read what a claim needs, or return None where it was not recorded."""
    there, found = storage.manifest(folder), {"gpus": GPUS, "published": FIGURES}
    for name in names.split():
        if name not in found:
            if name not in there["recordings"]:
                return None
            found[name] = storage.read(folder, name)
            if isinstance(found[name], Path):
                found[name] = traces.read(found[name])
            if isinstance(found[name], pd.DataFrame):
                found[name].attrs["gpu"] = there["gpu"]
    return [found[name] for name in names.split()]


@pytest.fixture(autouse=True)
def recordings_of_this_repository(monkeypatch):
    monkeypatch.delenv("COURSE_DATA", raising=False)


names_of = [f"{claim[0]}-{claim[1][:40]}" for claim in CLAIMS]
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=names_of)
each_gpu = pytest.mark.parametrize("folder", FOLDERS)


@each_claim
def test_the_notebook_says_so(claim):
    (path,) = ROOT.glob(f"notebooks/source/{claim[0]}_*.py")
    cells = re.split(r"^# %%", path.read_text("utf-8"), flags=re.M)
    prose = "\n".join(cell for cell in cells if cell.startswith(" [markdown]"))
    assert claim[1] in " ".join(re.sub(r"^#( >)?", "", prose, flags=re.M).split())


@each_gpu
@each_claim
def test_every_gpu_bears_it_out(claim, folder):
    found = tables(folder, claim[3])
    if found is None:
        pytest.skip(f"{folder} lacks one of: {claim[3]}")
    assert claim[2](*found)


@each_claim
def test_each_of_its_tables_can_refute_it(claim):
    def refuted(found, i, wrong):
        try:
            return not claim[2](*found[:i], wrong, *found[i + 1 :])
        except (LookupError, ValueError):  # too distorted to be read proves nothing
            return False

    known = [found for folder in FOLDERS if (found := tables(folder, claim[3]))]
    assert known, f"no GPU has recorded {claim[3]}"
    for i, name in enumerate(claim[3].split()):
        assert any(refuted(f, i, w) for f in known for w in distortions(f[i])), name


USED = """matmul_add_64: self_cpu_time_total self_cuda_time_total gap_label_to_first_op_step2
gap_label_to_first_op_step3 gap_label_to_first_op_step4 cuda_device_synchronize
cpu_gpu_lane_offset
matmul_add_4096: self_cpu_time_total self_cuda_time_total step_host_eager step_host_compiled
matmul_add_4096_compiled: memcpy_dtod_bias
matmul_4096: kernel_typical kernel_mean_of_5
geglu_mlp_8192x768x3072: gate_gemm up_gemm down_gemm gelu_mul_inductor gelu_mul_liger
kernels_eager
python_adds: rate
pytorch_dispatch: rate
a100_during_one_python_op: flops
rule_of_thumb: compute_bound_if_above
intensity_sweep: memory_bound_below_repeat compute_bound_above_repeat
bert_flops: tensor_contraction_share"""


def test_published_figures_exist_with_a_source():
    for experiment, quantities in re.findall(r"(\w+): ([^:]*)(?:\n|$)", USED):
        for key in ((experiment, quantity) for quantity in quantities.split()):
            values = map(float, str(PUBLISHED.value[key]).split(";"))  # "100;70;70": steps
            assert min(values) > 0 and len(PUBLISHED.source[key]) > 10, key
    text = "".join(path.read_text("utf-8") for path in ROOT.glob("notebooks/source/*.py"))
    assert {q for _, q in FIGURES.index if f'"{q}"' in text} <= set(USED.split())


@each_gpu
def test_the_readme_names_what_was_recorded(folder):
    machine, readme = storage.manifest(folder), (ROOT / "README.md").read_text("utf-8")
    tested = "".join(re.findall(r"^\| recorded on .*$", readme, re.M))
    for entry in machine["recordings"].values():
        names = [machine["gpu"], f"torch {entry['torch'].partition('+')[0]}"]
        names += [f"Triton {entry['triton']}", f"Python {entry['python'].rpartition('.')[0]}"]
        assert all(re.search(rf"\b{re.escape(name)}\b", tested) for name in names), names
