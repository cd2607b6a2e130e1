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
BLOCKED_SHARE = 0.2  # of the window: a host blocked for less is not held up by the waits alone
SLOWED = 5.0  # a profiled host takes up to so many times as long; seen: 4.7, compiled code
SHORT_KERNEL_US = 3.0  # so short a kernel is no evidence of its kind
SHORT_STEPS, SHORT_US = 3, 1000.0  # a window with less is short
LOST_SHARE = 0.15  # of the launches: if more lack their kernels, nothing is judged
CLOSING_US = 200.0  # what follows a profile's last wait is the profiler's for so long
LEAST_US = 10.0  # a window with less is not judged: one launch takes about as long
FEW_PER_STEP = 2  # launches: so few are not made fewer
HOST_LINK = 128e9  # bytes/s each way: PCIe 6.0 x16, the fastest that pinned memory can feed
WORTH = 1.05  # a remedy that can gain no more is not listed

_HALF, _ROOF, _LOW = (f"{x * 100:.0f} %" for x in (IDLE_SHARE, MEMORY_SHARE, COMPUTE_SHARE))
_HOLE, _MS, _DRY, _3 = (f"{x:.0f} us" for x in (STALL_US, QUIET_US, DRY_US, SHORT_KERNEL_US))
_LOST, _END = f"{LOST_SHARE * 100:.0f} %", f"{CLOSING_US:.0f} us"
_FEW, _LEAST, _SLOWED, _LINK = (
    f"{x:.0f}" for x in (FEW_LAUNCHES, LEAST_US, SLOWED, HOST_LINK / 1e9)
)

RULES = f"""\
The window runs from the start of the first step to the end of the last one, or of the last
GPU event launched in it. Of several processes' steps, those of the one with most GPU work.
Without steps it is the whole recording. What was launched before the window counts as busy
time, but not as its own; what has no call in the file is its own if it starts in it.

Busy is the union of kernels and copies on one GPU, all its streams; labels and waits are no
work. Idle is the rest. Of several GPUs the busiest one counts. Idle has four classes; for
every part of a gap the first that fits:

  profiler         its buffers; prof.step(), if it took less than {_MS} between two steps;
                   the wait with which a profile ends and {_END} after it. That wait is not
                   counted
  host stall       before the next launch no op was open on any thread, and no call on a
                   thread that launches, for {_HOLE} or more; or no such call began or ended
                   for {_MS}; or one that neither launches, copies nor waits took {_HOLE}:
                   data, Python, a call that allocates, loads or compiles
  synchronisation  from a wait for the GPU, begun at most {_DRY} after it had done what was
                   launched before, until new work arrived. A wait also costs the host its
                   lead: later gaps count, up to the time for which it was blocked; and all
                   gaps between two waits with fewer than {_FEW} launches between them
  launch rate      the rest: the host was dispatching, and new work came too late; or the
                   work was queued, and the kernels are so short that the space between
                   them shows

The regime:

  overhead   idle is more than {_HALF} of the window, the profiler's share left out of both.
             The cause is the largest of the other three classes
  else the largest part of the busy time decides (kernels that overlap share their time):
  transfer   copies between host and GPU or between GPUs that no kernel hides; collectives
  compute    matmuls, convolutions, attention
  memory     pointwise ops, reductions, norms, softmax, indexing, sorting, optimizers, and
             copies within the GPU's memory
  unknown    kernels of unknown name, or limited by neither; no GPU events, or none of more
             than {_LOST} of the launches; a damaged file; a window under {_LEAST} us, or the
             profiler's for more than {_HALF}

Where shapes were recorded and the card is known, FLOPs and least bytes decide. A matmul with
{_ROOF} of the bandwidth, and more of it than of the FLOP/s, is memory. With less, and under
{_LOW} of the FLOP/s, it is neither: too small, or badly shaped; so is a pointwise or similar
op with less than {_ROOF}. Without shapes the name decides, unless that op took under {_3}.

Bounds are time / (time - what goes), all else unchanged. For idle the time is the window
less the profiler's share; without overhead its edges do not count; launching less leaves the
waits. For GPU work it is the busy time or, under overhead, if longer, all stalls and
1/{_SLOWED} of the rest: a profiled host is up to {_SLOWED} times slower. Fused kernels move no
less than the smallest did, copies hide behind other work only, pinned ones run at {_LINK}
GB/s, attention counts all pairs. What fits the cause or regime comes first.
Mind: the profiler slows the host, most with many small ops or compiled code, so idle is an
upper limit. Idle and attribution of CUDA graph replays are unreliable. Collectives wait, too.
"""
