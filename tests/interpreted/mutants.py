"""Bugs that such kernels have, as changes of the source: {kernel: {bug: [(old, new)]}}.

Every place where `old` stands makes a mutant of its own.
"""

import importlib.util
from pathlib import Path

import helpers.kernels

FOLDER = Path(helpers.kernels.__file__).parent
SWAPPED = [("activate(g, ACTIVATION) * u", "activate(u, ACTIVATION) * g")]
K_TILE = [("for k in range(0, K, BK):", "for k in range(0, K - BK, BK):")]
K_MASK = [
    ("(at[None, :] < K)", "(at[None, :] >= 0)"),
    ("(at[:, None] < K)", "(at[:, None] >= 0)"),
]
STORE_MASK = "mask = (rows[:, None] < M) & (cols[None, :] < N)"
M_MASK = [(STORE_MASK, STORE_MASK.replace("rows[:, None] < M", "rows[:, None] >= 0"))]
N_MASK = [(STORE_MASK, STORE_MASK.replace("cols[None, :] < N", "cols[None, :] >= 0"))]
TMA_EDGE = [("TensorDescriptor(t, [m, n],", "TensorDescriptor(t, [m + BM, n],")]
WIDENED = (
    "(row * BM + tl.arange(0, BM)).to(tl.int64)",
    "(col * BN + tl.arange(0, BN)).to(tl.int64)",
    "tl.arange(0, BK).to(tl.int64)",
)
INT32 = [(each, each.removesuffix(".to(tl.int64)")) for each in WIDENED]
X_STRIDES = [
    ("rows[:, None] * x_row", "rows[:, None] * K"),
    ("at[None, :] * x_col", "at[None, :]"),
    ("[x.stride(0), 1]", "[k, 1]"),
]

MUTANTS = {
    "act_mul": {
        "gate and up swapped": [
            *SWAPPED,
            ('{"dg": dg, "du": du}', '{"dg": du, "du": dg}'),
        ],
        "erf for tanh": [
            ("activate(g, ACTIVATION)", 'activate(g, "gelu_erf")'),
            ("slope(g, ACTIVATION)", 'slope(g, "gelu_erf")'),
        ],
        "last tile dropped": [
            ('"blocks": triton.cdiv(cols, block)', '"blocks": max(1, cols // block)')
        ],
        "mask dropped": [("mask = col < cols", "mask = col >= 0")],
        "int32 offset": [
            ("(tl.program_id(0) // blocks).to(tl.int64)", "tl.program_id(0) // blocks"),
            ("(tl.program_id(0) % blocks).to(tl.int64)", "tl.program_id(0) % blocks"),
        ],
        "strides ignored": [
            ("row * g_row + col * g_col", "row * cols + col * g_col"),
            ("row * g_row + col * g_col", "row * g_row + col"),
            ("row * u_row + col * u_col", "row * cols + col"),
            ("row * grad_row + col * grad_col", "row * cols + col"),
        ],
    },
    "linear_gelu": {
        "erf for tanh": [("activate(z, ACTIVATION)", 'activate(z, "gelu_erf")')],
        "last K tile dropped": K_TILE,
        "K unmasked": K_MASK,
        "M-mask dropped": M_MASK + TMA_EDGE,
        "N-mask dropped": N_MASK,
        "int32 offset": INT32,
        "strides ignored": [
            *X_STRIDES,
            ("cols[None, :] * w_row", "cols[None, :] * K"),
            ("at[:, None] * w_col", "at[:, None]"),
            ("[weight.stride(0), 1]", "[k, 1]"),
        ],
        "bias forgotten": [("z += tl.load(b_ptr", "z += 0 * tl.load(b_ptr")],
        "result kept for the gradient": [("z.to(y_", "activate(z, ACTIVATION).to(y_")],
    },
    "tiny_mlp": {
        "erf for tanh": [("h = activate(y, ACTIVATION)", 'h = activate(y, "gelu_erf")')],
        "last tile dropped": [
            ("(ins[None, :] < DIMS[0])", "(ins[None, :] < DIMS[0] - 16)"),
            ("(ins[:, None] < DIMS[AT])", "(ins[:, None] < DIMS[AT] - 16)"),
            ("tl.cdiv(M, BM), tl.num", "M // BM, tl.num"),
        ],
        "M-mask dropped": [("(rows[:, None] < M) & (outs", "(rows[:, None] >= 0) & (outs")],
        "int32 offset": [
            ("tl.arange(0, BM)).to(tl.int64)", "tl.arange(0, BM))"),
            ("ins.to(tl.int64)[None, :] * x_col", "ins[None, :] * x_col"),
        ],
        "infinity times padding": [("h = tl.where(", "tl.where(")],
        "strides ignored": [
            ("rows[:, None] * x_row + ins", "rows[:, None] * DIMS[0] + ins"),
            ("ins.to(tl.int64)[None, :] * x_col", "ins[None, :]"),
            ("weights[i].contiguous() if given", "weights[i] if given"),
            ("else bias.contiguous()", "else bias"),
        ],
        "bias forgotten": [(" + b0[None, :]", ""), (" + b[None, :]", "")],
        "layers swapped": [
            ("_layer(w1_ptr, b1_ptr, DIMS", "_layer(w2_ptr, b1_ptr, DIMS"),
        ],
    },
    "gate_up_glu": {
        "gate and up swapped": [
            *SWAPPED,
            ("swap, first = away < 0,", "swap, first = away > 0,"),
            ("(g_ptr + out, g.to(dtype)", "(g_ptr + out, u.to(dtype)"),
        ],
        "erf for tanh": [("activate(g, ACTIVATION)", 'activate(g, "gelu_erf")')],
        "last K tile dropped": K_TILE,
        "K unmasked": K_MASK,
        "M-mask dropped": M_MASK + TMA_EDGE,
        "N-mask dropped": N_MASK,
        "int32 offset": INT32,
        "strides ignored": [
            *X_STRIDES,
            ("cols[None, :] * wg_row", "cols[None, :] * K"),
            ("at[:, None] * wg_col", "at[:, None]"),
            ("cols[None, :] * wu_row", "cols[None, :] * K"),
            ("at[:, None] * wu_col", "at[:, None]"),
            ("// size, row, 1]", "// size, k, 1]"),
        ],
        "bias forgotten": [
            ("g += tl.load(bg_ptr", "g += 0 * tl.load(bg_ptr"),
            ("u += tl.load(bu_ptr", "u += 0 * tl.load(bu_ptr"),
        ],
    },
    "decode_mlp": {
        "gate and up swapped": SWAPPED,
        "erf for tanh": [("activate(g, ACTIVATION)", 'activate(g, "gelu_erf")')],
        "last K tile dropped": [
            ("for k in range(0, D, BK1):", "for k in range(0, D - BK1, BK1):"),
            ("min(part * share + share, H), BK2)", "min(part * share + share, H) - BK2, BK2)"),
        ],
        "K unmasked": [
            ("left = k + ks < D", "left = ks < D"),
            ("left = k + ks < H", "left = ks < H"),
        ],
        "M-mask dropped": [
            ("mask = (rows[:, None] < M) & (cols", "mask = (rows[:, None] >= 0) & (cols")
        ],
        "int32 offset": [
            ("wide = cols.to(tl.int64)", "wide = cols"),
            ("rows.to(tl.int64)[:, None] * x_row", "rows[:, None] * x_row"),
        ],
        "strides ignored": [
            ("rows.to(tl.int64)[:, None] * x_row", "rows[:, None] * D"),
            ("wide[:, None] * wg_row", "wide[:, None] * D"),
            ("wide[:, None] * wu_row", "wide[:, None] * D"),
            ("wide[:, None] * wd_row", "wide[:, None] * H"),
        ],
        "a part forgotten": [("for part in range(SPLIT):", "for part in range(SPLIT - 1):")],
    },
}  # fmt: skip


def places(kernel):
    """All mutants of a kernel: (kernel, bug, old, new, which of the places)."""
    text = source(kernel)
    for bug, changes in MUTANTS[kernel].items():
        for old, new in changes:
            # one at least: `mutant` says what is wrong if the source has none any more
            for number in range(max(1, text.count(old))):
                yield kernel, bug, old, new, number


def source(kernel):
    return (FOLDER / f"{kernel}.py").read_text("utf-8")


def mutant(kernel, old, new, number, folder, count=[0]):  # noqa: B006
    """The kernel's module with one place changed, in a file: Triton reads a kernel's source.

    ValueError if `old` is not there any more: then the mutant has to be written anew.
    """
    text = source(kernel)
    if text.count(old) <= number:
        raise ValueError(f"{kernel}.py has no {old!r} any more: write this mutant anew")
    parts = text.split(old)
    text = old.join(parts[: number + 1]) + new + old.join(parts[number + 1 :])
    count[0] += 1
    name = f"{kernel}__{count[0]}"
    if '"wttg::' not in text:
        raise ValueError(
            f"{kernel}.py: its operators have another name: a mutant needs its own"
        )
    path = Path(folder, f"{name}.py")
    path.write_text(text.replace('"wttg::', f'"{name}::'), "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
