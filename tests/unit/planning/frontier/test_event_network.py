"""The DAG as a network of events: which events are one, by hand, and that nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    I,
    W,
    assigned_models,
    equal_profile,
    model_of,
    network_of,
    node_of,
    profile_of,
)

from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    END,
)
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate

NAMED_EVENTS = 3  # BEGIN, DEADLINE, END


def split_model(num_stages: int) -> PipelineModel:
    points = [(1410, 1.0, 10.0), (1000, 1.25, 8.0)]
    return model_of(profile_of([{F: points, I: points, W: points}] * num_stages), 1)


def test_in_1f1b_every_hand_over_is_one_event() -> None:
    """Stage 0 runs F0 F1 B0 B1, stage 1 F0 B0 F1 B1.

    Five hand-overs: after 0F0; 1F0; 0F1 and 1B0 (which 0B0 and 1F1 both wait for); 1F1; 0B0 and
    1B1.
    """
    model = model_of(equal_profile(2), 2)
    network = network_of(model)
    assert network.num_events == NAMED_EVENTS + 5
    assert len(network.tail) == 8 + 1  # no arc that only keeps order
    forward_1, backward_0 = node_of(model, 0, F, 1), node_of(model, 1, B, 0)
    assert network.head[forward_1] == network.head[backward_0]
    assert network.tail[node_of(model, 0, B, 0)] == network.head[forward_1]
    assert network.tail[node_of(model, 1, F, 1)] == network.head[forward_1]


def test_the_weight_part_of_a_split_backward_holds_up_no_other_stage() -> None:
    """0F is followed by 1F and 0I, 1I by 1W and 0I; 0I waits for both, the others for one."""
    model = split_model(2)
    network = network_of(model)
    assert network.num_events == NAMED_EVENTS + 5 + 2
    assert len(network.tail) == 6 + 4 + 1
    for stage in range(2):
        assert network.head[node_of(model, stage, W, 0)] == END


def test_an_arcs_parts_are_the_segments_of_its_hull() -> None:
    """With 5 W: forward (1 s, 5 J), (1.25 s, 1.75 J); backward (2 s, 20 J), (2.5 s, 7.5 J)."""
    network = network_of(model_of(equal_profile(1), 1))
    assert network.min_window_s.tolist() == [1.0, 2.0, 0.0]
    assert network.slope_w.tolist() == [[-13.0, 0.0], [-25.0, 0.0], [-5.0, 0.0]]
    assert network.length_s.tolist() == [[0.25, np.inf], [0.5, np.inf], [np.inf, 0.0]]
    assert (network.fixed_cost_j, network.waiting_power_w) == (25.0, 5.0)
    assert network.energy_offset_j(3.0) == 40.0


@given(assigned_models())
def test_any_durations_take_as_long_in_the_network_as_in_the_simulator(
    assigned: tuple[PipelineModel, list[int]],
) -> None:
    model, assignment = assigned
    network = network_of(model)
    window_s = np.zeros(len(network.tail))
    window_s[: network.num_instructions] = model.durations_s(assignment)
    time_s = np.zeros(network.num_events)
    for _ in range(network.num_events):
        for arc, (tail, head) in enumerate(zip(network.tail, network.head, strict=True)):
            time_s[head] = max(time_s[head], time_s[tail] + window_s[arc])
    assert time_s[END] == simulate(model, assignment).iteration_time_s
    assert time_s[DEADLINE] == time_s[END]
    assert time_s[BEGIN] == 0
