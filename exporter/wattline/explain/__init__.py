"""``wattline explain``: what a recording shows, as a timeline of states and as a picture.

``timeline`` sums up the verdicts, ``text`` prints them, ``picture`` draws them.
"""
