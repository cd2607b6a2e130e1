"""What to do about it: remedies in PyTorch's terms, chosen by the evidence, with bounds."""

import numpy as np

from helpers.diagnose_rules import WORTH
from helpers.findings import CAUSES
from helpers.remedies_idle import idle_offers
from helpers.remedies_work import work_offers

MOST = 4


def remedies(found):
    """Return [{"action", "at_most"}] for Findings, the largest bound first.

    at_most is None where no bound is known, or nothing would be left. But those
    for the cause or the regime that was judged come before all others, and those for idle
    before those for work if the regime is overhead.
    """
    if found.doubt:
        return []
    listed = []
    for offer in (*idle_offers(found), *work_offers(found)):
        if offer.saved is None or offer.gain >= WORTH:
            own = offer.aim == (found.cause or found.regime)
            idle = bool(found.cause) and offer.aim in CAUSES
            listed.append(((not own, not idle, -offer.gain), offer))
    listed.sort(key=lambda each: each[0])
    return [
        {"action": each.action, "at_most": each.gain if 0 < each.gain < np.inf else None}
        for _, each in listed[:MOST]
    ]
