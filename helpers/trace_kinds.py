"""Which event of a trace is of which kind, and where its columns stand, by torch version."""

import numpy as np

KINDS = ("op", "call", "kernel", "memcpy", "memset", "label", "gpu_label", "sync", "overhead",
         "python", "other")  # fmt: skip
CODE = {kind: code for code, kind in enumerate(KINDS)}

# Categories by torch version and vendor, in small letters. The last two are process names:
# EventList.export_chrome_trace writes no categories.
_KIND_OF = {
    "cpu_op": "op", "operator": "op", "hpu_op": "op", "kernel": "kernel",
    "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
    "runtime": "call", "driver": "call", "user_annotation": "label",
    "gpu_user_annotation": "gpu_label", "sync": "sync", "overhead": "overhead",
    "python_function": "python", "cpu functions": "op", "cuda functions": "kernel",
}  # fmt: skip
COMMON = {"kind": np.uint8, "name": np.int32, "start_us": float, "dur_us": float,
          "pid": np.int32, "tid": np.int32}  # fmt: skip
NONE = {"correlation": 0, "external": 0, "bytes": np.nan}  # else -1
LONG = {"correlation", "external", "stream"}  # may need 64 bits

# Where the arguments of an event hold a column (in the spellings of torch versions), by kind.
_EXTERNAL = {"external": ("External id", "external id")}
_CORRELATION = {"correlation": ("correlation",)}
_PLACE = {"device": ("device",), "stream": ("stream",)}
_OP = {"sequence": ("Sequence number",), "shapes": ("Input Dims", "Input dims"),
       "types": ("Input type", "Input types"), "inputs": (), **_EXTERNAL}  # fmt: skip
_WORK = {**_PLACE, **_CORRELATION, **_EXTERNAL}
ARGS = (
    ([CODE["op"]], _OP),
    ([CODE["call"]], _CORRELATION),
    ([CODE["kernel"]], {"grid": ("grid",), "block": ("block",), **_WORK}),
    ([CODE["memcpy"], CODE["memset"]], {"bytes": ("bytes",), **_WORK}),
    ([CODE["gpu_label"], CODE["sync"]], {**_PLACE, **_CORRELATION}),
)


def one_of(kinds, codes):
    """Return True where an array of kinds holds one of the codes."""
    table = np.zeros(256, bool)
    table[codes] = True
    return table[kinds]


class Kinds(dict):
    """Codes of categories: kinds[category]."""

    def __missing__(self, category):
        word = str(category).lower()
        if word.endswith(("_runtime", "_driver", "_sync")):  # cuda_, xpu_, privateuse1_ ...
            word = word.rsplit("_", 1)[1]
        kind = _KIND_OF.get(word, "other")
        self[category] = code = CODE[kind]
        return code
