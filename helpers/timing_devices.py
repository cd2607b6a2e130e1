"""What `timing` needs of a device: a clock, a wait, and on CUDA a flush, events and graphs."""

import time
import warnings

FLUSH_OVER_L2 = 2
UNKNOWN_L2_FLUSH_BYTES = 256 * 2**20


def current():
    """The device that PyTorch works on here: Cuda, or Host for everything else."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return (Cuda if accelerator and accelerator.type == "cuda" else Host)(torch)


class Host:
    """A CPU, or an accelerator of which only the host's clock is used."""

    gpu = False
    clock = staticmethod(time.perf_counter)

    def __init__(self, torch):
        self.torch = torch

    def sync(self):
        """Wait until the current device has done everything that is queued."""
        if self.torch.accelerator.is_available():
            self.torch.accelerator.synchronize()

    def label(self):
        """What belongs to the method's name: on a CPU the number of threads."""
        return f", {self.torch.get_num_threads()} CPU threads"


class Cuda(Host):
    """The current CUDA (or ROCm) device, seen from its current stream."""

    gpu = True

    def sync(self):
        self.torch.cuda.synchronize()

    def label(self):
        return ""

    def flush(self):
        """A function without arguments after which L2 holds nothing useful.

        It updates a buffer of twice the L2 in place, so that L2 is left as another program's
        output leaves it: full of lines still to be written back. On an H200 copies of 4 to
        64 MiB and a 1024 matmul then cost what they cost on rotated buffers, within 4 %.
        Behind a flush that only reads, the 16 MiB copy costs 30 % more: its own lines, written
        back during the next flush, are charged to it. The memory is taken once a measurement.
        """
        torch = self.torch
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        l2_bytes = getattr(card, "L2_cache_size", 0)
        nbytes = FLUSH_OVER_L2 * l2_bytes or UNKNOWN_L2_FLUSH_BYTES
        buffer = torch.zeros(nbytes // 4, dtype=torch.float32, device="cuda")
        return lambda: buffer.add_(1)

    def mark(self):
        """Record an event on the current stream."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_us(self, start, end):
        """Microseconds between two events that have both happened."""
        return start.elapsed_time(end) * 1e3

    def capture(self, body, number):
        """CUDA graph of `number` calls of body; RuntimeError says what cannot be captured."""
        cuda = self.torch.cuda
        mode = cuda.get_sync_debug_mode()
        graph, pool = cuda.CUDAGraph(), cuda.graph_pool_handle()
        # A failing capture leaves torch.cuda.graph's side stream current: hence the outer one.
        # The silenced warnings: the debug mode is a prototype; a graph came out empty.
        with warnings.catch_warnings(), cuda.stream(cuda.current_stream()):
            warnings.simplefilter("ignore")
            try:
                # What cannot be captured mostly synchronises (.item(), .cpu(), nonzero). Here
                # torch itself finds that out, before CUDA has a capture to break off.
                cuda.set_sync_debug_mode("error")
                body()
                with cuda.graph(graph, pool=pool):
                    for _ in range(number):
                        body()
            except Exception:
                self._mend(pool)
                raise
            finally:
                cuda.set_sync_debug_mode(mode)
        return graph

    def _mend(self, pool):
        # For torch 2.10 and 2.11 a capture that CUDA broke off goes on: the allocator keeps
        # its pool open (pytorch#180395), the random generator refuses eager calls. Close the
        # pool, then let a capture that succeeds reset the generator.
        torch = self.torch
        self.sync()
        try:
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
        except (AttributeError, RuntimeError):
            pass  # nothing was open: a newer torch closed it, or the capture never began
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
