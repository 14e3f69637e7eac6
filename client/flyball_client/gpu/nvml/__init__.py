"""NVIDIA's GPUs through NVML."""
