"""What limits a program, from its trace: one sentence, the evidence, what to try first.

    print(diagnose("step.json.gz"))
    python -m helpers diagnose step.json.gz

The rules are in `diagnose_rules.RULES`. Taught in notebook 03, where each is applied by eye.
"""

import json
from dataclasses import dataclass, field

from helpers import traces
from helpers.diagnose_evidence import evidence
from helpers.diagnose_numbers import of_numbers
from helpers.diagnose_rules import RULES
from helpers.diagnose_skew import without_late
from helpers.diagnose_text import report, sentence
from helpers.diagnose_warnings import warnings
from helpers.diagnose_window import counts, find_window
from helpers.findings import measure
from helpers.kernel_names import decode
from helpers.remedies import remedies

__all__ = ["RULES", "Diagnosis", "diagnose"]

TOP = 10  # kernels listed by name


@dataclass(repr=False, eq=False)
class Diagnosis:
    """What limits a program; print it for the report, as_dict() for programs.

    Times in us; what ends in _per_step is a mean over the steps (without steps: the total).
    Numbers are None where the trace cannot tell. cause is None unless the regime is overhead.
    bound_speedup: window over busy time. remedies: [{"action", "at_most"}], those for the
    cause or regime first; at_most None where there is none. devices: by id as text. shares:
    fractions of the window that sum to 1, kernels, copies and the four classes of idle ({}
    without GPU events).
    """

    sentence: str
    gpu: str | None = None
    steps: int = 0
    step_us: float | None = None
    kernels_per_step: float | None = None
    launches_per_step: float | None = None
    copies_per_step: float | None = None
    syncs_per_step: float | None = None
    busy_fraction: float | None = None
    kernel_fraction: float | None = None
    copy_fraction: float | None = None
    regime: str = "unknown"
    cause: str | None = None
    bound_speedup: float | None = None
    evidence: list = field(default_factory=list)
    remedies: list = field(default_factory=list)
    warnings: list = field(default_factory=list)
    devices: dict = field(default_factory=dict)
    top_kernels: list = field(default_factory=list)
    shares: dict = field(default_factory=dict)

    def as_dict(self):
        """Return what --json prints: plain numbers, texts, lists and dicts."""
        left_out = ("sentence", "shares")
        told = {name: value for name, value in vars(self).items() if name not in left_out}
        # Through JSON, which makes numpy's numbers Python's.
        return json.loads(json.dumps(told, default=lambda number: number.item()))

    def __str__(self):
        return report(self)

    def __repr__(self):
        return f"<Diagnosis: {self.sentence}>"


def diagnose(trace=None, *, wall_us=None, busy_us=None, kernels=None, launches=None):
    """Return the Diagnosis of a trace (a Trace, a path, an open file), or of four numbers.

    The numbers are those of one step by another profiler: wall-clock and GPU busy time (a
    union, not a sum over streams), kernels and launches where known. ValueError if they make
    no sense or come with a trace; TraceError, FileNotFoundError for a file that is no trace.
    """
    numbers = {
        "wall_us": wall_us,
        "busy_us": busy_us,
        "kernels": kernels,
        "launches": launches,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    if trace is None:
        return Diagnosis(**of_numbers(given))
    if given:
        raise ValueError(f"give a trace or numbers, not both (here also {', '.join(given)})")
    return _of_trace(trace if isinstance(trace, traces.Trace) else traces.read(trace))


def _of_trace(trace):
    trace = without_late(trace)
    window = find_window(trace)
    found = measure(trace, window) if window.us > 0 else None
    told = {"steps": window.steps, "warnings": warnings(trace, window, found)}
    if window.us > 0:
        told["step_us"] = window.per_step(window.us)
    if len(trace.calls) or len(trace.gpu):
        told |= counts(trace, window)
    if found is None:
        why = trace.why_no_kernels or _why_nothing(trace, window)
        text = "unknown: the trace holds no GPU work, and diagnose judges what a GPU does"
        if not len(trace.kernels):
            told["kernels_per_step"] = None  # not recorded is not zero
        return Diagnosis(text, evidence=[why], **told)
    busy = found.busy
    return Diagnosis(
        sentence(found, told),
        gpu=found.card,
        busy_fraction=busy["busy_fraction"],
        kernel_fraction=busy["kernel_us"] / window.us,
        copy_fraction=busy["copy_us"] / window.us,
        regime=found.regime,
        cause=found.cause,
        bound_speedup=window.us / busy["busy_us"],
        evidence=evidence(found, told),
        remedies=remedies(found),
        devices=found.devices,
        top_kernels=_top(found.work.kernels),
        shares=_shares(busy, found.idle, window.us),
        **told,
    )


def _why_nothing(trace, window):
    """Why none of the GPU's events is work in the window."""
    own = trace.gpu.loc[window.own, "dur_us"]
    if len(own) and not own.any():
        return (
            f"All {len(own):,} GPU events of the window have duration 0: their times were not "
            "recorded, or a tool has lost them. Record again."
        )
    return (
        f"None of the {len(trace.gpu):,} GPU events lies in the window of {window.steps} "
        "steps: did the steps launch anything, and was the GPU synchronised before the "
        "profile ended?"
    )


def _top(kernels):
    """The kernels that take most of the time, with what their names say."""
    by_name = kernels.groupby("name", observed=True)["us"].agg(["size", "sum"])
    by_name = by_name.sort_values("sum", ascending=False, kind="stable")
    return [
        {
            "name": str(name),
            "decoded": str(decode(str(name))),
            "count": int(row["size"]),
            "us": float(row["sum"]),
            "share": float(row["sum"] / by_name["sum"].sum()),
        }
        for name, row in by_name.head(TOP).iterrows()
    ]


def _shares(busy, idle, window_us):
    parts = {"kernels": busy["kernel_us"], "copies": busy["busy_us"] - busy["kernel_us"]}
    return {name: float(us / window_us) for name, us in (parts | idle.us).items()}
