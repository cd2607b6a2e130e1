"""When was a GPU event launched whose call the file does not hold?"""

import numpy as np
import pandas as pd

LAUNCHED = ("recorded", "unrecorded", "before", "unknown")


def launched(gpu, calls, host_us):
    """Return the code in LAUNCHED of each GPU event.

    "recorded": its call is in the file. "unrecorded": it is not, yet the profiler was running,
    for a stream works in the order of its launches and ids only grow: the event runs behind a
    recorded one of its stream, or its id is not below that of the first call. "before": it
    starts before the host's first event (`host_us`), or its id is below that of the first call
    in a file that lacks no other call. Nothing decides: "unknown".

    gpu: dict of arrays call, correlation, device, stream, start; calls: their table.
    """
    loose, start, ids = gpu["call"] < 0, gpu["start"], gpu["correlation"]
    if not loose.any():
        return np.full(len(ids), LAUNCHED.index("recorded"), np.int8)
    places = pd.DataFrame({"device": gpu["device"], "stream": gpu["stream"]}, copy=False)
    lane = places.groupby(["device", "stream"], sort=False).ngroup().to_numpy()
    first = np.full(lane.max(initial=-1) + 1, np.inf)
    np.minimum.at(first, lane[~loose], start[~loose])
    during = loose & (start > first[lane])
    low = np.zeros(len(ids), bool)
    known = calls.loc[calls["correlation"] > 0, "correlation"]
    if len(known) and calls["pid"].nunique() == 1:  # the ids of processes cannot be compared
        during |= loose & (ids >= known.min())
        low = (ids > 0) & (ids < known.min()) & ~(during & (ids > 0)).any()
    before = loose & ~during & ((start < host_us) | low)
    codes = np.where(loose, LAUNCHED.index("unknown"), LAUNCHED.index("recorded"))
    codes[during], codes[before] = LAUNCHED.index("unrecorded"), LAUNCHED.index("before")
    return codes
