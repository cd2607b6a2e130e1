"""Plans: launches worked out once. What they fill in, refuse and let go; no GPU needed."""

import gc
import weakref

import pytest
import torch

from helpers.kernels import plans, support


class Compiled:
    """Stands in for what Triton compiled: remembers how it was run."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.runs = []

    def run(self, *given):
        self.runs.append(given)


class Kernel:
    arg_names = ["x_ptr", "w_ptr", "b_ptr", "out_ptr", "M", "BLOCK"]

    def __init__(self):
        self.compiled, self.first = Compiled(), None

    def __getitem__(self, grid):
        def launch(**named):
            self.first = named
            return self.compiled

        return launch


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False
    )
    x, w, out = torch.zeros(4, 8), torch.zeros(3, 8), torch.zeros(4, 3)
    named = dict(x_ptr=x, w_ptr=w, b_ptr=None, out_ptr=out, M=4, BLOCK=16)
    return plans.Started(Kernel(), (5,), named, num_warps=4)


SLOTS = {"x_ptr": 0, "w_ptr": 1, "b_ptr": 2, "out_ptr": 3}


def test_a_plan_launches_for_other_tensors(started):
    plan = plans.Plan(started, SLOTS, (4, 3), "pointer")
    x, w = torch.ones(4, 8), torch.ones(3, 8)
    out = plan(x, w, None)
    assert out.shape == (4, 3) and out.dtype == x.dtype and support.ran() == "pointer"
    (run,) = started.compiled.runs
    assert run[:9] == (5, 1, 1, 77, "function", "metadata", None, None, None)
    assert run[9:] == (x.data_ptr(), w.data_ptr(), None, out.data_ptr(), 4, 16)
    again = plan(x, w, None)
    assert again.data_ptr() != out.data_ptr()


def test_a_plan_of_several_outputs_returns_all_of_them(started):
    started.named["b_ptr"] = started.named["out_ptr"]
    plan = plans.Plan(started, SLOTS | {"b_ptr": 3, "out_ptr": 2}, (4, 3), "pointer", 2)
    first, second = plan(torch.ones(4, 8), torch.ones(3, 8))
    (run,) = started.compiled.runs
    assert run[11:13] == (second.data_ptr(), first.data_ptr())
    assert first.shape == second.shape == (4, 3) and first.data_ptr() != second.data_ptr()


def test_equal_tensors_keep_their_own_slots(started):
    started.named["w_ptr"] = started.named["x_ptr"]  # made from f(x, x), used for f(x, w)
    plan = plans.Plan(started, SLOTS, (4, 3), "pointer")
    x, w = torch.ones(4, 8), torch.ones(4, 8)
    plan(x, w, None)
    assert started.compiled.runs[0][9:11] == (x.data_ptr(), w.data_ptr())


def test_a_tensor_without_a_slot_is_an_error(started):
    with pytest.raises(ValueError, match="no slot for the tensor w_ptr"):
        plans.Plan(started, {"x_ptr": 0, "out_ptr": 3}, (4, 3), "pointer")


def test_a_plan_keeps_no_tensor_alive(started):
    alive = [weakref.ref(started.named[name]) for name in ("x_ptr", "w_ptr", "out_ptr")]
    plan = plans.Plan(started, SLOTS, (4, 3), "pointer")
    started.named.clear()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3 and plan.arguments[4] == 4


@pytest.mark.skipif(support.TensorDescriptor is None, reason="needs Triton")
def test_descriptors_are_made_anew(started):
    base = torch.zeros(4, 8, dtype=torch.float16)
    made = support.TensorDescriptor(base, [4, 8], [8, 1], [4, 8])
    started.named["x_ptr"] = made
    plan = plans.Plan(started, SLOTS, (4, 3), "tma")
    x = torch.ones(4, 8, dtype=torch.float16)
    plan(x, torch.ones(3, 8), None)
    got = started.compiled.runs[0][9]
    assert got is not made and got.base is x
    assert vars(got) == vars(support.TensorDescriptor(x, [4, 8], [8, 1], [4, 8]))


def test_the_oldest_plan_goes(monkeypatch):
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for number in range(plans.LIMIT + 5):
        plans.keep(("key", number), number)
    assert plans.find(("key", 4)) is None and plans.find(("key", 5)) == 5
    assert plans.find(None) is None
    plans.forget()
    assert plans.find(("key", 5)) is None


def test_nothing_is_kept_during_a_capture(monkeypatch):
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plans.keep(("key",), 1)
    assert plans.find(("key",)) is None


@pytest.mark.parametrize("x", [None, 3, torch.ones(2), torch.nn.Parameter(torch.ones(2))])
def test_no_key_off_the_gpu(x):
    assert plans.key("act_mul", "silu", (x, None)) is None
