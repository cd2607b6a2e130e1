"""The rules of `diagnose`, and every threshold in them. Taught in notebook 03."""

IDLE_SHARE = 0.5  # of the window: above it the regime is overhead
STALL_US = 100.0  # nothing open on the host for this long is a stall; Python needs less
QUIET_US = 1000.0  # so is no call beginning or ending for this long, whatever op is open
DRY_US = 50.0  # a wait that begins later after the GPU's last work waits for nothing
FEW_LAUNCHES = 16  # between two waits: with fewer the host never gets ahead of the GPU
MEMORY_SHARE = 0.25  # of the bandwidth: with less a kernel is not limited by memory
COMPUTE_SHARE = (
    0.1  # of the peak: with less not by arithmetic; sound kernels may reach no more
)
SHORT_KERNEL_US = 3.0  # so short a kernel is no evidence of its kind
SHORT_STEPS, SHORT_US = 3, 1000.0  # a window with less is short
WORTH = 1.05  # a remedy that can gain no more is not listed

_HALF, _ROOF, _LOW = (f"{x * 100:.0f} %" for x in (IDLE_SHARE, MEMORY_SHARE, COMPUTE_SHARE))
_HOLE, _MS, _DRY, _3 = (f"{x:.0f} us" for x in (STALL_US, QUIET_US, DRY_US, SHORT_KERNEL_US))
_FEW = FEW_LAUNCHES

RULES = f"""\
The window runs from the start of the first step to the end of the last one, or of the last
GPU event launched in it. Without steps it is the whole recording. What was launched before
the window counts as busy time, but not as a launch of the window's own.

Busy is the union of kernels and copies on one GPU, all its streams; labels and waits are no
work. Idle is the rest. Of several GPUs the busiest one counts. Idle has four classes; for
every part of a gap the first that fits:

  profiler         the profiler handled its buffers; or prof.step() took less than {_MS}
                   between two steps; or, after the last launch of all, the wait with which
                   a profile ends
  host stall       before the next launch no op and no runtime call was open on the host, on
                   any thread, for {_HOLE} or more; or no call began or ended for {_MS}:
                   data, Python, a call that allocates, loads or compiles
  synchronisation  from a wait for the GPU, begun at most {_DRY} after it ran dry, until new
                   work arrived. A wait also costs the host its lead. So later gaps count,
                   up to the time for which it was blocked; and all gaps between two waits
                   with fewer than {_FEW} launches between them, too few to get ahead
  launch rate      the rest: the host was dispatching, and new work came too late; or the
                   work was queued, and the kernels are so short that the space between
                   them shows

The regime:

  overhead   idle is more than {_HALF} of the window, the profiler's share left out of both.
             The cause is the largest of the other three classes
  else the largest part of the busy time decides:
  transfer   copies between host and GPU or between GPUs that no kernel hides; collectives
  compute    matmuls, convolutions, attention
  memory     pointwise ops, reductions, norms, softmax, indexing, sorting, optimizers, and
             copies within the GPU's memory
  unknown    kernels of unknown name, or limited by neither; a trace without GPU events

Where shapes were recorded and the card is known, FLOPs and least bytes decide. An op belongs
to the peak that it comes closer to, so a thin matmul is memory. With less than {_ROOF} of the
bandwidth and {_LOW} of the FLOP/s it is limited by neither: too small, or badly shaped.
Without shapes the kernel's name decides, but a pointwise or similar kernel of less than {_3}
says nothing.

Bounds: removing all idle gives at most window / busy, removing one class of idle and nothing
else at most window / (window - class). A bound is no forecast.

Mind: the profiler slows the host, most of all with many small ops, so idle is an upper
limit. Time the step without a profiler. In CUDA graph replays neither idle nor attribution
is reliable. A collective's time includes waiting for the slowest rank.
"""
