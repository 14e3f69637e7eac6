"""One line about each command of Flyball: `flyball --help` imports no command itself."""

from __future__ import annotations

GROUPS = {
    "Plan offline, from stage profiles": {
        "plan": "make a frequency plan from a stage profile, offline",
        "frontier": "compute the time-energy frontier of a pipeline, offline",
        "simulate": "predict time, energy, bubbles and critical path of a plan",
        "export": "export a plan's predicted timeline for a trace viewer, or a job's measured runs",
        "convert": "convert plans, orders and profiles from and to the formats of other tools",
        "replay": "predict recorded runs, and compare with their measurements",
    },
    "Run the planner": {
        "serve": "run the planner, which sends plans to ranks",
        "token": "create, list and revoke access tokens of the planner",
        "db": "back up and restore the planner's SQLite database",
    },
    "Follow and change jobs, on the planner": {
        "jobs": "list, show, change and delete the planner's jobs",
        "report": "show measured time, energy and savings of a job against the highest clocks",
        "top": "follow jobs and their measurements on a terminal",
    },
    "On the GPUs' machines": {
        "doctor": "check that clocks can be set on this machine",
        "clocks": "list the SM clocks that each GPU supports",
        "profile": "measure stage profiles and clock changes, or follow online profiling",
        "guard": "restore clocks when a rank and its governor are killed, as with a container",
        "unlock": "restore SM clocks that stayed locked",
    },
    "Try it without a GPU": {
        "demo": "run the planner and a real training on emulated GPUs of this machine",
    },
}
"""Title of a group -> its commands, in the order of `flyball --help`."""

SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}
