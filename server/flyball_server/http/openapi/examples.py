"""The examples of the API's description, made of the wire's own types so that they stay true."""

from __future__ import annotations

from flyball_wire import messages
from flyball_wire.read_models import (
    ComparedPlanView,
    FrontierPointView,
    FrontierView,
    NewToken,
    TokenRequest,
    TokenView,
)

REGISTRATION = messages.JobRegistration(
    num_stages=2,
    num_microbatches=2,
    num_ranks=2,
    policy="envelope",
    blocking_power_w=(83.6,),
    emulated=True,
)

RANK_REGISTRATION = messages.RankRegistration(
    stage=0,
    host="node-1",
    gpu_name="emulated NVIDIA A100-SXM4-80GB",
    gpu_uuid="EMULATED-0",
    emulated=True,
    client_version="0.1.0",
    dp_rank=0,
    tp_rank=0,
    cp_rank=0,
)

PROFILE_CSV = """stage,instruction,frequency,time,energy
0,forward,1410,0.10,30.0
0,forward,1200,0.11,26.0
0,backward,1410,0.20,62.0
0,backward,1200,0.22,54.0
1,forward,1410,0.08,24.0
1,forward,1200,0.09,21.0
1,backward,1410,0.16,50.0
1,backward,1200,0.18,43.0
"""

JSON_PROFILE = messages.JsonProfile(
    rows=tuple(
        messages.ProfileRow(
            stage=int(stage),
            instruction=instruction,
            frequency=int(frequency),
            time=float(time),
            energy=float(energy),
        )
        for stage, instruction, frequency, time, energy in (
            line.split(",") for line in PROFILE_CSV.splitlines()[1:]
        )
    )
)

TARGET_CHANGE = messages.TargetChange(policy="uniform", target="fastest")

ACKNOWLEDGEMENT = messages.Acknowledgement(version=1, current_step=12)

MEASUREMENTS = messages.MeasurementBatch(
    steps=(
        messages.StepMeasurement(
            step=17, plan_version=1, time_s=0.86, energy_j=251.3, sm_clock_mhz=1297.5
        ),
    )
)

HEALTH = messages.Health(status="ok", version="0.1.0")
READY = messages.Health(status="ready", version="0.1.0")

RANK = messages.RankView(
    rank=0,
    stage=RANK_REGISTRATION.stage,
    host=RANK_REGISTRATION.host,
    gpu_name=RANK_REGISTRATION.gpu_name,
    gpu_uuid=RANK_REGISTRATION.gpu_uuid,
    emulated=RANK_REGISTRATION.emulated,
    client_version=RANK_REGISTRATION.client_version,
    dp_rank=RANK_REGISTRATION.dp_rank,
    tp_rank=RANK_REGISTRATION.tp_rank,
    cp_rank=RANK_REGISTRATION.cp_rank,
    acknowledged_version=1,
    current_step=12,
)
REGISTERED_RANK = messages.RegisteredRank(
    **(vars(RANK) | {"acknowledged_version": None, "current_step": None}), run_id="6440f4e8a1b40"
)

JOB = messages.JobView(
    job_id="gpt2-demo",
    state="planned",
    registration=REGISTRATION,
    ranks=(RANK,),
    newest_version=1,
    active_version=1,
    problem=None,
    created_at="2026-01-05T09:30:00+00:00",
)

PLAN = messages.PlanView(
    job_id="gpt2-demo",
    version=1,
    first_step=16,
    created_at="2026-01-05T09:30:02+00:00",
    plan={
        "policy": "envelope",
        "reconfigure": "balanced",
        "schedule": "1f1b",
        "target": "fastest",
        "num_stages": 2,
        "num_microbatches": 1,
        "blocking_power_w": [83.6, 83.6],
        "iteration_time_s": 0.54,
        "energy_j": 211.1,
        "baseline": {"iteration_time_s": 0.54, "energy_j": 211.1},
        "saving_percent": 0.0,
        "slowdown_percent": 0.0,
        "lower_bound_j": None,
        "gap_percent": None,
        "solve_s": 0.002,
        "stages": [
            [["forward", 0, 1410], ["backward", 0, 1410]],
            [["forward", 0, 1410], ["backward", 0, 1410]],
        ],
    },
)

RANK_PLAN = messages.RankPlan(
    job_id="gpt2-demo",
    version=1,
    stage=0,
    first_step=None,
    instructions=(
        ("forward", 0, 1410),
        ("forward", 1, 1200),
        ("backward", 0, 1410),
        ("backward", 1, 1410),
    ),
    predicted_iteration_time_s=0.86,
)

FRONTIER = FrontierView(
    job_id="gpt2-demo",
    points=(
        FrontierPointView(
            deadline_s=2.8365,
            iteration_time_s=2.8365,
            energy_j=6168.5,
            lower_bound_j=6160.4,
            gap_percent=0.13,
        ),
        FrontierPointView(
            deadline_s=3.2743,
            iteration_time_s=3.2732,
            energy_j=5597.2,
            lower_bound_j=5591.5,
            gap_percent=0.1,
        ),
    ),
    baseline=ComparedPlanView(name="baseline", iteration_time_s=2.8365, energy_j=7339.0),
    envpipe=(
        ComparedPlanView(name="envelope, balanced", iteration_time_s=2.8365, energy_j=6295.1),
    ),
    solve_s=0.33,
)

ACTIVATION = messages.Activation(version=1, first_step=16)

STEP = messages.StepView(
    step=17,
    num_ranks=2,
    plan_versions=(1,),
    time_s=0.86,
    energy_j=498.2,
    num_unplanned=0,
    num_overruns=0,
    num_clock_misses=0,
    num_power_capped=0,
    num_thermally_capped=0,
)

ACCEPTED = messages.Accepted(stored=1, next_post_s=1.0)

PROBLEMS = {
    400: messages.Problem(detail="The body cannot be read as JSON"),
    401: messages.Problem(
        detail=f"This planner asks for a token in the header {messages.TOKEN_HEADER}"
    ),
    403: messages.Problem(detail="This token opens job gpt2-demo only; use an operator's"),
    404: messages.Problem(detail="Job gpt2-demo is not known here; register it first"),
    408: messages.Problem(
        detail="The body did not arrive within 30 s; send it again, faster or in smaller parts"
    ),
    409: messages.Problem(
        detail="Job gpt2-demo stands with another num_microbatches; register a new job under"
        " another name"
    ),
    413: messages.Problem(detail="The body is larger than 16777216 bytes, this planner's limit"),
    415: messages.Problem(detail="Send the body with content type application/json"),
    422: messages.Problem(
        detail="num_stages: must be 1 to 4096, not 0",
        errors=({"loc": "num_stages", "type": "invalid", "msg": "must be 1 to 4096, not 0"},),
    ),
    503: messages.Problem(detail="The planner's job store cannot answer now; its log says why"),
}
PROFILE_PROBLEM = messages.Problem(
    detail="profile:4: time must be a finite number, not 'nan'",
    errors=(
        {"loc": "profile:4", "type": "profile", "msg": "time must be a finite number, not 'nan'"},
    ),
)


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
