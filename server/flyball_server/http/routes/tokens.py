"""Tokens: create, list and revoke them; for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path

from flyball_server.http.dependencies import State
from flyball_server.http.middleware.token_access import require_token
from flyball_server.http.openapi.documentation import call_router, problems
from flyball_server.jobs.auth.access import create_token, list_tokens, revoke_token
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import TokenRecord
from flyball_wire import routes
from flyball_wire.read_models import NewToken, TokenRequest, TokenView

ROUTER = call_router("tokens")
TokenId = Annotated[
    str,
    Path(
        pattern="^[0-9a-f]{8,64}$",
        description="Public part of the token, between its two underscores.",
    ),
]


@ROUTER.post(
    routes.TOKENS,
    summary="Create a token",
    status_code=201,
    response_description="The token; it cannot be shown again.",
    responses=problems(409),
    dependencies=[Depends(require_token)],
)
def post_token(state: State, request: TokenRequest) -> NewToken:
    """Create a token for one job, registered or not, a read-only token, or an operator's.

    From the first token on the planner requires one in each call. The first must be an
    operator's: another is a 409. Each call creates another token: revoke one if its answer was
    lost.
    """
    if (request.job_id is not None) + request.read_only + request.operator != 1:
        raise InvalidFieldError("job_id", "give either this, read_only: true or operator: true")
    record, token = create_token(
        state.services.store,
        job_id=request.job_id,
        is_read_only=request.read_only,
        note=request.note,
        now=state.services.now,
        has_operator=state.settings.token is not None,
    )
    state.gate.forget()
    return NewToken(token=token, **vars(_view(record)))


@ROUTER.get(
    routes.TOKENS,
    summary="List tokens",
    response_description="Tokens in the order of their creation.",
)
def get_tokens(state: State) -> list[TokenView]:
    """Return all tokens without their secret parts."""
    return [_view(record) for record in list_tokens(state.services.store)]


@ROUTER.delete(
    routes.TOKEN,
    summary="Revoke a token",
    status_code=204,
    response_description="The token is revoked.",
    dependencies=[Depends(require_token)],
)
def delete_token(state: State, token_id: TokenId) -> None:
    """Revoke a token at once at this planner, and within 5 s at others on its database."""
    revoke_token(state.services.store, token_id)
    state.gate.forget()


def _view(record: TokenRecord) -> TokenView:
    return TokenView(
        token_id=record.token_id,
        job_id=record.job_id,
        read_only=record.is_read_only,
        note=record.note,
        created_at=record.created_at.isoformat(),
    )
