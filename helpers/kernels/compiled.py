"""One Triton kernel, compiled for a GPU that is not here: what it would need there.

Registers, spills, shared memory and the tensor-core instruction come from Triton's compiler
and its own ptxas: neither GPU nor driver is needed. Used in notebook 07.
"""

import contextlib
import io
import re
from dataclasses import dataclass, field

GPUS = {  # capability: an example, and the bytes of shared memory that a block may have
    75: ("T4", 64 * 1024),
    80: ("A100", 163 * 1024),
    86: ("RTX 3090", 99 * 1024),
    89: ("L4", 99 * 1024),
    90: ("H100", 227 * 1024),
    100: ("B200", 227 * 1024),
    120: ("RTX 5090", 99 * 1024),
}
# The first that occurs in the PTX; a kernel of none of them multiplies with plain FMA.
TENSOR_CORE = {
    "tcgen05": r"\btcgen05\.mma\b",
    "wgmma": r"\bwgmma\.mma_async\b",
    "mma.sync": r"\bmma\.sync\b",
}


@dataclass(frozen=True)
class Compiled:
    """What a kernel needs of a multiprocessor of capability `arch`; registers are a thread's.

    tensor_core: "tcgen05", "wgmma", "mma.sync" or "none". spill_bytes: stores and loads of
    what did not fit into a thread's registers. tensor_columns: of Blackwell's tensor memory,
    which has 512.
    """

    arch: int
    gpu: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    shared_limit: int
    tensor_columns: int
    tensor_core: str
    num_warps: int
    num_stages: int
    ptx: str = field(repr=False)

    @property
    def fits(self):
        """True if a block can run there: enough shared memory and tensor memory."""
        return self.shared_bytes <= self.shared_limit and self.tensor_columns <= 512

    @property
    def problem(self):
        """What is in the way of running it well, as a short text; "" if nothing is."""
        told = []
        if self.shared_bytes > self.shared_limit:
            needs, has = self.shared_bytes / 1024, self.shared_limit / 1024
            told.append(f"needs {needs:.0f} KB of shared memory, has {has:.0f}")
        if self.tensor_columns > 512:
            told.append(f"needs {self.tensor_columns} columns of tensor memory, has 512")
        if self.spill_bytes:
            told.append(f"spills {self.spill_bytes} bytes")
        return "; ".join(told)


def compile_for(
    fn, arch, signature, constexprs=None, num_warps=4, num_stages=3, divisible=(), **options
) -> Compiled:
    """Compile the kernel `fn` for capability `arch` (75, 80, 90, ...) and weigh the result.

    signature: {"x_ptr": "*fp16", "n": "i32", "x_desc": "tensordesc<bf16[128, 64]>"};
    constexprs: the values of the tl.constexpr arguments, and of those that are always 1.
    `divisible` names the arguments (pointers too) that are multiples of 16, as Triton finds
    out at a launch. `options` go to the compiler (maxnreg). ValueError for an unknown arch or
    arguments that do not fit, RuntimeError without Triton, under the interpreter, or where the
    compiler fails.
    """
    known_arch(arch)
    fn = jit_function(fn)
    constexprs = dict(constexprs or {})
    lacking = [name for name in fn.arg_names if name not in {**signature, **constexprs}]
    strange = [n for n in [*signature, *constexprs, *divisible] if n not in fn.arg_names]
    if lacking or strange:
        told = f"nothing says what {', '.join(lacking)} is" if lacking else ""
        told += f"{'; ' if told and strange else ''}"
        told += f"it has no argument {', '.join(strange)}" if strange else ""
        raise ValueError(f"{fn.__name__}: {told}")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {n: "constexpr" if n in constexprs else signature[n] for n in fn.arg_names}
    hints = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = ASTSource(fn=fn, signature=types, constexprs=constexprs, attrs=hints)
    options |= {"num_warps": num_warps, "num_stages": num_stages}
    kernel, log = _compile(source, GPUTarget("cuda", arch, 32), options)
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if not registers or not spills:
        raise RuntimeError(f"{fn.__name__}: no registers in what ptxas said: {_brief(log)}")
    ptx = kernel.asm["ptx"]
    found = [name for name, code in TENSOR_CORE.items() if re.search(code, ptx)]
    gpu, limit = GPUS[arch]
    return Compiled(
        arch=arch,
        gpu=gpu,
        registers=max(map(int, registers)),
        spill_bytes=sum(map(int, spills)),
        shared_bytes=kernel.metadata.shared,
        shared_limit=limit,
        tensor_columns=getattr(kernel.metadata, "tmem_size", 0) or 0,
        tensor_core=found[0] if found else "none",
        num_warps=num_warps,
        num_stages=num_stages,
        ptx=ptx,
    )


def known_arch(arch) -> int:
    """Return 90 for 90, "90" or "sm_90"; ValueError for an architecture not in GPUS."""
    text = str(arch).strip().lower().removeprefix("sm_").removeprefix("sm").rstrip("a")
    if not text.isdigit() or int(text) not in GPUS:
        listed = ", ".join(f"{number} ({gpu})" for number, (gpu, _) in GPUS.items())
        raise ValueError(f"unknown architecture {arch!r}; known: {listed}")
    return int(text)


def jit_function(fn):
    """Unwrap autotuners and heuristics; RuntimeError if what is inside cannot be compiled."""
    try:
        from triton.runtime import JITFunction
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        raise RuntimeError("Triton is not installed: `pip install triton` (Linux)") from error
    while not isinstance(fn, JITFunction | InterpretedFunction) and hasattr(fn, "fn"):
        fn = fn.fn
    if isinstance(fn, InterpretedFunction):
        raise RuntimeError(
            "TRITON_INTERPRET was set when this kernel was imported: it is interpreted, and "
            "there is nothing to compile. Unset it and start a new process"
        )
    if not isinstance(fn, JITFunction):
        raise ValueError(f"{getattr(fn, '__name__', fn)!r} is no Triton kernel")
    return fn


def _compile(source, target, options):
    """Return the compiled kernel and ptxas's own words; RuntimeError if the compiler fails."""
    import triton
    from triton import knobs

    said = io.StringIO()
    # What ptxas says is printed when it runs, not when a kernel comes from the cache.
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        try:
            kernel = triton.compile(source, target=target, options=options)
        except Exception as error:  # MLIR's passes raise RuntimeError, ptxas its own
            told = _brief(str(error)) or type(error).__name__
            raise RuntimeError(f"no code for sm_{target.arch}: {told}") from error
    return kernel, said.getvalue()


def _brief(text):
    """The line of an error message that tells most: ptxas's fatal one, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if re.search(r"\b(fatal|error)\b", line, re.I)]
    return (fatal or lines or [""])[-1][:200]
