"""Examples of reports and comparisons for the API's description."""

from __future__ import annotations

from flyball_wire.closed_loop import (
    ComparisonRequest,
    ComparisonView,
    Estimate,
    ReportView,
    SavingView,
)

COMPARISON_REQUEST = ComparisonRequest(num_pairs=60)

COMPARISON = ComparisonView(state="running", version=2, num_pairs=60, num_measured_pairs=24)

REPORT = ReportView(
    job_id="gpt2-demo",
    emulated=True,
    num_ranks=2,
    num_steps=480,
    time_s=412.8,
    energy_j=214310.5,
    saved_j=Estimate(mean=3250.1, low=3091.4, high=3408.8, num_steps=60),
    profiling_time_s=None,
    profiling_energy_j=None,
    versions=(
        SavingView(
            version=2,
            policy="frontier",
            target="fastest",
            time_s=Estimate(mean=0.8613, low=0.8606, high=0.862, num_steps=60),
            energy_j=Estimate(mean=444.3, low=442.1, high=446.5, num_steps=60),
            baseline_time_s=Estimate(mean=0.8604, low=0.8597, high=0.8611, num_steps=60),
            baseline_energy_j=Estimate(mean=498.5, low=496.2, high=500.8, num_steps=60),
            baseline="interleaved",
            slowdown_percent=Estimate(mean=0.1, low=0.01, high=0.19, num_steps=60),
            saving_percent=Estimate(mean=10.87, low=10.36, high=11.38, num_steps=60),
            saved_j=Estimate(mean=3250.1, low=3091.4, high=3408.8, num_steps=60),
            num_steps=60,
            num_left_out=1,
            predicted_time_s=0.86,
            predicted_energy_j=442.9,
            predicted_saving_percent=11.1,
        ),
    ),
)
