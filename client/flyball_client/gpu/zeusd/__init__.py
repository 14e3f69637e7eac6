"""NVIDIA's GPUs whose clocks zeusd sets, for processes without the right to set them."""
