"""A GLU MLP as a module that takes the fastest path it has: notebook 08's summit."""

import functools
import math
import threading
import warnings
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, is_autocast_enabled, is_grad_enabled, nn
from torch.compiler import is_compiling

from helpers.kernels import activations, plans, support, tuning
from helpers.kernels.decode_mlp import MAX_TOKENS, decode_mlp, prepare, refuses
from helpers.kernels.gate_up_glu import gate_up_glu, plan_key
from helpers.kernels.gate_up_glu import reference as stage_reference

SAME = {torch.bfloat16: 6e-3, torch.float16: 2e-3}  # relative: two ways to round a formula
SHAPES = 32  # prepared shapes a module keeps
SMALL_FLOPS = 1e11  # above, launches do not matter: an H200 computes 150 us for that
MODULES = {nn.SiLU: "silu", nn.ReLU: "relu"}
FUNCTIONS = {F.silu: "silu", F.relu: "relu", F.gelu: "gelu_erf"}
# By the names of Hugging Face's classes and configurations, which need not be installed.
NAMES = {"SiLUActivation": "silu", "silu": "silu", "swish": "silu", "relu": "relu"}
NAMES |= {"GELUActivation": "gelu_erf", "gelu": "gelu_erf", "gelu_erf": "gelu_erf"}
NAMES |= dict.fromkeys(
    ["PytorchGELUTanh", "GELUTanh", "NewGELUActivation", "gelu_pytorch_tanh", "gelu_new"]
    + ["gelu_tanh"],
    "gelu_tanh",
)
HOLDERS = ("activation", "act_fn", "act", "activation_fn", "hidden_act")


class FusedMLP(nn.Module):
    """down(act(gate(x)) * up(x)) by the fastest path this GPU has for the shape at hand.

    The three layers are plain nn.Linear, with or without biases, and stay the module's own:
    load, train and move them as ever. x is (..., D), of any strides. Which path is fastest is
    measured on a shape's first calls, then remembered. Without gradients, and where the work
    is small beside its launches, the third call of a shape prepares the next ones: a CUDA
    graph, or decode_mlp's one launch. What the kernels cannot take, torch computes. Where
    training waits for the host, torch.autograd.set_multithreading_enabled(False) may shorten a
    step. See notebook 08.
    """

    def __init__(self, gate_proj, up_proj, down_proj, activation="gelu_tanh"):
        super().__init__()
        activations.check_activation("FusedMLP", activation)
        layers = {"gate_proj": gate_proj, "up_proj": up_proj, "down_proj": down_proj}
        for name, layer in layers.items():
            if type(layer) is not nn.Linear:
                raise TypeError(
                    f"FusedMLP: {name} is a {type(layer).__name__}; it has to be a plain "
                    "nn.Linear, whose weight alone decides what it computes"
                )
        hidden, dim = gate_proj.weight.shape
        if up_proj.weight.shape != (hidden, dim) or down_proj.weight.shape[1] != hidden:
            shapes = ", ".join(f"{n} {tuple(layers[n].weight.shape)}" for n in layers)
            raise ValueError(f"FusedMLP: the weights do not fit together: {shapes}")
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj
        self.activation = activation
        self._forget()

    @classmethod
    def from_module(cls, mlp):
        """A FusedMLP that shares the layers of `mlp`, and was seen to compute the same.

        That is for a few random tokens, to rounding; on the meta device nothing is compared.
        `mlp` has gate_proj, up_proj and down_proj, and an attribute that tells its activation
        (activation, act_fn, ...). ValueError if it does not say, or computes something else.
        """
        layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        if not all(isinstance(layer, nn.Module) for layer in layers):
            raise ValueError(
                f"from_module: {type(mlp).__name__} has no layers gate_proj, up_proj and "
                "down_proj; name them: FusedMLP(gate, up, down, activation=...)"
            )
        fused = cls(*layers, activation=_activation_of(mlp))
        _must_agree(mlp, fused)
        fused.training = mlp.training  # the layers keep their own
        return fused

    def forward(self, x):
        key = self._key(x)
        run = self._ready.get(key) if key else None
        return self._first_calls(x, key) if run is None else run(x)

    def extra_repr(self):
        return f"activation={self.activation}"

    def _forget(self):
        self._ready, self._seen = OrderedDict(), OrderedDict()

    def _apply(self, fn, recurse=True):  # .to(), .half(), ...: what was prepared is void
        self._forget()
        return super()._apply(fn, recurse)

    def __getstate__(self):  # a CUDA graph cannot be copied or pickled
        state = self.__dict__.copy()
        return state | {"_ready": OrderedDict(), "_seen": OrderedDict()}

    def _flops(self, x):
        return 6 * x.numel() * self.gate_proj.weight.shape[0]

    def _layers(self):
        layers = self._modules  # attributes of a module are slow, and this runs at every call
        return layers["gate_proj"], layers["up_proj"], layers["down_proj"]

    def _key(self, x):
        """What a prepared launch is good for; None where none may be prepared.

        That is inference on plain CUDA tensors outside of torch.compile, torch.func, autocast
        and a graph capture, with layers that nobody has hooked.
        """
        # This runs at every call, beside a launch of a few microseconds: no loop, no helper.
        if type(x) is not Tensor or is_compiling() or not x.is_cuda:
            return None
        layers = self._modules
        gate, up, down = layers["gate_proj"], layers["up_proj"], layers["down_proj"]
        if not type(gate) is type(up) is type(down) is nn.Linear:
            return None
        if (
            "forward" in gate.__dict__
            or "forward" in up.__dict__
            or "forward" in down.__dict__
        ):
            return None
        if gate._forward_hooks or up._forward_hooks or down._forward_hooks:
            return None
        if gate._forward_pre_hooks or up._forward_pre_hooks or down._forward_pre_hooks:
            return None
        g, u, d = gate._parameters, up._parameters, down._parameters
        if not len(g) == len(u) == len(d) == 2:  # weight and bias
            return None
        biases = b, c, e = g["bias"], u["bias"], d["bias"]
        g, u, d = g["weight"], u["weight"], d["weight"]
        if is_grad_enabled() and support.wants_grad(x, g, u, d, *biases):
            return None
        if support.watched() or support.forced() or is_autocast_enabled("cuda") or x.is_neg():
            return None
        index = x.get_device()
        # torch.cuda.current_device() without its look at whether CUDA was set up.
        if torch._C._cuda_getDevice() != index or torch.cuda.is_current_stream_capturing():
            return None
        places = None
        if not b is c is e is None:
            places = tuple(
                b is not None and (b.data_ptr(), b.dtype, b.stride()) for b in biases
            )
        return (
            self.activation, x.shape, x.stride(), x.dtype, x.data_ptr() % 16, places,
            g.shape, u.shape, d.shape,
            g.data_ptr(), g.dtype, g.stride(), u.data_ptr(), u.dtype, u.stride(),
            d.data_ptr(), d.dtype, d.stride(), index,
            torch._C._cuda_getCurrentRawStream(index),
        )  # fmt: skip

    def _first_calls(self, x, key):
        """Compute as ever; at a shape's third call, prepare its launch for the next ones."""
        y = self._compute(x)
        small = key and 0 < self._flops(x) <= SMALL_FLOPS
        if small and support.plain(*self.parameters()):
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] == 3:
                self._seen.pop(key, None)
                self._prepare(key, x)
            while len(self._seen) > 4 * SHAPES:
                self._seen.popitem(last=False)
        return y

    def _prepare(self, key, x):
        parameters = self._parameters_in_order()
        ways = {"as ever": self._compute}
        with torch.inference_mode(False), torch.no_grad():
            try:
                whole = all(bias is None or bias.is_contiguous() for bias in parameters[3:])
                if whole and not refuses(support.rows(x), *parameters[:3]):
                    if decode := prepare(x, parameters, self.activation):
                        ways["decode"] = decode
                if not support.refuses(x, *parameters[:3]):
                    ways["graph"] = Graph(self._stages, x)
                    if planned := self._planned(x):
                        ways["planned"] = planned
                calls = {name: functools.partial(run, x) for name, run in ways.items()}
                self._ready[key] = ways[tuning.fastest(calls)]
            except RuntimeError as error:  # no memory for it, or something not to be captured
                told = (str(error).splitlines() or [""])[0]
                shape = tuple(x.shape)
                warnings.warn(f"FusedMLP launches {shape} as ever: {told}", stacklevel=4)
                self._ready[key] = self._compute
        while len(self._ready) > SHAPES:
            self._ready.popitem(last=False)

    def _planned(self, x):
        """_stages without its checks, for a key that holds them; None if there is no plan."""
        gate, up, _ = self._layers()
        given = (gate.weight, up.weight, gate.bias, up.bias)
        self._stages(x)
        plan = plans.find(plan_key(x, *given[:2], self.activation, *given[2:]))

        def run(x):
            gate, up, down = self._layers()
            h = plan(x, gate.weight, up.weight, gate.bias, up.bias)
            return F.linear(h, down.weight, down.bias)

        return run if plan else None

    def _parameters_in_order(self):
        layers = self._layers()
        return [layer.weight for layer in layers] + [layer.bias for layer in layers]

    def _compute(self, x):
        gate, up, down = self._layers()
        if not all(map(_weight_decides, self._layers())):
            return down(activations.apply(gate(x), self.activation) * up(x))
        if x.shape[-1:] != gate.weight.shape[1:]:
            raise ValueError(f"FusedMLP: x is {tuple(x.shape)}, not (..., {gate.in_features})")
        few = x.shape[:-1].numel() <= MAX_TOKENS and self._flops(x) <= SMALL_FLOPS
        parameters = self._parameters_in_order()
        if not few or support.wants_grad(x, *parameters):
            return self._stages(x)
        return decode_mlp(x, *parameters[:3], self.activation, *parameters[3:])

    def _stages(self, x):
        """gate and up with their activation, then down."""
        gate, up, down = self._layers()
        h = gate_up_glu(x, gate.weight, up.weight, self.activation, gate.bias, up.bias)
        return F.linear(h, down.weight, down.bias)


def _weight_decides(layer):
    """True if a layer computes F.linear of its weight and bias, and nobody listens to it."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    heard = layer._forward_hooks or layer._forward_pre_hooks
    return not (heard or layer._backward_hooks or layer._backward_pre_hooks)


class Graph:
    """fn(x) captured in a CUDA graph; a call copies x in, replays, and copies the result out.

    So the caller owns the result, and may give any x of the same shape and dtype, on the
    stream on which it was made. The graphs of a stream share memory for what they need in
    between, and take turns.
    """

    def __init__(self, fn, x):
        self.x, self.graph = torch.empty_like(x).copy_(x), torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(x.device)
        self.shared = _shared(x.device, current)
        with self.shared.lock:
            side = self.shared.side
            side.wait_stream(current)
            with torch.cuda.stream(side):
                fn(self.x)  # whatever happens once happens before the capture
                self.y = self.shared.capture(self.graph, lambda: fn(self.x))
            current.wait_stream(side)

    def __call__(self, x):
        with self.shared.lock:
            self.x.copy_(x)
            self.graph.replay()
            return self.y.clone()


class _Shared:
    """What the graphs of one stream share: a lock, a stream to capture on, a memory pool."""

    def __init__(self, device):
        self.lock, self.side = threading.RLock(), torch.cuda.Stream(device)
        self.pool, self.keeper = None, torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.side):
            # A pool lives as long as a graph in it does.
            self.kept = self.capture(self.keeper, lambda: torch.zeros(1, device=device))
        self.pool = self.keeper.pool()

    def capture(self, graph, fn):
        """Capture fn() and return what it returns."""
        # cuBLAS has a workspace a stream, which others may free: let it be the pool's.
        torch._C._cuda_clearCublasWorkspaces()
        graph.capture_begin(self.pool, capture_error_mode="thread_local")
        try:
            return fn()
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()


@functools.cache
def _shared_by(device, stream):
    return _Shared(device)


def _shared(device, stream):
    with _making:
        return _shared_by(device, stream.cuda_stream)


_making = threading.Lock()


def _activation_of(mlp):
    """The name of an MLP's activation, from the attribute that holds it."""
    for holder in HOLDERS:
        told = getattr(mlp, holder, None)
        if told is None:
            continue
        if isinstance(told, nn.GELU):
            return "gelu_tanh" if told.approximate == "tanh" else "gelu_erf"
        if isinstance(told, functools.partial) and told.func is F.gelu:
            return "gelu_tanh" if told.keywords.get("approximate") == "tanh" else "gelu_erf"
        found = MODULES.get(type(told)) or NAMES.get(type(told).__name__)
        if found is None and isinstance(told, str):
            found = NAMES.get(told)
        if found is None and callable(told) and not isinstance(told, nn.Module):
            found = FUNCTIONS.get(told)
        if found:
            return found
        known = ", ".join(activations.ACTIVATIONS)
        raise ValueError(f"from_module: {holder} is {told!r}, none of {known}")
    raise ValueError(
        f"from_module: {type(mlp).__name__} does not say which activation it has (looked for "
        f"{', '.join(HOLDERS)}); name it: FusedMLP(gate, up, down, activation=...)"
    )


def _must_agree(mlp, fused):
    """ValueError unless both modules compute the same for random tokens."""
    kind, weight = type(mlp).__name__, fused.gate_proj.weight
    for name, part in mlp.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise ValueError(
                f"from_module: {kind} has a dropout, {name}, and FusedMLP has none: set its p "
                "to 0 if you can do without"
            )
    if weight.is_meta:
        return
    modes = {part: part.training for part in mlp.modules()}
    try:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            # Wide enough for tanh and erf GELU to differ.
            x = 3 * torch.randn(8, weight.shape[1], generator=generator).to(weight)
            theirs = mlp.eval()(x)
            g, u = fused.gate_proj, fused.up_proj
            h = stage_reference(x, g.weight, u.weight, fused.activation, g.bias, u.bias)
            ours = fused.down_proj(h)
    finally:
        for part, training in modes.items():
            part.training = training
    if not isinstance(theirs, torch.Tensor) or theirs.shape != ours.shape:
        raise ValueError(f"from_module: {kind} does not return one tensor like its input")
    norm = ours.double().norm()
    if not 0 < norm < math.inf:
        raise ValueError(
            f"from_module: with these weights {kind}'s result for random tokens is "
            f"{'zero' if norm == 0 else 'not finite'}, which proves nothing: take it before "
            "they are set so, or name the parts: FusedMLP(gate, up, down, activation=...)"
        )
    error = (theirs.double() - ours.double()).norm() / norm
    if not error <= SAME.get(weight.dtype, 1e-4):
        raise ValueError(
            f"from_module: {kind} computes something else than "
            f"down({fused.activation}(gate(x)) * up(x)): they differ by {error:.2g}"
        )
