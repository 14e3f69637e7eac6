"""What a command says and exits with when the job store refuses."""

from __future__ import annotations

from flyball_server.jobs.errors import JobsError, StoreBusyError, StoreUnreachableError
from flyball_wire.command import BAD_INPUT, NOT_NOW, CommandError


def command_refusal(error: JobsError) -> CommandError:
    """The command's error for one of the jobs'; a database that is away may come back."""
    is_passing = isinstance(error, StoreUnreachableError | StoreBusyError)
    return CommandError(error.message, status=NOT_NOW if is_passing else BAD_INPUT)
