"""Errors about jobs, one tree; an error's docstring is its message.

JobsError
├── UnknownError                  the requested object does not exist
│   ├── UnknownJobError
│   ├── UnknownRankError
│   ├── UnknownPlanError
│   └── UnknownTokenError
├── WrongStateError               it exists, but not in a state that allows this
│   ├── RegistrationConflictError
│   ├── OtherStartError
│   ├── JobHeldError
│   ├── ProfiledShapeError
│   ├── PlaceTakenError
│   ├── JobIsRunningError
│   ├── MissingProfileError
│   ├── MissingPlanError
│   ├── UnplannedJobError
│   ├── UnrecordedRunsError
│   ├── UndrawablePlanError
│   ├── TimelineTooLongError
│   ├── NoOperatorsTokenError
│   ├── NothingToCompareError
│   ├── NoRanksPresentError
│   ├── JobIsOverError
│   ├── IllegalMoveError
│   └── TooManyJobsError          limit of stored jobs reached
├── PlanningStoppedError          the planner shuts down
├── PlannerFaultError             unexpected error in the planner
├── InvalidFieldError             a value out of bounds; `field` names it
│   └── PlanningFailedError       the planner refused the job in its current state
└── StoreError                    the database
    ├── StoreUnavailableError
    │   ├── StoreFullError
    │   ├── StoreUnreachableError
    │   └── StoreDriverError
    ├── StoreInUseError           another planner runs on the SQLite file
    ├── StoreBusyError
    ├── StoreDamagedError
    ├── StoreForeignError
    ├── StoreTooNewError
    ├── BackupError
    └── StoreClosedError
"""

from __future__ import annotations

import inspect


class JobsError(Exception):
    """Base class of errors about a job."""

    def __init__(self, **parts: object) -> None:
        # `python -OO` strips docstrings; the message then consists of the parts alone.
        template = inspect.cleandoc(type(self).__doc__ or " ".join(f"{{{part}}}" for part in parts))
        super().__init__(template.format(**parts).removesuffix("."))

    @property
    def message(self) -> str:
        """Message of one line."""
        return str(self.args[0])


class UnknownError(JobsError):
    """There is no such thing."""


class UnknownJobError(UnknownError):
    """Job {job_id} is not known here; register it first."""


class UnknownRankError(UnknownError):
    """Rank {rank} of job {job_id} is not known here; register it first."""


class UnknownPlanError(UnknownError):
    """Job {job_id} has no plan version {version}."""


class UnknownTokenError(UnknownError):
    """Token {token_id} does not exist; list the tokens."""


class WrongStateError(JobsError):
    """The job is not in a state that allows this."""


class RegistrationConflictError(WrongStateError):
    """Job {job_id} is registered with another {field}; end its ranks, or take another name."""


class OtherStartError(WrongStateError):
    """Job {job_id} is registered for another start of its training; register it for this start."""


class JobHeldError(WrongStateError):
    """Job {job_id} has ranks of another start on {hosts}; end them, or take another name."""


class ProfiledShapeError(WrongStateError):
    """Job {job_id} is measured with {num} microbatches; another number waits until that is done."""


class PlaceTakenError(WrongStateError):
    """Ranks {other} and {rank} of job {job_id} both claim {place}; give each a place of its own."""


class JobIsRunningError(WrongStateError):
    """Job {job_id} has ranks that called recently; end its training first."""


class MissingProfileError(WrongStateError):
    """Job {job_id} has no profile yet; put one first."""


class MissingPlanError(WrongStateError):
    """Job {job_id} has no plan yet; put a profile first."""


class UnplannedJobError(WrongStateError):
    """Job {job_id} cannot be planned: {problem}."""


class UnrecordedRunsError(WrongStateError):
    """Job {job_id} has no runs to replay: {problem}."""


class UndrawablePlanError(WrongStateError):
    """Plan version {version} of job {job_id} has no timeline: {problem}."""


class TimelineTooLongError(WrongStateError):
    """Plan version {version} of job {job_id} has {length} instructions; up to {most} are drawn."""


class NoOperatorsTokenError(WrongStateError):
    """This token alone would lock operators out; first `flyball token create --operator`."""


class NothingToCompareError(WrongStateError):
    """The plan of job {job_id} is all at the highest clocks; choose another policy first."""


class NoRanksPresentError(WrongStateError):
    """No rank of job {job_id} is in training; start it again first."""


class JobIsOverError(WrongStateError):
    """Job {job_id} is {state}; start its training again first."""


class IllegalMoveError(WrongStateError):
    """A job that is {old} cannot become {new}."""


class TooManyJobsError(WrongStateError):
    """This planner keeps {max_jobs} jobs at most; delete one, or raise {setting}."""


class PlanningStoppedError(JobsError):
    """The planner shuts down; job {job_id} is planned after the next start."""


class PlannerFaultError(JobsError):
    """The planner had an unexpected error with job {job_id}; see its log."""


class InvalidFieldError(JobsError):
    """{field}: {problem}."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field=field, problem=problem)
        self.field = field
        self.problem = problem


class PlanningFailedError(InvalidFieldError):
    """{field}: {problem}."""


class StoreError(JobsError):
    """The database cannot do this."""


class StoreUnavailableError(StoreError):
    """Database {location} cannot be used ({reason}); check its folder, rights and space."""


class StoreFullError(StoreUnavailableError):
    """Database {location} has no room ({reason}); free space on its disk."""


class StoreUnreachableError(StoreUnavailableError):
    """Database {location} cannot be used ({reason}); check address and rights, and that it runs."""


class StoreDriverError(StoreUnavailableError):
    """Database {location} needs the PostgreSQL driver; install the extra postgres."""


class StoreInUseError(StoreError):
    """Another planner runs on {location} (it holds {lock}); end it, or name another database."""


class StoreBusyError(StoreError):
    """Database {location} is busy in another process; try again."""


class StoreDamagedError(StoreError):
    """Database {location} is damaged or no SQLite file; restore it or name another file."""


class StoreForeignError(StoreError):
    """Database {location} is not Flyball's; name another."""


class StoreTooNewError(StoreError):
    """Database {location} has schema {found}, newer than {known}; use a newer Flyball."""


class BackupError(StoreError):
    """{problem}."""


class StoreClosedError(StoreError):
    """The job store is not open; open it first."""
