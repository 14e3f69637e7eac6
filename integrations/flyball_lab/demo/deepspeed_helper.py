"""DeepSpeed on a CPU without the C++ helper that it compiles at its first start.

The helper serves `inference_all_reduce` alone, which no training calls. DeepSpeed goes without
it where its own table of operations says that it cannot be built here.
"""

from __future__ import annotations

import deepspeed

_NAME = "deepspeed_shm_comm"


def leave_out_deepspeed_helper() -> None:
    """Called before `deepspeed.init_distributed`, which would compile for half a minute."""
    deepspeed.ops.__compatible_ops__[_NAME] = False
