"""Examples of the calls that several ranks make together, as those of `examples`."""

from __future__ import annotations

from dataclasses import replace

from flyball_client import wire_batches
from flyball_server.rest import examples

_FAILURE = wire_batches.RankFailure(
    rank=9, status=404, detail="Rank 9 of job gpt2-demo is not known here; register it first"
)

REGISTRATIONS = wire_batches.RegistrationBatch(
    ranks=(
        wire_batches.OneRegistration(rank=0, registration=examples.RANK_REGISTRATION),
        wire_batches.OneRegistration(
            rank=1,
            registration=replace(examples.RANK_REGISTRATION, stage=1, gpu_uuid="EMULATED-1"),
        ),
    )
)

RANKS = wire_batches.RanksAnswer(
    ranks=(
        examples.REGISTERED_RANK,
        replace(examples.REGISTERED_RANK, rank=1, stage=1, gpu_uuid="EMULATED-1"),
    ),
    failures=(),
)

PLANS = wire_batches.PlansAnswer(
    plans=(wire_batches.SharedPlan(ranks=(0,), plan=examples.RANK_PLAN),), failures=(_FAILURE,)
)

ACKNOWLEDGEMENTS = wire_batches.AcknowledgementBatch(
    ranks=(
        wire_batches.OneAcknowledgement(rank=0, version=1, current_step=12),
        wire_batches.OneAcknowledgement(rank=1, version=1, current_step=11),
    )
)

ACTIVATIONS = wire_batches.ActivationsAnswer(
    ranks=(
        wire_batches.OneActivation(rank=0, version=1, first_step=16),
        wire_batches.OneActivation(rank=1, version=1, first_step=16),
    ),
    failures=(),
)

STEPS = wire_batches.StepBatch(
    ranks=(
        wire_batches.StepsOfRank(rank=0, steps=examples.MEASUREMENTS.steps),
        wire_batches.StepsOfRank(rank=1, steps=examples.MEASUREMENTS.steps),
    )
)

ACCEPTED = wire_batches.AcceptedAnswer(
    ranks=(
        wire_batches.OneAccepted(rank=0, stored=1),
        wire_batches.OneAccepted(rank=1, stored=1),
    ),
    failures=(),
)
