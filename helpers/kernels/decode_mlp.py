"""A GLU MLP for a few tokens in one launch: it reads every weight once, and that is the time.

Three phases in one cooperative kernel: the hidden activations, the down projection split along
H, and the sum of its parts in a fixed order, so that two runs give the same bits. Between the
phases all programs wait for one another. Built by hand in notebook 08.
"""

import functools
import threading
from typing import Optional

import torch
import torch.nn.functional as F
from torch.library import custom_op

from helpers.kernels import activations, checks, support
from helpers.kernels.activations import activate
from helpers.kernels.support import HALF, tl, triton

Tensor, Maybe = torch.Tensor, Optional[torch.Tensor]
MAX_TOKENS = 64
LIMIT = 256  # launches kept: one for each layer of a model
CONFIG = dict(BN1=32, BK1=128, BN2=32, BK2=128, num_warps=4, num_stages=4)
SMALL = dict(BN1=16, BK1=32, BN2=16, BK2=32, num_warps=4, num_stages=2)


def decode_mlp(
    x, w_gate, w_up, w_down, activation="gelu_tanh", b_gate=None, b_up=None, b_down=None
):
    """Return (act(x w_gate^T) * (x w_up^T)) w_down^T, with biases where given.

    x is (..., D) of at most 64 tokens for the kernel (more go through torch), w_gate and w_up
    (H, D), w_down (O, H). Forward only: with gradients torch computes it. Deterministic. Bytes
    at least those of the three weights. ValueError and TypeError for what does not fit.
    """
    where = "decode_mlp"
    named = dict(x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    checks.check_tensors(where, named, dict(b_gate=b_gate, b_up=b_up, b_down=b_down))
    activations.check_activation(where, activation)
    if x.ndim == 0:
        raise ValueError(f"{where}: x has no dimensions; it has to be (..., D)")
    checks.check_weight(where, "w_gate", w_gate, x.shape[-1])
    checks.check_weight(where, "w_up", w_up, x.shape[-1], w_gate.shape[0])
    checks.check_weight(where, "w_down", w_down, w_gate.shape[0])
    checks.check_bias(where, "b_gate", b_gate, w_gate.shape[0])
    checks.check_bias(where, "b_up", b_up, w_gate.shape[0])
    checks.check_bias(where, "b_down", b_down, w_down.shape[0])
    tensors = support.autocast(x, w_gate, w_up, w_down, b_gate, b_up, b_down)
    if not support.plain(*tensors) or support.wants_grad(*tensors):
        return reference(*tensors[:4], activation, *tensors[4:])
    if torch.compiler.is_compiling():
        return _decode_mlp(*tensors, activation)
    return _forward(*tensors, activation)  # the dispatcher costs tens of us


def reference(
    x, w_gate, w_up, w_down, activation="gelu_tanh", b_gate=None, b_up=None, b_down=None
):
    """The same in plain torch."""
    g, u = F.linear(x, w_gate, b_gate), F.linear(x, w_up, b_up)
    return F.linear(activations.apply(g, activation) * u, w_down, b_down)


@triton.jit
def everyone(barrier_ptr):
    """Wait until every program has come here, and see what all of them have stored.

    Each adds 1 and the first one the rest of 2^31: the top bit flips when all have arrived,
    and the word is ready for the next barrier. Needs a cooperative launch.
    """
    tl.debug_barrier()
    flip = tl.full((), 0x80000000, tl.uint32)
    one = tl.full((), 1, tl.uint32)
    others = tl.num_programs(0).to(tl.uint32) - one
    add = tl.where(tl.program_id(0) == 0, flip - others, one)
    before = tl.atomic_add(barrier_ptr, add, sem="acq_rel")
    now = before
    waiting = True
    while waiting:
        now = tl.load(barrier_ptr, volatile=True)
        waiting = ((before ^ now) & flip) == 0
    tl.inline_asm_elementwise(
        "fence.acq_rel.gpu; mov.u32 $0, $1;", "=r,r", [now], dtype=tl.uint32, is_pure=False,
        pack=1,
    )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def decode_kernel(
    x_ptr, wg_ptr, wu_ptr, wd_ptr, bg_ptr, bu_ptr, bd_ptr,
    h_ptr, part_ptr, out_ptr, barrier_ptr, M, D, H, OUT, x_row, wg_row, wu_row, wd_row,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr, BN1: tl.constexpr, BK1: tl.constexpr, BN2: tl.constexpr,
    BK2: tl.constexpr, SPLIT: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """All three phases (PHASE 0) or one of them (1, 2, 3); rows of consecutive elements.

    h, the parts and the barrier (0 at first, and again after each launch) are workspace.
    """
    dtype = out_ptr.dtype.element_ty
    rows = tl.arange(0, BM)
    if PHASE < 2:  # h = act(x wg^T) * (x wu^T)
        ks = tl.arange(0, BK1)
        for tile in range(tl.program_id(0), tl.cdiv(H, BN1), tl.num_programs(0)):
            cols = tile * BN1 + tl.arange(0, BN1)
            wide = cols.to(tl.int64)
            g = tl.zeros((BM, BN1), tl.float32)
            u = tl.zeros((BM, BN1), tl.float32)
            for k in range(0, D, BK1):
                left = k + ks < D
                inside = (cols[:, None] < H) & left[None, :]
                at = wide[:, None] * wg_row + (k + ks)[None, :]
                x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * x_row + (k + ks)[None, :],
                            (rows[:, None] < M) & left[None, :], other=0.0)  # fmt: skip
                wg = tl.load(wg_ptr + at, inside, other=0.0)
                at = wide[:, None] * wu_row + (k + ks)[None, :]
                wu = tl.load(wu_ptr + at, inside, other=0.0)
                g = tl.dot(x, wg.T, g, input_precision="ieee")
                u = tl.dot(x, wu.T, u, input_precision="ieee")
            if bg_ptr is not None:
                g += tl.load(bg_ptr + cols, cols < H, other=0.0).to(tl.float32)[None, :]
            if bu_ptr is not None:
                u += tl.load(bu_ptr + cols, cols < H, other=0.0).to(tl.float32)[None, :]
            mask = (rows[:, None] < M) & (cols[None, :] < H)
            h = (activate(g, ACTIVATION) * u).to(dtype)
            tl.store(h_ptr + rows[:, None] * H + cols[None, :], h, mask)
    if PHASE == 0:
        everyone(barrier_ptr)
    if (PHASE == 0) | (PHASE == 2):  # parts of h wd^T, each from its own share of H
        ks = tl.arange(0, BK2)
        share = tl.cdiv(tl.cdiv(H, SPLIT), BK2) * BK2
        for unit in range(tl.program_id(0), tl.cdiv(OUT, BN2) * SPLIT, tl.num_programs(0)):
            part = unit % SPLIT
            cols = unit // SPLIT * BN2 + tl.arange(0, BN2)
            wide = cols.to(tl.int64)
            y = tl.zeros((BM, BN2), tl.float32)
            for k in range(part * share, min(part * share + share, H), BK2):
                left = k + ks < H
                h = tl.load(h_ptr + rows[:, None] * H + (k + ks)[None, :],
                            (rows[:, None] < M) & left[None, :], other=0.0)  # fmt: skip
                wd = tl.load(wd_ptr + wide[:, None] * wd_row + (k + ks)[None, :],
                             (cols[:, None] < OUT) & left[None, :], other=0.0)  # fmt: skip
                y = tl.dot(h, wd.T, y, input_precision="ieee")
            mask = (rows[:, None] < M) & (cols[None, :] < OUT)
            at = rows[:, None] * OUT + cols[None, :]
            tl.store(part_ptr + part * M * OUT + at, y, mask)
    if PHASE == 0:
        everyone(barrier_ptr)
    if (PHASE == 0) | (PHASE == 3):  # the parts' sum, always in the same order
        for start in range(tl.program_id(0) * 256, M * OUT, tl.num_programs(0) * 256):
            at = start + tl.arange(0, 256)
            y = tl.zeros((256,), tl.float32)
            for part in range(SPLIT):
                y += tl.load(part_ptr + part * M * OUT + at, at < M * OUT, other=0.0)
            if bd_ptr is not None:
                y += tl.load(bd_ptr + at % OUT, at < M * OUT, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, y.to(dtype), at < M * OUT)


def split(out, h, programs, config):
    """Parts of H, a power of two up to 16, that keep `programs` programs about evenly busy."""
    tiles = triton.cdiv(out, config["BN2"])
    best, waste = 1, None
    for parts in (1, 2, 4, 8, 16):
        if parts > 1 and triton.cdiv(h, parts) < 2 * config["BK2"]:
            break
        rounds = triton.cdiv(tiles * parts, programs)
        lost = rounds * programs / (tiles * parts) - 1
        if waste is None or lost < waste - 0.05:
            best, waste = parts, lost
    return best


def config_for(bm, card):
    """The configuration for tiles of bm tokens on a GPU of this capability."""
    # Of several versions of the compiler one or another spills with more: with four stages on
    # an A100, whose matmuls read registers, and with four warps on Blackwell.
    if bm == 16 or card[0] == 9:
        return CONFIG
    return CONFIG | ({"num_warps": 8} if card[0] == 10 else {"num_stages": 3})


class Launch:
    """decode_mlp for inputs like `x` (M, D): sizes, workspace and launch worked out once.

    After its first call it needs the input alone, and costs the host one allocation and one
    launch: for inputs of the same shape, strides and alignment, on the stream of the first
    call, while the weights stay where they were. It keeps addresses, not tensors.
    """

    def __init__(self, x, weights, activation):
        (m, d), h, out = x.shape, weights[0].shape[0], weights[2].shape[0]
        self.shape, self.activation = (m, out), activation
        self.like_x = x.is_contiguous() and out == d  # then empty_like, the cheaper call
        self.sizes = (m, d, h, out, *(t.stride(0) for t in (x, *weights[:3])))
        self.bm = max(16, triton.next_power_of_2(m))
        self.config = SMALL
        if not support.INTERPRETED:
            self.config = config_for(self.bm, support.capability(x.device))
        self.sms = support.properties(x.device).multi_processor_count
        # Programs on an SM: as many as fit at once, two where the tile of x leaves room.
        self.tries = [] if support.INTERPRETED else [2, 1] if self.bm == 16 else [1]
        self.hidden = x.new_empty(m, h)
        self.barrier = torch.zeros(1, dtype=torch.uint32, device=x.device)
        self._size_for(x, self.tries[0] if self.tries else 1)
        self.start, self.lock = None, threading.Lock()

    def _size_for(self, x, per_sm):
        m, _, h, out = self.sizes[:4]
        self.programs = self.sms * per_sm
        parts = split(out, h, self.programs, self.config)
        self.partial = x.new_empty((parts, m, out), dtype=torch.float32)
        blocks = (self.config[name] for name in ("BN1", "BK1", "BN2", "BK2"))
        self.fixed = (self.activation, self.bm, *blocks, parts)

    def __call__(self, x, weights=None):
        y = torch.empty_like(x) if self.like_x else x.new_empty(self.shape)
        if self.start is None:
            with self.lock:
                if self.start is None:
                    self._first(x, weights, y)
                    return y
        start, before, after = self.start
        start(x.data_ptr(), *before, y.data_ptr(), *after)
        return y

    def _first(self, x, weights, y):
        """Launch as many programs as fit at once, or else each phase by itself."""
        options = {k: v for k, v in self.config.items() if k.startswith("num_")}
        while self.tries:
            self._size_for(x, self.tries[0])
            work = (self.hidden, self.partial, y, self.barrier)
            try:
                compiled = decode_kernel[(self.programs,)](
                    x, *weights, *work, *self.sizes, *self.fixed, 0,
                    launch_cooperative_grid=True, **options,
                )  # fmt: skip
                self._keep(compiled, x, weights)
                return
            except RuntimeError as error:  # Triton has no class of its own for it
                if "cooperative" not in str(error):
                    raise
            self.tries.pop(0)
        work = (self.hidden, self.partial, y, self.barrier)
        for phase in (1, 2, 3):
            decode_kernel[(self.programs,)](
                x, *weights, *work, *self.sizes, *self.fixed, phase, **options
            )

    def _keep(self, compiled, x, weights):
        """Keep the launch: finding the kernel and asking for pointers cost more than it."""
        self.compiled = compiled  # alive: its code is unloaded with it
        stream = torch.cuda.current_stream(x.device).cuda_stream
        kernel = (stream, compiled.function, compiled.packed_metadata)
        # What compiled[grid] calls as well; without the hooks of a tracing tool.
        start = functools.partial(compiled.run, self.programs, 1, 1, *kernel, None, None, None)
        tensors = (*weights, self.hidden, self.partial)
        before = [None if t is None else t.data_ptr() for t in tensors]
        after = (self.barrier.data_ptr(), *self.sizes, *self.fixed, 0)
        self.start = (start, before, after)


def prepare(x, weights, activation):
    """A function of inputs like x (..., D) that launches decode_mlp at the least cost.

    `weights` are the three weights and the three biases, or None for a bias. None if this GPU
    has no room for a cooperative launch.
    """
    flat, shape = support.rows(x), (*x.shape[:-1], weights[2].shape[0])
    prepared = Launch(flat, weights, activation)
    prepared(flat, weights)
    if prepared.start is None:
        return None
    if x.ndim == 2 and x.stride() == flat.stride():  # of a single row, reshape changes them
        return prepared
    return lambda x: prepared(support.rows(x)).view(shape)


def launch_once(x, weights, activation):
    """decode_mlp of x (M, D), keeping nothing."""
    return Launch(x, weights, activation)(x, weights)


_launches, _lock = {}, threading.Lock()


def launch(x, weights, activation):
    """decode_mlp of x (M, D), by a launch that was kept if it is like one of them."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return launch_once(x, weights, activation)  # workspace that the graph owns
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    places = tuple(None if t is None else (t.data_ptr(), t.shape, t.stride()) for t in weights)
    key = (
        x.shape,
        x.stride(),
        x.dtype,
        x.data_ptr() % 16,
        x.device,
        stream,
        activation,
        places,
    )
    with _lock:
        found = _launches.pop(key, None) or Launch(x, weights, activation)
        _launches[key] = found  # the last used is the last to go
        while len(_launches) > LIMIT:
            _launches.pop(next(iter(_launches)))
    return found(x, weights)


def refuses(x, w_gate, w_up, w_down):
    """Why the kernel cannot take x (M, D) and the weights; None if it can."""
    tensors = (x, w_gate, w_up, w_down)
    if why := support.refuses(*tensors, matmul=True):
        return why
    if x.shape[0] > MAX_TOKENS:
        return f"more than {MAX_TOKENS} tokens"
    if x.dtype not in HALF and not support.INTERPRETED:
        return "fp32: cuBLAS is the faster one"
    if any(t.stride(1) != 1 for t in tensors):
        return "the elements of a row do not follow one another"
    return None


def _forward(x, w_gate, w_up, w_down, b_gate, b_up, b_down, activation, keep=True):
    flat, biases = support.rows(x), (b_gate, b_up, b_down)
    given = [b for b in biases if b is not None]
    why = refuses(flat, w_gate, w_up, w_down)
    if not why and any(b.dtype != x.dtype for b in given):
        why = "the biases are of another dtype"
    if (
        support.forced() not in (None, "torch", "decode")
        or why
        and support.forced() == "decode"
    ):
        raise RuntimeError(f"decode_mlp cannot take the path {support.forced()!r}: {why}")
    if why:
        support.note("torch")
        return reference(x, w_gate, w_up, w_down, activation, *biases)
    support.note("decode")
    weights = (w_gate, w_up, w_down, *(None if b is None else b.contiguous() for b in biases))
    with support.on(x):
        # Within torch.compile the workspace may be a CUDA graph's: it is not ours to keep.
        run = launch if keep else launch_once
        y = run(flat, weights, activation)
    return y.view(*x.shape[:-1], w_down.shape[0])


@custom_op("wttg::decode_mlp", mutates_args=())
def _decode_mlp(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor,
    b_gate: Maybe, b_up: Maybe, b_down: Maybe, activation: str,
) -> Tensor:  # fmt: skip
    return _forward(x, w_gate, w_up, w_down, b_gate, b_up, b_down, activation, keep=False)


@_decode_mlp.register_fake
def _(x, w_gate, w_up, w_down, b_gate, b_up, b_down, activation):
    return x.new_empty(*x.shape[:-1], w_down.shape[0])


def shipped():
    """What cross_compile checks: the kernel for each tile of tokens, as a GPU launches it."""
    pointers = ["x_ptr", "wg_ptr", "wu_ptr", "wd_ptr", "h_ptr", "out_ptr"]
    sizes = ["M", "D", "H", "OUT", "x_row", "wg_row", "wu_row", "wd_row"]
    signature = dict.fromkeys(pointers, "*bf16") | dict.fromkeys(sizes, "i32")
    signature |= {"part_ptr": "*fp32", "barrier_ptr": "*u32"}
    none = {"bg_ptr": None, "bu_ptr": None, "bd_ptr": None, "ACTIVATION": "gelu_tanh"}
    rows = []
    for bm in (16, 32, MAX_TOKENS):
        for archs in ((80, 89), (90,), (100,)):
            config = config_for(bm, divmod(archs[0], 10))
            options = {k: config[k] for k in ("num_warps", "num_stages")}
            blocks = {k: v for k, v in config.items() if k not in options}
            rows.append(
                dict(
                    kernel=f"decode_mlp, {bm} tokens", fn=decode_kernel, signature=signature,
                    constexprs=none | blocks | {"BM": bm, "SPLIT": 4, "PHASE": 0}, **options,
                    divisible=[*pointers, "part_ptr", "barrier_ptr", *sizes], archs=archs,
                )
            )  # fmt: skip
    return rows
