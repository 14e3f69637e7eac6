"""One line about each command of Flyball: `flyball --help` imports no command itself."""

from __future__ import annotations

SUMMARIES = {
    "clocks": "list the SM clocks that each GPU supports",
    "doctor": "check what setting clocks needs on this machine",
    "guard": "restore the clocks of ranks that ended with their governors, as containers do",
    "unlock": "restore SM clocks that stayed locked",
    "report": "measured time, energy and savings of a job against the highest clocks",
    "top": "follow jobs and their measurements on a terminal",
    "jobs": "list, show, change and delete the planner's jobs",
    "profile": "measure a stage profile on a GPU, or follow online profiling; join parts",
    "serve": "run the planner, which sends plans to ranks",
    "token": "make, list and revoke access tokens of the planner",
    "plan": "one frequency plan from a stage profile, offline",
    "simulate": "time, energy, bubbles and critical path of a plan",
    "convert": "plans, orders and profiles in the file formats of other tools",
    "export": "a plan's predicted timeline for a trace viewer, or a job's measured runs",
    "frontier": "the whole time-energy frontier of a pipeline, offline",
    "replay": "predict recorded runs, and compare with what was measured",
    "demo": "planner, emulated GPUs and a real training run on this machine",
    "evaluate": "EnvPipe's evaluation on emulated GPUs, with Flyball's plans added",
}
