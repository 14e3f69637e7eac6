"""The rank's helper process, with times that a test can wait for; started in place of it.

MAX_CALL_S in the environment is the time limit of a call; without it, that is the helper's own.
"""

from __future__ import annotations

import os
import sys

from flyball_client.helper import process

if limit_s := os.environ.get("MAX_CALL_S"):
    process._MAX_CALL_S = float(limit_s)
process._TICK_S = 0.05
process.ALIVE_S = 0.1

if __name__ == "__main__":
    sys.exit(process.main())
