"""A published pipeline that is planned by its profile and runs on GPUs that may have drifted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from emulated_loop import EmulatedPipeline
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure
from gpt3_cells import A100, SCHEDULE

DRIFT_STAGE, DRIFT_SLOWDOWN = 3, 1.08
# What a transfer takes over a fast link; EnvPipe's threshold is four times that.
TRANSFER_S = 0.0002


@dataclass(frozen=True, kw_only=True)
class DriftingCell:
    """GPT-3 175B on A100.

    Attributes:
        profile: of its stages.
        noise: of each emulated instruction, as in EmulatedGpuSettings.
    """

    profile: StageProfile
    num_microbatches: int
    noise: float

    def request(self, policy: Policy, profile: StageProfile | None = None) -> PlanRequest:
        """For a plan in which nothing is reconfigured; of another profile, where one is given."""
        return PlanRequest(
            profile=self.profile if profile is None else profile,
            num_microbatches=self.num_microbatches,
            options=PlanOptions(
                blocking_power_w=(A100.blocking_power_w,),
                schedule=SCHEDULE,
                policy=policy,
                reconfigure=Reconfigure.DEFAULT,
            ),
        )

    @property
    def model(self) -> PipelineModel:
        """Its order and operating points."""
        return model_of_request(self.request(Policy.ENVELOPE))

    def planned(self, policy: Policy, profile: StageProfile | None = None) -> Assignment:
        """The clocks of such a plan."""
        return model_of_plan(self.profile, make_plan(self.request(policy, profile)).plan)[1]

    def emulate(self, *, drifted: bool) -> EmulatedPipeline:
        """The pipeline as it begins to run, one stage slower than its profile or none."""
        pipeline = EmulatedPipeline(
            self.profile, self.model, noise=self.noise, transfer_s=TRANSFER_S
        )
        if drifted:
            pipeline.set_slowdown(DRIFT_STAGE, DRIFT_SLOWDOWN)
        return pipeline


def scaled(profile: StageProfile, of_stage: int, slowdown: float) -> StageProfile:
    """The profile of a stage that takes so many times as long, at the same power."""
    return dataclasses.replace(
        profile,
        points={
            (stage, kind): tuple(
                dataclasses.replace(
                    point, time_s=point.time_s * slowdown, energy_j=point.energy_j * slowdown
                )
                if stage == of_stage
                else point
                for point in points
            )
            for (stage, kind), points in profile.points.items()
        },
    )
