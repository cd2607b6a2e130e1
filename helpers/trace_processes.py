"""Several processes in one trace: their correlation ids repeat, so whose call was it?"""

import numpy as np


def choose(rows, nearest, starts, device, at):
    """Return the row of the call that started each GPU event, or -1.

    rows: by process and event, that process's call of the event's id, -1 for none; nearest:
    the last call of any process before the event; starts: of the calls, us; device and at
    (start, us): of the events.
    """
    number = np.unique(device, return_inverse=True)[1]
    home = homes(rows, starts, number, at)[number]
    return np.where(home >= 0, rows[home, np.arange(len(at))], nearest)


def homes(rows, starts, device, at):
    """Return the process that works on each device (0, 1, ...), -1 where several do.

    A device is the process's whose ids its events carry, 19 of 20 of those that one process
    alone has: the rest met another's id by chance. If all processes have all ids, as ranks in
    step may, each device goes to another one, to that whose calls precede its events.
    """
    only = (rows >= 0).sum(axis=0) == 1
    votes = np.zeros((device.max() + 1, len(rows)), np.int64)
    np.add.at(votes, (device[only], (rows >= 0).argmax(axis=0)[only]), 1)
    total = votes.sum(axis=1)
    found = np.where(votes.max(axis=1) > 0.95 * total, votes.argmax(axis=1), -1)
    if len(found) < len(rows):  # two processes share a device: the time must tell
        return found
    for number in np.flatnonzero(total == 0):
        mine = rows[:, device == number]
        fits = ((mine >= 0) & (starts[mine] <= at[device == number])).mean(axis=1)
        taken = np.isin(np.arange(len(rows)), found)
        found[number] = np.lexsort((-fits, taken))[0]
    return found


def in_turn(found, calls, gpu, ours, theirs):
    """Pair the calls and events of an id in order of time where they did not find one another.

    found: row of calls for each event; ours, theirs: the id's code of each call and event. It
    takes as many events as calls that start one event each, and no graph of the same id.
    """
    size = max(ours.max(), theirs.max(initial=0)) + 1
    single = calls["single"]
    count = np.bincount(ours[single], minlength=size)
    wrong = (count > 1) & (count == np.bincount(theirs, minlength=size))
    wrong[theirs[gpu["correlation"] == 0]] = False
    wrong[ours[calls["graph"]]] = False
    met = np.unique(found[found >= 0])
    wrong &= np.bincount(ours[met[single[met]]], minlength=size) < count
    rows, events = np.flatnonzero(wrong[ours] & single), np.flatnonzero(wrong[theirs])
    rows = rows[np.lexsort((calls["start"][rows], ours[rows]))]
    events = events[np.lexsort((gpu["start"][events], theirs[events]))]
    found[events] = rows
    return found
