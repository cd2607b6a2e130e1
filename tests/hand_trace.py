"""Traces made by hand, to the microsecond: what a reader finds in them is known in advance.

    h = HandTrace()
    h.step(0, 100)
    h.op("aten::mm", 10, 30)
    h.launch("cudaLaunchKernel", 20, 5, correlation=1)
    h.kernel("gemm", 40, 50, correlation=1)
    h.trace()

Every method takes start and duration in microseconds, relative to `base_us`, and returns the
event (a dict, which a test may change before it saves).
"""

import gzip
import io
import json
from pathlib import Path

# Recorded on an H200 by helpers.programs: RECORDED.format(program)
RECORDED = "data/nvidia-h200/03_{}.json.gz"
DEVICE = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def recording(program):
    """The path of a recorded program's trace."""
    return Path(__file__).resolve().parents[1] / RECORDED.format(program)


class HandTrace:
    """Collects events; `cat` in the arguments of a method overrides its category."""

    def __init__(self, *, base_us=1_000_000.0, pid=100, tid=100, devices=(DEVICE,), **top):
        self.base_us, self.pid, self.tid = base_us, pid, tid
        self.top = {"schemaVersion": 1, "deviceProperties": list(devices), **top}
        self.events = []
        self.steps = 0

    def event(self, category, name, start_us, dur_us, *, pid=None, tid=None, **args):
        """Add any complete event; what is not pid or tid becomes an entry of its args."""
        event = {"ph": "X", "cat": args.pop("cat", category), "name": name}
        event["pid"] = self.pid if pid is None else pid
        event["tid"] = self.tid if tid is None else tid
        event["ts"], event["dur"] = self.base_us + start_us, dur_us
        if args:
            event["args"] = args
        self.events.append(event)
        return event

    # the host

    def step(self, start_us, dur_us, number=None, **place):
        """A ProfilerStep#, numbered from 0 on."""
        number = self.steps if number is None else number
        self.steps = number + 1
        return self.event(
            "user_annotation", f"ProfilerStep#{number}", start_us, dur_us, **place
        )

    def op(self, name, start_us, dur_us, *, shapes=None, types=None, sequence=None, **args):
        """A cpu_op, with "Input Dims", "Input type" and "Sequence number" where given."""
        named = {"Input Dims": shapes, "Input type": types, "Sequence number": sequence}
        args |= {key: value for key, value in named.items() if value is not None}
        return self.event("cpu_op", name, start_us, dur_us, **args)

    def launch(self, name, start_us, dur_us, correlation=None, **args):
        """A call of the runtime or (cu...) of the driver; any name, copies and syncs too."""
        if correlation is not None:
            args["correlation"] = correlation
        cat = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        return self.event(cat, name, start_us, dur_us, **args)

    def sync(self, name, start_us, dur_us, correlation=None, **args):
        """A call that waits for the GPU."""
        return self.launch(name, start_us, dur_us, correlation, **args)

    def label(self, name, start_us, dur_us, **args):
        """A record_function label on the host."""
        return self.event("user_annotation", name, start_us, dur_us, **args)

    def overhead(self, name, start_us, dur_us, **args):
        """The profiler's own work, such as "Buffer Flush"."""
        args.setdefault("pid", -1)
        args.setdefault("tid", 0)
        return self.event("overhead", name, start_us, dur_us, **args)

    # the GPU

    def _gpu(self, cat, name, start_us, dur_us, correlation, device, stream, args):
        if correlation is not None:
            args["correlation"] = correlation
        args = {"device": device, "stream": stream, "pid": device, "tid": stream} | args
        return self.event(cat, name, start_us, dur_us, **args)

    def kernel(self, name, start_us, dur_us, correlation=None, device=0, stream=7, **args):
        """A kernel on a stream of a device."""
        return self._gpu("kernel", name, start_us, dur_us, correlation, device, stream, args)

    def copy(self, name, start_us, dur_us, correlation=None, device=0, stream=7, **args):
        """A copy, such as "Memcpy HtoD (Pageable -> Device)"; bytes=... where known."""
        args = (device, stream, args)
        return self._gpu("gpu_memcpy", name, start_us, dur_us, correlation, *args)

    def memset(self, start_us, dur_us, correlation=None, device=0, stream=7, **args):
        """A fill."""
        args = ("Memset (Device)", start_us, dur_us, correlation, device, stream, args)
        return self._gpu("gpu_memset", *args)

    def gpu_label(self, name, start_us, dur_us, device=0, stream=7):
        """A label's shadow on the GPU, which is no work."""
        place = (start_us, dur_us, None, device, stream, {})
        return self._gpu("gpu_user_annotation", name, *place)

    def gpu_sync(self, name, start_us, dur_us, device=0, stream=7):
        """A row of category cuda_sync on the GPU, which is no work."""
        return self._gpu("cuda_sync", name, start_us, dur_us, None, device, stream, {})

    # the file

    def run(self, name, start_us, correlation, gpu_start_us, gpu_us, *, op="aten::mm", **gpu):
        """An op of 10 us; in it, from 2 us on, a launch of 5 us; and the kernel it started."""
        self.op(op, start_us, 10)
        self.launch("cudaLaunchKernel", start_us + 2, 5, correlation)
        self.kernel(name, gpu_start_us, gpu_us, correlation, **gpu)

    def text(self, bare=False):
        """The file's text; bare=True gives the list of events alone."""
        return json.dumps(self.events if bare else {**self.top, "traceEvents": self.events})

    def save(self, path, gz=True, bare=False):
        """Write the file and return its path."""
        data = self.text(bare).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if gz else data)
        return path

    def file(self, bare=False):
        """The file as an open binary file object."""
        return io.BytesIO(self.text(bare).encode())

    def trace(self):
        """Read it with helpers.traces."""
        from helpers import traces

        return traces.read(self.file())
