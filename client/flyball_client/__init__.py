"""What runs inside a training rank: the hooks, the clocks, and the calls to the planner.

Needs httpx and nvidia-ml-py; imports neither torch nor numpy nor pydantic.
"""
