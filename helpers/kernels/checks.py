"""What the public functions refuse, with the name of what is wrong."""

import torch


def check_tensors(where, required, optional=None):
    """TypeError for what is no floating-point tensor, ValueError for several devices.

    Both are dicts of names and tensors; those in `optional` may be None.
    """
    device = None
    for name, value in (required | (optional or {})).items():
        if value is None and name not in required:
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{where}: {name} is a {type(value).__name__}, not a tensor")
        if not value.is_floating_point():
            raise TypeError(f"{where}: {name} is {value.dtype}; it has to be floating point")
        if device is not None and value.device != device:
            raise ValueError(f"{where}: {name} is on {value.device}, another one on {device}")
        device = value.device


def check_weight(where, name, weight, inputs, outputs=None):
    """ValueError unless `weight` is (outputs, inputs), nn.Linear's layout."""
    fits = weight.ndim == 2 and weight.shape[1] == inputs
    if not fits or (outputs is not None and weight.shape[0] != outputs):
        wanted = f"({'outputs' if outputs is None else outputs}, {inputs})"
        raise ValueError(
            f"{where}: {name} is {tuple(weight.shape)}; nn.Linear's layout makes it {wanted}"
        )


def check_bias(where, name, bias, outputs):
    """ValueError unless `bias` is None or (outputs,)."""
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"{where}: {name} is {tuple(bias.shape)}, not ({outputs},)")
