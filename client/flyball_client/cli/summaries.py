"""One line about each command of Flyball: `flyball --help` imports no command itself."""

from __future__ import annotations

GROUPS = {
    "Plan offline, from stage profiles": {
        "plan": "one frequency plan from a stage profile, offline",
        "frontier": "the whole time-energy frontier of a pipeline, offline",
        "simulate": "time, energy, bubbles and critical path of a plan",
        "export": "a plan's predicted timeline for a trace viewer, or a job's measured runs",
        "convert": "plans, orders and profiles in the file formats of other tools",
        "replay": "predict recorded runs, and compare with what was measured",
    },
    "Run the planner": {
        "serve": "run the planner, which sends plans to ranks",
        "token": "make, list and revoke access tokens of the planner",
        "db": "back the planner's database up, and restore it",
    },
    "Follow and change jobs, on the planner": {
        "jobs": "list, show, change and delete the planner's jobs",
        "report": "measured time, energy and savings of a job against the highest clocks",
        "top": "follow jobs and their measurements on a terminal",
    },
    "On the GPUs' machines": {
        "doctor": "check what setting clocks needs on this machine",
        "clocks": "list the SM clocks that each GPU supports",
        "profile": "measure stage profiles and clock changes, or follow online profiling",
        "guard": "restore the clocks of ranks that ended with their governors, as containers do",
        "unlock": "restore SM clocks that stayed locked",
    },
    "Try it without a GPU": {
        "demo": "planner, emulated GPUs and a real training run on this machine",
        "evaluate": "EnvPipe's evaluation on emulated GPUs, with Flyball's plans added",
    },
}
"""Title of a group -> its commands, in the order of `flyball --help`."""

SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}
