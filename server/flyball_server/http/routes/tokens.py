"""Tokens: make, list and revoke them; for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from flyball_server.http.dependencies import JsonBody, State, call_router
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
    problems,
)
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
        description="The token's public part, between its two underscores.",
        examples=[examples.TOKEN.token_id],
    ),
]


@ROUTER.post(
    routes.TOKENS,
    summary="Make a token",
    status_code=201,
    dependencies=[JsonBody],
    responses={
        **answers(
            examples.NEW_TOKEN,
            *JSON_BODY_ERRORS,
            status=201,
            meaning="The token; this is the only time that it is shown.",
        ),
        409: {**problems(409)[409], "description": "A job's token cannot be the first."},
    },
)
def post_token(
    state: State, request: Annotated[TokenRequest, json_body(examples.TOKEN_REQUEST)]
) -> NewToken:
    """A token for one job, which need not be registered yet, or an operator's.

    From the first token on the planner asks all callers for one. Made again it is another token:
    revoke one whose answer was lost. The first one must be an operator's, or nobody could make
    another: a job's is a 409 then.
    """
    if request.operator == (request.job_id is not None):
        raise InvalidFieldError("job_id", "give either this or operator: true")
    record, token = create_token(
        state.services.store,
        job_id=request.job_id,
        note=request.note,
        now=state.services.now,
        has_operator=state.settings.token is not None,
    )
    state.gate.forget()
    return NewToken(
        token=token,
        token_id=record.token_id,
        job_id=record.job_id,
        note=record.note,
        created_at=record.created_at.isoformat(),
    )


@ROUTER.get(
    routes.TOKENS,
    summary="List tokens",
    responses=answers([examples.TOKEN], *READ_ERRORS, meaning="In the order of their creation."),
)
def get_tokens(state: State) -> list[TokenView]:
    """Return what is known of each token; none of them can be shown again."""
    return [_view(record) for record in list_tokens(state.services.store)]


@ROUTER.delete(
    routes.TOKEN,
    summary="Revoke a token",
    status_code=204,
    responses={
        **{
            status: answer
            for status, answer in answers(examples.TOKEN, 404, *READ_ERRORS).items()
            if status != 200
        },
        204: {"description": "It opens nothing any more."},
    },
)
def delete_token(state: State, token_id: TokenId) -> None:
    """At once at this planner, and within 5 s at others that share its database."""
    revoke_token(state.services.store, token_id)
    state.gate.forget()


def _view(record: TokenRecord) -> TokenView:
    return TokenView(
        token_id=record.token_id,
        job_id=record.job_id,
        note=record.note,
        created_at=record.created_at.isoformat(),
    )
