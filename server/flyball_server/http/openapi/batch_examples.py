"""Examples of the calls that several ranks make together, as those of `examples`."""

from __future__ import annotations

from dataclasses import replace

from flyball_server.http.openapi import examples
from flyball_wire import batches

_FAILURE = batches.RankFailure(
    rank=9, status=404, detail="Rank 9 of job gpt2-demo is not known here; register it first"
)

REGISTRATIONS = batches.RegistrationBatch(
    ranks=(
        batches.OneRegistration(rank=0, registration=examples.RANK_REGISTRATION),
        batches.OneRegistration(
            rank=1,
            registration=replace(examples.RANK_REGISTRATION, stage=1, gpu_uuid="EMULATED-1"),
        ),
    )
)

RANKS = batches.RanksAnswer(
    ranks=(
        examples.REGISTERED_RANK,
        replace(examples.REGISTERED_RANK, rank=1, stage=1, gpu_uuid="EMULATED-1"),
    ),
    failures=(),
)

PLANS = batches.PlansAnswer(
    plans=(batches.SharedPlan(ranks=(0,), plan=examples.RANK_PLAN),), failures=(_FAILURE,)
)

ACKNOWLEDGEMENTS = batches.AcknowledgementBatch(
    ranks=(
        batches.OneAcknowledgement(rank=0, version=1, current_step=12),
        batches.OneAcknowledgement(rank=1, version=1, current_step=11),
    )
)

ACTIVATIONS = batches.ActivationsAnswer(
    ranks=(
        batches.OneActivation(rank=0, version=1, first_step=16),
        batches.OneActivation(rank=1, version=1, first_step=16),
    ),
    failures=(),
)

STEPS = batches.StepBatch(
    ranks=(
        batches.StepsOfRank(rank=0, steps=examples.MEASUREMENTS.steps),
        batches.StepsOfRank(rank=1, steps=examples.MEASUREMENTS.steps),
    )
)

ACCEPTED = batches.AcceptedAnswer(
    ranks=(
        batches.OneAccepted(rank=0, stored=1),
        batches.OneAccepted(rank=1, stored=1),
    ),
    failures=(),
)
