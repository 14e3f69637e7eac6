"""The rank's helper process, with times that a test can wait for; started in place of it."""

from __future__ import annotations

import sys

from flyball_client.helper import process

process._MAX_CALL_S = 0.5
process._TICK_S = 0.05
process.ALIVE_S = 0.1

if __name__ == "__main__":
    sys.exit(process.main())
