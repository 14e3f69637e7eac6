"""`flyball demo`: planner, emulated GPUs and a real training run on this machine."""
