"""A launcher as its ranks see torchrun's agent: their parent, named in their environment.

Run as a script: what follows is the command of the one rank, whose exit status it takes over.
"""

from __future__ import annotations

import os
import subprocess
import sys

if __name__ == "__main__":
    environment = os.environ | {"TORCHELASTIC_RUN_ID": "a-run"}
    sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
