"""What nvidia-smi says about torch's current device: clocks, driver, who else is on it."""

import os
import subprocess

# Bits of nvidia-smi's clocks_event_reasons.active (NVML, nvmlClocksEventReasons).
_REASONS = {0x1: "idle", 0x2: "clocks set by the owner", 0x4: "power cap", 0x8: "slowdown"}
_REASONS |= {0x10: "sync boost", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


def _targets():
    """Ways to name torch's current device to nvidia-smi, surest first; [] means every GPU."""
    import torch

    if not torch.cuda.is_available():
        return [[]]
    index = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(index)
    names = []
    if hasattr(found, "pci_bus_id"):  # first, because it also holds inside a MIG slice
        place = (found.pci_domain_id, found.pci_bus_id, found.pci_device_id)
        names.append("{:08x}:{:02x}:{:02x}.0".format(*place))
    if hasattr(found, "uuid"):
        names.append(f"GPU-{found.uuid}")
    # Last, because CUDA may number the GPUs in another order than nvidia-smi does.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",")
    names.append(visible[index] if index < len(visible) and visible[index] else str(index))
    return [["-i", name] for name in names]


def _nvidia_smi(query, *fields):
    """Rows of stripped cells; None when nvidia-smi is absent, hangs or refuses."""
    for target in _targets():
        asked = [f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                ["nvidia-smi", *target, *asked], capture_output=True, text=True, timeout=5
            )
        except (OSError, subprocess.TimeoutExpired):
            return None  # an answer here: containers and Jetsons have no nvidia-smi
        if done.returncode == 0:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            return [[cell.strip() for cell in line.split(",")] for line in lines]
    return None


def _number(cell):
    try:
        value = float(cell)
    except ValueError:  # "[N/A]", "[Not Supported]", "[Unknown Error]"
        return None
    return int(value) if value.is_integer() else value


def clocks():
    """dict(sm_mhz, memory_mhz, power_w, temperature_c, throttle): now, what is readable."""
    rows = _nvidia_smi("gpu", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    if not rows:
        return {}
    keys = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
    state = {key: _number(cell) for key, cell in zip(keys, rows[0], strict=False)}
    state = {key: value for key, value in state.items() if value is not None}
    # Drivers before 535 know the second name only.
    reasons = _nvidia_smi("gpu", "clocks_event_reasons.active")
    reasons = reasons or _nvidia_smi("gpu", "clocks_throttle_reasons.active")
    if reasons and reasons[0][0].lower().startswith("0x"):
        bits = int(reasons[0][0], 16)
        state["throttle"] = ", ".join(t for bit, t in _REASONS.items() if bits & bit) or "none"
    return state


def other_processes():
    """How many other compute processes nvidia-smi sees on the GPU; None when unreadable."""
    import torch

    here = torch.cuda.is_available()
    if here:
        torch.zeros(1, device="cuda")  # so that this process itself must be on the list
    rows = _nvidia_smi("compute-apps", "pid")
    if rows is None:
        return None
    pids = {row[0] for row in rows if row[0].isdigit()}
    if not here:
        return len(pids)
    # One of them is this process, in a container perhaps under another number. An empty list
    # hides even this process, so it says nothing of others.
    return len(pids) - 1 if pids else None


def driver():
    """Version of the NVIDIA driver ("580.159.04"), None when unreadable."""
    rows = _nvidia_smi("gpu", "driver_version")
    return rows[0][0] if rows and rows[0][0][:1].isdigit() else None


def names():
    """Names of the GPUs the driver shows (all when torch has none); [] when unreadable."""
    return [row[0] for row in _nvidia_smi("gpu", "name") or [] if not row[0].startswith("[")]
