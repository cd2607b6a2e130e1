"""What notebook 03 says of its traces: (notebook, exact fragment, predicate, recordings)."""

import numpy as np

from helpers import traces
from helpers.diagnose import diagnose
from helpers.gpu_time import length, union


def covered(table):
    return length(union(table["start_us"], table["start_us"] + table["dur_us"]))


def host_busy_gpu_idle(chain):
    labels = chain.annotations[chain.annotations["name"] == "matmul_add"]
    steps = chain.steps["dur_us"].sum()
    return covered(labels[~labels["on_gpu"]]) > 0.5 * steps > 10 * chain.gpu["dur_us"].sum()


def two_operators_before_a_launch(chain):
    first = chain.calls.loc[chain.kernels["call"].iat[0]]
    return chain.path(first["op"]) == "aten::matmul > aten::mm"


def views_launch_nothing(batched):
    owners = {batched.op_name(op) for op in batched.launches["op"]}
    names = set(batched.ops["name"])
    views = {"aten::expand", "aten::reshape", "aten::view"}
    return views <= names and not views & owners and len(owners) == 1


def nothing_queues(tiny):
    delay = tiny.kernels["delay_us"]
    return delay.median() < 20 and delay.quantile(0.95) < 5 * delay.min()


def delays_grow(big):
    order = big.kernels.groupby("step")["delay_us"].apply(list)
    return bool(len(order)) and all(min(np.diff(delays), default=-1) > 0 for delays in order)


def own_buffers(trace):
    before = trace.kernels["start_us"].min()
    return trace.overhead.loc[trace.overhead["start_us"] < before, "dur_us"].sum()


def warmup_keeps_the_buffer_out(cold, chain):
    return own_buffers(cold) > 500 and own_buffers(chain) == 0


def waits_cost_even_for_nothing(chain):
    wait = chain.syncs.loc[chain.syncs["dur_us"].idxmax()]
    return 1 < wait["dur_us"] < 100 and not (chain.gpu["end_us"] > wait["start_us"]).any()


def overlap_counts_twice(two):
    return two.gpu["dur_us"].sum() > 1.5 * covered(two.gpu)


def each_round_waits(item):
    waits = item.syncs[item.syncs["op"] >= 0]
    return len(waits) == 60 and set(waits["name"]) == {"cudaStreamSynchronize"}


def replay_is_one_call(graph):
    calls = graph.launches[graph.launches["kind"] == "graph"]
    return set(calls["gpu_events"]) == {100} and (graph.kernels["op"] < 0).all()


def profile_holds_the_host_back(compiled, rungs):
    row = rungs[(rungs.rung == "compiled, traced") & (rungs.tokens == 8192)].iloc[0]
    return diagnose(compiled).busy_fraction < 0.7 < 0.9 < row.gpu_us / row.time_us < 1.1


TRACE_CLAIMS = [
    ("03", "inside a label the host is busy, the GPU hardly ever",
     host_busy_gpu_idle, "03_chain"),
    ("03", "passes through two operators before something is launched",
     two_operators_before_a_launch, "03_chain"),
    ("03", "they launch nothing and cost host time", views_launch_nothing, "03_bmm"),
    ("03", "In the first program next to nothing queues", nothing_queues, "03_tiny_ops"),
    ("03", "delays grow from launch to launch", delays_grow, "03_big_matmul"),
    ("03", "A warm-up step keeps it out of the window",
     warmup_keeps_the_buffer_out, "03_cold 03_chain"),
    ("03", "costs some microseconds even with nothing to wait for",
     waits_cost_even_for_nothing, "03_chain"),
    ("03", "counts every microsecond in which two kernels run twice over",
     overlap_counts_twice, "03_two_streams"),
    ("03", "Each round ends in `cudaStreamSynchronize`",
     each_round_waits, "03_item_each_time"),
    ("03", "launches its hundred kernels by one call", replay_is_one_call, "03_graph_replay"),
    ("03", "a program whose host is barely ahead falls behind in its own profile",
     profile_holds_the_host_back, "03_block_compiled 03_rung"),
]  # fmt: skip


def other_traces(folder):
    """Wrong traces for a claim: what other programs recorded."""
    for name in ("tiny_ops", "big_matmul", "chain", "cold", "block_eager"):
        yield traces.read(folder / f"03_{name}.json.gz")
