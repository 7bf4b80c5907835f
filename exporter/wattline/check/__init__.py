"""``wattline check``: thirty seconds to an answer.

``report`` makes the answer of what was judged while watching, ``advice`` knows what to look at next, ``headroom`` what
the unused power may be worth, ``render`` shows the answer to people, ``command`` watches.
"""
