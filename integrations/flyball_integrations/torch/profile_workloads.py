"""Workload of `flyball profile run` from a torch module: repeatable forward and backward.

    def stage(*, stage: int, chunk: int | None, device: int) -> Workload:
        module = ...  # of this stage, on cuda:device
        return torch_workload(module, hidden)

`flyball profile run my_model:stage --stage 0 -o stage-0.csv`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from flyball_client.profiling.workload import Workload

Loss = Callable[[Any], torch.Tensor]


def torch_workload(
    module: nn.Module,
    *inputs: torch.Tensor,
    loss: Loss | None = None,
    input_gradients: bool = True,
    split_backward: bool = False,
    recompute: bool = False,
) -> Workload:
    """Return the instructions of a stage's module on one microbatch.

    A backward runs again and again over the graph of one forward, which is kept; gradients of
    parameters add up as over the microbatches of a step. Each instruction ends with a
    synchronization of the device where the module is on a GPU.

    Args:
        module: of the stage, in its mode and on its device.
        inputs: of one microbatch, on the same device, as it will be trained: not smaller.
        loss: of the module's output, on the last stage; None: the output's own gradient comes
            from the next stage, here ones.
        input_gradients: gradients of floating-point inputs are computed for the stage before;
            False for the first stage.
        split_backward: `backward_input` and `backward_weight` in the place of `backward`, as
            torch.distributed.pipelining runs them; each output is copied once more. Without
            gradients of inputs the one does nothing and the other is the whole backward.
        recompute: `forward` keeps nothing for a backward, and `recompute` is a forward that
            does, as where activations are recomputed before the backward.

    Raises:
        ValueError: no tensor of the output needs a gradient, so that there is no backward, or
            this torch cannot split it.
    """
    stage = _TorchStage(module, inputs, loss, input_gradients=input_gradients)
    forward = stage.forward_only if recompute else stage.forward
    instructions: dict[str, Callable[[], object]] = {"forward": forward}
    if recompute:
        instructions["recompute"] = stage.forward
    if split_backward and not stage.has_input_gradients:
        instructions |= {"backward_input": stage.finish, "backward_weight": stage.backward}
    elif split_backward:
        split = _SplitBackward(stage)
        instructions |= {"backward_input": split.input, "backward_weight": split.weight}
    else:
        instructions["backward"] = stage.backward
    stage.keep_graph()
    return Workload(instructions=instructions)


class _TorchStage:
    """A module on one microbatch, and the graph of one forward."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[torch.Tensor],
        loss: Loss | None,
        *,
        input_gradients: bool,
    ) -> None:
        self.parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self.inputs = [
            tensor.detach().requires_grad_(input_gradients and tensor.is_floating_point())
            for tensor in inputs
        ]
        self._module = module
        self._loss = loss
        self._is_cuda = any(tensor.is_cuda for tensor in [*self.parameters, *self.inputs])
        self.outputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []

    @property
    def has_input_gradients(self) -> bool:
        """Return whether the stage before gets gradients."""
        return any(tensor.requires_grad for tensor in self.inputs)

    def keep_graph(self) -> None:
        """Run the forward with the graph of every backward."""
        with torch.enable_grad():
            self.outputs = self._run()
        if not self.outputs:
            raise ValueError("no tensor of the module's output needs a gradient")
        self.gradients = [torch.ones_like(output) for output in self.outputs]

    def forward(self) -> None:
        """Run a forward that keeps all that its backward needs."""
        with torch.enable_grad():
            self._run()
        self.finish()

    def forward_only(self) -> None:
        """Run a forward that keeps nothing."""
        with torch.no_grad():
            self._run()
        self.finish()

    def backward(self) -> None:
        """Run the whole backward."""
        self.forget_input_gradients()
        torch.autograd.backward(self.outputs, self.gradients, retain_graph=True)
        self.finish()

    def forget_input_gradients(self) -> None:
        """Clear the gradients of the inputs, which belong to one microbatch."""
        for tensor in self.inputs:
            tensor.grad = None

    def finish(self) -> None:
        """Wait until the device has finished."""
        if self._is_cuda:
            torch.cuda.synchronize()

    def _run(self) -> list[torch.Tensor]:
        output = self._module(*self.inputs)
        if self._loss is not None:
            output = self._loss(output)
        return [tensor for tensor in _tensors(output) if tensor.requires_grad]


class _SplitBackward:
    """Parts of a backward for inputs and for weights, as torch splits it."""

    def __init__(self, stage: _TorchStage) -> None:
        try:
            # Private: the parts that torch's own split schedules run.
            from torch.distributed.pipelining import _backward  # noqa: PLC0415

            self._input_part = _backward.stage_backward_input
            self._weight_part = _backward.stage_backward_weight
        except (ImportError, AttributeError):
            raise ValueError(
                f"torch {torch.__version__} cannot split a backward; use 2.5 or later"
            ) from None
        self._stage = stage
        self._groups: list[dict[str, Any]] = []

    def input(self) -> None:
        """`backward_input`."""
        self._run_input()
        self._stage.finish()

    def weight(self) -> None:
        """`backward_weight`, of the last `backward_input`."""
        if not self._groups:
            self._run_input()
        # It empties the groups that it gets.
        groups = [dict(group) for group in self._groups]
        self._weight_part(iter(self._stage.parameters), groups, retain_graph=True)
        self._stage.finish()

    def _run_input(self) -> None:
        stage = self._stage
        stage.forget_input_gradients()
        # It detaches the outputs that it gets, and those of the kept graph must stay.
        outputs = [output.clone() for output in stage.outputs]
        inputs = [tensor for tensor in stage.inputs if tensor.requires_grad]
        _, self._groups = self._input_part(outputs, stage.gradients, inputs, iter(stage.parameters))


def _tensors(output: object) -> list[torch.Tensor]:
    """All tensors of an output, as deep as lists, tuples and mappings go."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for each in output for tensor in _tensors(each)]
    return []
