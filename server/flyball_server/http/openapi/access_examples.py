"""The examples of the API's description for tokens."""

from __future__ import annotations

from flyball_wire.tokens import NewToken, TokenRequest, TokenView

TOKEN_REQUEST = TokenRequest(job_id="gpt2-demo", note="night runs")

TOKEN = TokenView(
    token_id="3f0c9a5d1b7e4826",  # noqa: S106 - its public part
    job_id="gpt2-demo",
    note="night runs",
    created_at="2026-01-05T09:30:00+00:00",
)

NEW_TOKEN = NewToken(
    token="fb_3f0c9a5d1b7e4826_EXAMPLE-OF-A-SECRET-SHOWN-ONCE",  # noqa: S106 - opens nothing
    token_id=TOKEN.token_id,
    job_id=TOKEN.job_id,
    note=TOKEN.note,
    created_at=TOKEN.created_at,
)
