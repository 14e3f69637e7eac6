"""Flyball in torch.distributed.pipelining."""
