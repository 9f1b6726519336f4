"""The things that have a price, and the usual limits of a plan."""

from __future__ import annotations

HOST_HOUR = "host-hour"
PRICES = {
    HOST_HOUR: "of a host for an hour",
    "ssd-tb": "of 10^12 bytes of a host's SSD that samples are kept on",
    "pfs-gbs": "of 10^9 bytes/s of a file system that samples are read from",
    "pfs-files": "of a file that it opens in a second",
}
"""What has a price, and what for. The currency is the user's; what is no host-hour is
paid once for the training.
"""
IO_SHARE = 0.05
"""Share of an epoch that I/O may take of the smallest file system, where nothing says
another.
"""
JOINT_PRECISION = 1.03
"""The smallest open rate and bandwidth at once are known to 3 % without ``--exact``: a
run near them simulates every iteration of an epoch.
"""
