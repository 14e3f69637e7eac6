"""Hugging Face: a callback for Trainer, and Llama and GPT-2 models cut into pipeline stages.

trainer.add_callback(FlyballCallback(trainer, job_id="llama", announces_work=True))

model = build_causal_lm(LlamaConfig(...), seed=7)

# DeepSpeed
layers = deepspeed_layers(model, num_stages=4)
PipelineModule(layers, num_stages=4, partition_method="parameters", loss_fn=next_token_loss)

# torch.distributed.pipelining
module = stage_module(model, stage=rank, num_stages=4)
PipelineStage(module, rank, 4, device)
"""

from flyball_integrations.huggingface.deepspeed_specs import deepspeed_layers
from flyball_integrations.huggingface.layers import build_causal_lm, next_token_loss
from flyball_integrations.huggingface.torch_stages import stage_module, sum_tied_gradients
from flyball_integrations.huggingface.trainer import FlyballCallback

__all__ = [
    "FlyballCallback",
    "build_causal_lm",
    "deepspeed_layers",
    "next_token_loss",
    "stage_module",
    "sum_tied_gradients",
]
