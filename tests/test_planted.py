"""Programs with one planted cause, recorded on an H200: diagnose finds what was planted."""

import json
from functools import cache

import pytest
from hand_trace import recording

from helpers import traces
from helpers.diagnose import diagnose
from helpers.programs import PROGRAMS
from helpers.quiz import PLANTED

# What one step does, by the program's code and the libraries it was recorded with:
# kernels, launch calls, copies, syncs asked for by the program
COUNTS = {
    "tiny_ops": (100, 100, 0, 0),
    "big_matmul": (4, 4, 0, 0),
    "pointwise_chain": (4, 4, 0, 0),
    "item_each_time": (40, 40, 20, 20),
    "sleeping_loader": (1, 1, 0, 0),
    "pageable_copies": (1, 1, 1, 1),
    "pinned_copies": (1, 1, 1, 0),
    "two_streams": (20, 20, 0, 0),
    "graph_replay": (100, 1, 0, 0),
    "graph_break": (24, 24, 0, 0),
    "loop_optimizer": (280, 280, 0, 0),
    "attention_math": (14, 14, 0, 0),
    "attention_flash": (1, 1, 0, 0),
    "attention_efficient": (1, 1, 0, 0),
    "attention_cudnn": (1, 1, 0, 0),
    "block_eager": (5, 5, 0, 0),
    "block_compiled": (4, 4, 0, 0),
}


@cache
def trace(program):
    return traces.read(recording(program))


@cache
def found(program):
    return json.loads(json.dumps(diagnose(trace(program)).as_dict(), allow_nan=False))


def test_every_program_is_recorded_and_counted():
    assert set(COUNTS) == set(PROGRAMS)
    missing = [program for program in PROGRAMS if not recording(program).exists()]
    assert not missing, f"not recorded: {missing}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_regime_and_cause_are_what_was_planted(program):
    _, regime, cause = PROGRAMS[program]
    d = found(program)
    if regime is not None:
        assert (d["regime"], d["cause"]) == (regime, cause), str(diagnose(trace(program)))
    else:
        assert d["regime"] in {"overhead", "transfer", "memory", "compute", "unknown"}


@pytest.mark.parametrize("letter", PLANTED)
def test_the_quiz_has_the_answers_that_were_planted(letter):
    d = found(f"quiz_{letter}")
    assert (d["cause"] or d["regime"]) == PLANTED[letter], str(
        diagnose(trace(f"quiz_{letter}"))
    )
    assert trace(f"quiz_{letter}").linked == 1.0


@pytest.mark.parametrize("program", PROGRAMS)
def test_counts(program):
    d = found(program)
    kernels, launches, copies, syncs = COUNTS[program]
    assert (d["gpu"], d["steps"]) == ("NVIDIA H200", 3)
    assert (d["kernels_per_step"], d["launches_per_step"]) == (kernels, launches)
    assert d["copies_per_step"] == copies
    # the profile itself waits for the GPU too, at the end of the last step: not counted
    assert d["syncs_per_step"] == syncs
    assert len(trace(program).syncs.query("step >= 0")) > 3 * syncs


@pytest.mark.parametrize("program", PROGRAMS)
def test_everything_is_linked_and_nothing_is_lost(program):
    t = trace(program)
    assert t.linked == 1.0 and not any(t.set_aside.values())
    assert t.why_no_kernels == "" and len(t.steps) == 3
    replayed = program == "graph_replay"
    assert t.kernels["by_graph"].eq(replayed).all()
    # Triton's launches, and those of a graph, come from no op
    if program not in ("graph_replay", "graph_break", "block_compiled"):
        assert (t.kernels["op"] >= 0).all()


def test_the_ops_behind_the_kernels():
    t = trace("item_each_time")
    ops = {t.op_name(row) for row in t.kernels["op"]}
    assert ops == {"aten::mm", "aten::sum"}
    paths = {t.path(row) for row in t.copies.loc[t.copies["kind"] == "memcpy", "op"]}
    assert paths == {"aten::item > aten::_local_scalar_dense"}
    big = trace("big_matmul")
    assert {big.path(row) for row in big.kernels["op"]} == {"aten::matmul > aten::mm"}


def test_copies_have_a_direction_and_know_pinned_memory():
    for program, pageable in (("pageable_copies", True), ("pinned_copies", False)):
        copies = trace(program).copies
        assert set(copies["direction"]) == {"HtoD"} and len(copies) == 3
        assert (copies["pageable"] == pageable).all()
        assert (copies["bytes"] == 16 * 1024 * 1024 * 4).all()


def test_two_streams_work_at_the_same_time():
    t = trace("two_streams")
    assert t.kernels["stream"].nunique() == 2 and t.overlapping == 0
    (times,) = found("two_streams")["devices"].values()
    assert times["kernel_sum_us"] > 1.5 * times["kernel_us"]


def test_the_op_that_asked_for_the_sync_is_named():
    d = found("item_each_time")
    assert "aten::item" in " ".join(d["evidence"] + [r["action"] for r in d["remedies"]])


def test_a_graph_replay_is_warned_of():
    assert "graph" in " ".join(found("graph_replay")["warnings"]).lower()
