"""Codes into texts as columns of a table."""

import numpy as np
import pandas as pd


def category(codes, texts):
    """Return codes into texts as a Categorical of the texts that occur; -1 is missing."""
    new = np.full(len(texts) + 1, -1, np.int16 if len(texts) < 1 << 15 else np.int32)
    names = {}
    for code in used(codes, texts):
        # half a surrogate pair, from a damaged file, can be neither printed nor hashed
        text = texts[code].encode(errors="replace").decode()
        new[code] = names.setdefault(text, len(names))
    return pd.Categorical.from_codes(new[codes], pd.Index(list(names), dtype=object))


def by_name(sound, rows, function, values):
    """Return function(name) of each row's name, one of values, as a Categorical of them."""
    codes, names = sound.events.name[rows], sound.events.names
    new = np.zeros(len(names) + 1, np.int8)
    for code in used(codes, names):
        new[code] = values.index(function(names[code]))
    return pd.Categorical.from_codes(new[codes], values)


def used(codes, texts):
    """Return the codes into texts that occur, in order; -1 is none."""
    there = np.zeros(len(texts) + 1, bool)
    there[codes] = True  # -1 sets the last one
    return np.flatnonzero(there[:-1]).tolist()
