"""Examples of online profiling for the API's description."""

from __future__ import annotations

from flyball_wire import closed_loop

PROFILING = closed_loop.ProfilingView(
    job_id="gpt2-demo",
    state="probing",
    problem=None,
    num_steps=48,
    points=(
        closed_loop.ProbedPointView(
            stage=0,
            instruction="forward",
            chunk=0,
            frequency_mhz=1410,
            time_s=0.0502,
            time_error_s=0.00002,
            energy_j=23.8,
            energy_error_j=0.11,
            num_probes=1080,
        ),
    ),
    blocking_power_w=(83.1,),
    blocking_power_error_w=(0.9,),
    slowdown_limit=0.1,
    largest_slowdown=0.071,
    extra_time_s=9.4,
    extra_energy_j=-812.0,
    emulated=True,
)
